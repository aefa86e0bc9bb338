"""Provision: what a cgroup is to get, as amounts with the rule and the reason of each.

Both profiles compute it (`documents_cgroups`, `kubernetes_cgroups`), and the plan turns it into files of the kernel's
cgroup version. None means "Evenkeel does not set it". `NO_LIMIT` is the "no limit" of the kernel: it is written, so
that a limit that was removed is removed in the kernel, too (B13, C4).
"""

from collections.abc import Mapping
from types import MappingProxyType

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import Totals
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.pod_resources import pod_requests
from evenkeel.policy.qos import QoSClass, pod_class

NO_LIMIT = -1


class Amount(NamedTuple):
    value: int
    rule: str
    reason: str


class Quota(NamedTuple):
    """CPU time per period; `quota_us` may be NO_LIMIT."""

    quota_us: int
    period_us: int
    rule: str
    reason: str


class Cpus(NamedTuple):
    cpus: tuple[int, ...]
    rule: str
    reason: str


class Provision(NamedTuple):
    cpu_shares: Amount | None = None
    cpu_quota: Quota | None = None
    cpu_burst_us: Amount | None = None
    cpus: Cpus | None = None
    memory_min: Amount | None = None
    memory_low: Amount | None = None
    memory_high: Amount | None = None
    memory_max: Amount | None = None
    memory_soft_limit: Amount | None = None
    swap_max: Amount | None = None
    swappiness: Amount | None = None  # v1 has no limit on swap alone
    oom_group: Amount | None = None
    pids_max: Amount | None = None
    hugepages: Mapping[int, Amount] = MappingProxyType({})
    # Whether pages count as soon as they are reserved, and not only when they are used.
    hugepages_when_reserved: bool = False
    oom_score_adj: Amount | None = None


class PlannedPod(NamedTuple):
    """An admitted pod, as the plan needs it.

    `init_container` is the index of the init container that runs now; None once all have finished (D3).
    `exclusive_cpus` are the exclusive cores of each container, `shared_cpus` the cores of all others; an empty tuple
    means all cores (A23). `placed` names the cgroups that a container runtime has made, by container ("" is the pod's
    own cgroup); None if Evenkeel makes them itself. `ended` are the ephemeral containers that have ended: none of them
    starts again.
    """

    pod: Pod
    init_container: int | None = None
    exclusive_cpus: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    shared_cpus: tuple[int, ...] = ()
    placed: tuple[tuple[str, str], ...] | None = None
    ended: tuple[str, ...] = ()

    @property
    def is_starting(self) -> bool:
        return self.init_container is not None

    @property
    def awaits_init(self) -> bool:
        """Whether an init container has still to finish. Sidecars do not finish and do not count (D3)."""
        left = self.pod.spec.init_containers[self.init_container :] if self.is_starting else ()
        return not all(container.is_sidecar for container in left)


class PodFacts(NamedTuple):
    """The facts about a pod that every level of the tree needs, computed once."""

    planned: PlannedPod
    qos: QoSClass
    requests: Totals

    @property
    def pod(self) -> Pod:
        return self.planned.pod


def pod_facts(planned: PlannedPod, profile: Profile) -> PodFacts:
    requests = pod_requests(planned.pod, with_pod_level=profile == Profile.KUBERNETES)
    return PodFacts(planned, pod_class(planned.pod, profile), requests)
