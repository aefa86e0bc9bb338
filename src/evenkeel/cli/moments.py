"""Pods as they would run on a node: at which moment of their life, and on which cores."""

from collections.abc import Sequence

from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.policy.node import NodeView
from evenkeel.policy.provision import PodMoment


def moments_of(node: NodeView, pods: Sequence[Pod], init: str | None = None) -> list[PodMoment]:
    """Each pod with its init containers done, or at the moment at which the one called `init` runs (D3)."""
    moments = [PodMoment(pod, _init_index(pod, init)) for pod in pods]
    if node.config.cpu_manager_policy == "static":
        from evenkeel.policy.cpuset import assign_on

        cores = assign_on(node, pods)
        moments = [
            moment._replace(exclusive_cpus=cores.of_pod(moment.pod.metadata.uid), shared_cpus=cores.shared)
            for moment in moments
        ]
    if init is not None and pods and not any(moment.is_starting for moment in moments):
        raise EvenkeelError(f"--init: no pod has an init container {init}")
    return moments


def _init_index(pod: Pod, init: str | None) -> int | None:
    found = (index for index, container in enumerate(pod.spec.init_containers) if container.name == init)
    return next(found, None)
