"""What one cgroup is to be given, before it becomes files: amounts, each with the rule it came from.

Both profiles fill this in (`documents_cgroups`, `kubernetes_cgroups`), and the plan turns it into the files of the
kernel's cgroup version. None is "not ours to set"; `NO_LIMIT` is the kernel's own "no limit", written out so that a
limit which is taken away is taken away in the kernel too (B13, C4).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.aggregate import Totals
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
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
    # Whether these count when pages are reserved, too, or only when used.
    hugepages_when_reserved: bool = False
    oom_score_adj: Amount | None = None


class PlannedPod(NamedTuple):
    """An admitted pod at one moment of its life: `init_container` is the index of the one that runs now, None once the
    last has finished (D3). `exclusive_cpus` are the cores of its own that a container has, `shared_cpus` those that
    its other containers run on; none are all (A23). `placed` are the cgroups that a container runtime has made: by
    container, or "" for the pod's own, what it calls them; None where we make them ourselves."""

    pod: Pod
    init_container: int | None = None
    exclusive_cpus: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    shared_cpus: tuple[int, ...] = ()
    placed: tuple[tuple[str, str], ...] | None = None

    @property
    def is_starting(self) -> bool:
        return self.init_container is not None

    @property
    def awaits_init(self) -> bool:
        """Whether an init container is still to finish; sidecars never do, and hold nothing back (D3)."""
        left = self.pod.spec.init_containers[self.init_container :] if self.is_starting else ()
        return not all(container.is_sidecar for container in left)


class PodFacts(NamedTuple):
    """What every level of the tree asks of a pod, computed once."""

    planned: PlannedPod
    qos: QoSClass
    requests: Totals

    @property
    def pod(self) -> Pod:
        return self.planned.pod


def pod_facts(planned: PlannedPod, profile: Profile) -> PodFacts:
    requests = pod_requests(planned.pod, with_pod_level=profile == Profile.KUBERNETES)
    return PodFacts(planned, pod_class(planned.pod, profile), requests)
