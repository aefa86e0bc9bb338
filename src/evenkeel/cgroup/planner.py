"""Plans one after another for a node whose pods come and go: what was planned for a pod is kept while it is the same.

Equal to `plan` for the same pods. An agent plans at every change of a pod; without this each would cost as much as all
the pods on the node together.
"""

from collections.abc import Sequence

from evenkeel.cgroup.plan import PlannedPod, TreeBuilder
from evenkeel.cgroup.tree import Naming, Tree, Version
from evenkeel.policy.node import NodeView
from evenkeel.policy.provision import PodMoment


class Planner:
    """Of pods that have not changed, the cgroups are the same objects as in the tree before: `reconcile_changed` sees
    that at a glance. Only fair shares of CPU are each pod's part of a whole, and new whenever that changes (A21)."""

    def __init__(
        self, node: NodeView, version: Version = Version.V2, naming: Naming = Naming.CGROUPFS
    ) -> None:
        self._builder = TreeBuilder(node, version, naming)
        self._pods: dict[str, PlannedPod] = {}

    def tree(self, moments: Sequence[PodMoment]) -> Tree:
        """The tree for `moments`, the admitted pods in order of admission."""
        pods = [self._pod(moment) for moment in moments]
        self._pods = {pod.facts.pod.metadata.uid: pod for pod in pods}
        return self._builder.tree(pods)

    def _pod(self, moment: PodMoment) -> PlannedPod:
        known = self._pods.get(moment.pod.metadata.uid)
        if known is not None and (known.facts.moment is moment or known.facts.moment == moment):
            return known
        return self._builder.pod(moment)
