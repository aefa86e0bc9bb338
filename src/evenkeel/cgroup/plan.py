"""The plan: from a node and its admitted pods, each in its present phase, to the whole tree of cgroups (B10).

The same input gives the same tree. `explain` prints it, `reconcile` makes the kernel equal to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.api.scalars import is_within
from evenkeel.cgroup import names
from evenkeel.cgroup.kernel_files import oom_score_setting, settings, with_shares
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Tree, Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy import amounts, documents_cgroups
from evenkeel.policy.allocatable import CgroupLimits
from evenkeel.policy.amounts import cores_text
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import Amount, PlannedPod, PodFacts, Provision, pod_facts
from evenkeel.policy.qos import QoSClass, container_class
from evenkeel.quantity import ZERO


class Policy(Protocol):
    """The settings that a profile decides on each level (`documents_cgroups`, `kubernetes_cgroups`)."""

    def root_provision(self, node: NodeView, pods: Sequence[PodFacts], min_bytes: int) -> Provision: ...
    def branch_provision(
        self, node: NodeView, qos: QoSClass, pods: Sequence[PodFacts], min_bytes: int
    ) -> Provision: ...
    def pod_provision(self, node: NodeView, facts: PodFacts, min_bytes: int) -> Provision: ...
    def container_provision(self, node: NodeView, facts: PodFacts, container: Container) -> Provision: ...
    def infrastructure_provision(self, node: NodeView, pod: Pod) -> Provision: ...
    def ancestor_provision(self, root: Provision) -> Provision: ...
    def reserved_provision(self, node: NodeView, limits: CgroupLimits, what: str) -> Provision: ...


# The dot keeps it apart from every container: the name of a container has none.
INFRASTRUCTURE = "pod.infrastructure"


def plan(
    node: NodeView,
    pods: Sequence[PlannedPod],
    version: Version = Version.V2,
    naming: Naming = Naming.CGROUPFS,
) -> Tree:
    """The tree for the admitted pods, given in order of admission."""
    builder = TreeBuilder(node, version, naming)
    return builder.tree([builder.pod(pod) for pod in pods])


class Planner:
    """Plans again and again. The cgroups of a pod that has not changed are the same objects as in the tree before, so
    that `reconcile_changed` can skip them. Only with fair CPU shares (A21) one pod changes the cgroups of all."""

    def __init__(
        self, node: NodeView, version: Version = Version.V2, naming: Naming = Naming.CGROUPFS
    ) -> None:
        self._builder = TreeBuilder(node, version, naming)
        self._pods: dict[str, PodCgroups] = {}

    def tree(self, pods: Sequence[PlannedPod]) -> Tree:
        """The tree for the admitted pods, given in order of admission."""
        planned = [self._pod(pod) for pod in pods]
        self._pods = {one.facts.pod.metadata.uid: one for one in planned}
        return self._builder.tree(planned)

    def changed(self, pod: Pod) -> list[tuple[Cgroup, Cgroup]]:
        """The cgroups of the pod in the last tree, each with what it would be with this specification of the same
        containers. Empty if the last tree does not have the pod."""
        last = self._pods.get(pod.metadata.uid)
        if last is None:
            return []
        after = self._builder.pod(last.facts.planned._replace(pod=pod))
        return [*zip(last.cgroups, after.cgroups, strict=True)]

    def _pod(self, pod: PlannedPod) -> "PodCgroups":
        last = self._pods.get(pod.pod.metadata.uid)
        if last is not None and (last.facts.planned is pod or last.facts.planned == pod):
            return last
        return self._builder.pod(pod)


class PodCgroups(NamedTuple):
    """The part of the tree that belongs to one pod. It depends on the node and on no other pod: its CPU shares are
    those of its request, and `TreeBuilder.tree` replaces them where shares are fair (A21)."""

    facts: PodFacts
    cgroups: tuple[Cgroup, ...]  # of the pod, of its infrastructure, and of its containers
    containers: tuple[Container, ...]
    min_bytes: int  # its memory.min; the levels above add them up


class TreeBuilder:
    """Builds trees for one node: first each pod by itself, then the levels above them."""

    def __init__(self, node: NodeView, version: Version, naming: Naming) -> None:
        self._node = node
        self._version = version
        self._naming = naming
        self._per_qos = node.config.cgroups_per_qos
        self._root = names.pods_root(node.config.cgroup_root, per_qos=self._per_qos)
        if node.profile == Profile.DOCUMENTS:
            self._policy: Policy = documents_cgroups
            self._weight = self._container_weight = amounts.weight_keeping_ratio
        else:
            from evenkeel.policy import kubernetes_cgroups

            self._policy = kubernetes_cgroups
            self._weight, self._container_weight = (
                amounts.weight_linear,
                amounts.weight_quadratic,
            )

    def pod(self, pod: PlannedPod) -> PodCgroups:
        facts = pod_facts(pod, self._node.profile)
        name = names.pod_cgroup(self._root, facts.qos if self._per_qos else None, facts.pod.metadata.uid)
        containers = tuple(present_containers(pod))
        children: list[tuple[Container | None, Provision]] = [
            (None, self._policy.infrastructure_provision(self._node, facts.pod)),
            *((one, self._policy.container_provision(self._node, facts, one)) for one in containers),
        ]
        protected = sum(child.memory_min.value for _, child in children if child.memory_min is not None)
        min_bytes = documents_cgroups.pod_min_bytes(facts, protected)
        cgroups = tuple(self._pod_cgroups(facts, name, children, min_bytes))
        return PodCgroups(facts, cgroups, containers, min_bytes)

    def tree(self, pods: Sequence[PodCgroups]) -> Tree:
        return Tree(self._version, self._naming, tuple(self._cgroups(pods)))

    def _cgroups(self, pods: Sequence[PodCgroups]) -> Iterator[Cgroup]:
        yield from self._top(pods)
        fair = self._fair_shares(pods) if self._node.config.fair_cpu_sharing else None
        shares: Sequence[int | None] = [None] * len(pods) if fair is None else fair
        if not self._per_qos:
            for pod, of_pod in zip(pods, shares, strict=True):
                yield from pod.cgroups if of_pod is None else self._with_fair_shares(pod, of_pod)
            return
        for qos in (QoSClass.GUARANTEED, QoSClass.BURSTABLE, QoSClass.BEST_EFFORT):
            if qos != QoSClass.GUARANTEED:
                yield self._branch(qos, pods, fair)
            for pod, of_pod in zip(pods, shares, strict=True):
                if pod.facts.qos == qos:
                    yield from pod.cgroups if of_pod is None else self._with_fair_shares(pod, of_pod)

    def _fair_shares(self, pods: Sequence[PodCgroups]) -> list[int]:
        requests = [_cpu_request(pod.facts) for pod in pods]
        return amounts.fair_shares(requests, self._node.pods_limits.millicpu or 0)

    def _with_fair_shares(self, pod: PodCgroups, shares: int) -> Iterator[Cgroup]:
        """A21: the shares of a pod depend on all other pods; nothing else of it does. Inside the pod, each container
        gets its request and an equal part of what is left. The infrastructure needs next to nothing."""
        of_pod, infrastructure, *of_containers = pod.cgroups
        reason = f"request {cores_text(_cpu_request(pod.facts))} and an equal part of what is unrequested"
        yield self._with_shares(of_pod, Amount(shares, "A21", reason), self._weight)
        yield infrastructure
        requests = [container.resources.requests.get(CPU, ZERO).milli for container in pod.containers]
        overhead = pod.facts.pod.spec.overhead.get(CPU, ZERO).milli
        parts = amounts.fair_shares(requests, amounts.millicpu_from_shares(shares) - overhead)
        for cgroup, part, request in zip(of_containers, parts, requests, strict=True):
            reason = f"request {cores_text(request)} and an equal part of what its pod has besides"
            yield self._with_shares(cgroup, Amount(part, "A21", reason), self._container_weight)

    def _with_shares(self, cgroup: Cgroup, shares: Amount, weight: Callable[[int], int]) -> Cgroup:
        return cgroup._replace(settings=with_shares(self._version, cgroup.settings, shares, weight))

    def _with_cpus(self, top: Provision) -> Provision:
        """A new cpuset of v1 is given the CPUs of the one above it anyway, and loses those that go offline."""
        return top if self._version == Version.V2 else top._replace(cpus=None)

    def _reserved(self) -> dict[str, Provision]:
        """The amounts of each cgroup that is reserved for daemons, by its path."""
        config, limits = self._node.config, self._node.reserved_limits
        return {
            path: self._with_cpus(self._policy.reserved_provision(self._node, of_daemons, what))
            for path, of_daemons, what in (
                (config.kube_reserved_cgroup.rstrip("/"), limits.kube, "kube-reserved"),
                (config.system_reserved_cgroup.rstrip("/"), limits.system, "system-reserved"),
            )
            if of_daemons is not None and path
        }

    def _top(self, pods: Sequence[PodCgroups]) -> Iterator[Cgroup]:
        """The pods' root, the cgroups above it, and the reserved ones beside it."""
        root = self._with_cpus(
            self._policy.root_provision(
                self._node, [pod.facts for pod in pods], sum(pod.min_bytes for pod in pods)
            )
        )
        reserved = self._reserved()
        ancestor = self._policy.ancestor_provision(root)
        for depth in range(1, len(self._root)):
            above = self._cgroup(self._root[:depth], Kind.ANCESTOR, ancestor)
            inner = [provision for path, provision in reserved.items() if is_within(path, above.path)]
            yield self._with_settings(above, documents_cgroups.including(ancestor, inner)) if inner else above
        for path, provision in sorted(reserved.items()):  # one may be inside the other
            inner = [reserved[other] for other in reserved if other != path and is_within(other, path)]
            cgroup = Cgroup(
                path, Kind.RESERVED, (), is_ours_to_make=self._node.config.create_reserved_cgroups
            )
            yield self._with_settings(cgroup, documents_cgroups.including(provision, inner))
        if self._root:
            yield self._cgroup(self._root, Kind.ROOT, root)

    def _branch(self, qos: QoSClass, pods: Sequence[PodCgroups], fair: Sequence[int] | None) -> Cgroup:
        min_bytes = sum(pod.min_bytes for pod in pods if pod.facts.qos == qos)
        provision = self._policy.branch_provision(self._node, qos, [pod.facts for pod in pods], min_bytes)
        if fair is not None:
            together = sum(shares for pod, shares in zip(pods, fair, strict=True) if pod.facts.qos == qos)
            shares = min(max(together, amounts.MIN_SHARES), amounts.MAX_SHARES)
            provision = provision._replace(cpu_shares=Amount(shares, "A21", "sum of its pods' fair shares"))
        return self._cgroup(names.branch(self._root, qos), Kind.BRANCH, provision)._replace(qos=str(qos))

    def _pod_cgroups(
        self,
        facts: PodFacts,
        name: names.CgroupName,
        children: Sequence[tuple[Container | None, Provision]],
        min_bytes: int,
    ) -> Iterator[Cgroup]:
        provision = self._policy.pod_provision(self._node, facts, min_bytes)
        key, qos, path = facts.pod.key, str(facts.qos), self._path(name)
        of_pod = settings(self._version, provision, self._weight)
        placed = None if facts.planned.placed is None else dict(facts.planned.placed)
        yield Cgroup(path, Kind.POD, of_pod, pod=key, qos=qos, holds_only_ours=placed is None)
        for container, of_child in children:
            yield Cgroup(
                path=self._child_path(path, facts.pod.metadata.uid, container, placed),
                kind=Kind.CONTAINER if container else Kind.INFRASTRUCTURE,
                settings=settings(self._version, of_child, self._container_weight),
                pod=key,
                container=container.name if container else "",
                qos=qos,
                memory_qos=str(container_class(container, MEMORY)) if container else "",
                cpu_qos=str(container_class(container, CPU)) if container else "",
                oom_score_adj=oom_score_setting(of_child),
                is_killed_whole=of_child.oom_group is not None and of_child.oom_group.value == 1,
                is_ours_to_make=placed is None,
            )

    def _child_path(
        self,
        parent: str,
        uid: str,
        container: Container | None,
        placed: Mapping[str, str] | None,
    ) -> str:
        """`placed` are the directories that a container runtime has chosen for the pod."""
        child = names.container_directory(container.name, self._version) if container else INFRASTRUCTURE
        name = None if placed is None else placed.get(container.name if container else "")
        if name is not None:
            return f"{parent}/{name}"
        if self._naming == Naming.CGROUPFS:
            return f"{parent}/{child}"
        # Processes live in scopes. The name of a unit is unique on the whole system, so it holds the UID of the pod.
        return f"{parent}/evenkeel-{uid.replace('-', '_')}-{child.replace('-', '_')}.scope"

    def _path(self, name: names.CgroupName) -> str:
        return names.to_cgroupfs(name) if self._naming == Naming.CGROUPFS else names.to_systemd(name)

    def _cgroup(self, name: names.CgroupName, kind: Kind, provision: Provision) -> Cgroup:
        return Cgroup(self._path(name), kind, settings(self._version, provision, self._weight))

    def _with_settings(self, cgroup: Cgroup, provision: Provision) -> Cgroup:
        return cgroup._replace(settings=settings(self._version, provision, self._weight))


def present_containers(pod: PlannedPod) -> Iterator[Container]:
    """The containers that exist now. While an init container runs: that one and the sidecars before it. After the last
    init container: the sidecars and the containers. An ephemeral container may run at any time, and once. It has no
    limits of its own; those of the pod hold."""
    spec = pod.pod.spec
    for index, container in enumerate(spec.init_containers):
        runs_now = index == pod.init_container
        is_started = pod.init_container is None or index < pod.init_container
        if runs_now or (container.is_sidecar and is_started):
            yield container
    if not pod.is_starting:
        yield from spec.containers
    yield from (one.container for one in spec.ephemeral_containers if one.name not in pod.ended)


def _cpu_request(facts: PodFacts) -> int:
    return facts.requests.get(CPU, ZERO).milli
