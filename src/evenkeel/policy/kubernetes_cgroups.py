"""What today's kubelet writes to the cgroups of the node, of pods and of containers (profile `kubernetes`).

The amounts are kubelet's own: shares rather than weight, a quota, a limit, and the `unified` values that it passes to
the runtime. `memoryReservationPolicy: TieredReservation` protects Guaranteed pods with `memory.min` and Burstable pods
with `memory.low`; `memoryThrottlingFactor` sets `memory.high` between request and limit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypedDict

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceList, hugepage_bytes, is_hugepages
from evenkeel.policy import amounts
from evenkeel.policy.allocatable import CgroupLimits
from evenkeel.policy.amounts import PAGE_BYTES, bytes_text, cores_text
from evenkeel.policy.node_view import KubeletSettings, NodeView
from evenkeel.policy.oom import oom_score_adj
from evenkeel.policy.pod_resources import has_pod_level_resources, pod_limits
from evenkeel.policy.provision import NO_LIMIT, Amount, Cpus, PodFacts, Provision, Quota
from evenkeel.policy.qos import QoSClass, is_critical
from evenkeel.quantity import ZERO, Quantity

TIERED = "TieredReservation"
LIMITED_SWAP = "LimitedSwap"
SANDBOX_SCORE = -998
_RULE = "kubelet"
# Kubelet sets no burst. A burst of the documents profile must be removed before the quota can fall below it.
_NO_BURST = Amount(0, _RULE, "no burst")
_NO_BOUND = 1 << 62  # what kubelet writes for unlimited huge pages


class CgroupConfig(NamedTuple):
    """Amounts for one cgroup. None means "not set"."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_bytes: int | None = None
    unified: Mapping[str, str] = MappingProxyType({})
    hugepage_bytes: Mapping[int, int] = MappingProxyType({})


class ContainerConfig(NamedTuple):
    """What kubelet asks of the container runtime. 0 means "no limit"."""

    oom_score_adj: int
    cpu_shares: int
    cpu_quota_us: int
    cpu_period_us: int
    memory_bytes: int
    unified: Mapping[str, str]
    hugepage_bytes: Mapping[int, int]


def container_provision(node: NodeView, facts: PodFacts, container: Container) -> Provision:
    config = container_config(facts.pod, container, node.kubelet, facts.qos)
    exclusive = facts.planned.exclusive_cpus.get(container.name)
    is_exempt = exclusive is not None and node.config.feature("DisableCPUQuotaWithExclusiveCPUs")
    unlimited = not config.cpu_quota_us or is_exempt
    quota = Quota(
        NO_LIMIT if unlimited else config.cpu_quota_us,
        config.cpu_period_us or amounts.DEFAULT_PERIOD_US,
        _RULE,
        "no cpu limit, or one that is not enforced" if unlimited else "cpu limit of the container or its pod",
    )
    cpus = exclusive or facts.planned.shared_cpus
    limited = Amount(config.memory_bytes, _RULE, f"memory limit {bytes_text(config.memory_bytes)}")
    provision = Provision(
        cpu_shares=Amount(config.cpu_shares, _RULE, "cpu request"),
        cpu_quota=quota,
        cpu_burst_us=_NO_BURST,
        cpus=Cpus(cpus, _RULE, "static cpu manager") if cpus else None,
        memory_max=limited if config.memory_bytes else Amount(NO_LIMIT, _RULE, "no memory limit"),
        **_hugepages(node, config.hugepage_bytes, "limit of the container"),
        oom_group=Amount(1, _RULE, "singleProcessOOMKill is off")
        if node.config.oom_group_kill
        else Amount(0, _RULE, "singleProcessOOMKill is on"),
        oom_score_adj=Amount(config.oom_score_adj, _RULE, "class of the pod, and memory requested"),
    )
    return _with_unified(node, provision, config.unified)


def infrastructure_provision(node: NodeView, pod: Pod) -> Provision:
    """The sandbox. Kubelet leaves its cgroup alone and sets only the OOM score of its process."""
    return Provision(
        cpu_shares=Amount(amounts.MIN_SHARES, _RULE, "the sandbox requests nothing"),
        oom_score_adj=Amount(SANDBOX_SCORE, _RULE, "sandbox"),
    )


def pod_provision(node: NodeView, facts: PodFacts, min_bytes: int) -> Provision:
    settings = node.kubelet
    if facts.planned.exclusive_cpus and node.config.feature("DisableCPUQuotaWithExclusiveCPUs"):
        settings = settings._replace(enforce_cpu_limits=False)
    pids = node.config.pod_pids_limit
    config = pod_config(facts.pod, settings, facts.qos, facts.requests)
    provision = _provision(node, config, "requests of the pod", "limits of the pod")
    return provision._replace(
        cpu_burst_us=_NO_BURST,
        pids_max=Amount(pids, _RULE, "podPidsLimit")
        if pids > 0
        else Amount(NO_LIMIT, _RULE, "no podPidsLimit"),
    )


def branch_provision(node: NodeView, qos: QoSClass, pods: Sequence[PodFacts], min_bytes: int) -> Provision:
    provision = _provision(node, _qos_configs(node, pods)[qos], "requests of its pods", "qosReserved")
    return provision._replace(cpu_quota=None, **_unbounded_hugepages(node))


def root_provision(node: NodeView, pods: Sequence[PodFacts], min_bytes: int) -> Provision:
    limits = node.pods_limits
    assert limits.millicpu is not None
    config = _qos_configs(node, pods)[QoSClass.GUARANTEED]
    # If `pods` is not enforced these are the size of the machine. Kubelet writes that, too.
    provision = Provision(
        cpu_shares=Amount(
            amounts.shares(limits.millicpu), _RULE, f"allocatable cpu {cores_text(limits.millicpu)}"
        ),
        memory_max=_limit(limits.memory_bytes, "capacity less what is reserved"),
        pids_max=_limit(limits.pids, "pids less what is reserved"),
        cpus=_all_cpus(node),
        # Kubelet limits them when it starts, but removes the limit each time it updates the QoS cgroups.
        **_unbounded_hugepages(node),
    )
    return _with_unified(node, provision, config.unified)


def ancestor_provision(root: Provision) -> Provision:
    """Kubelet leaves a cgroup root above its own alone. Protection must pass through it all the same, or is none."""
    return Provision(memory_min=root.memory_min, memory_low=root.memory_low)


def _all_cpus(node: NodeView) -> Cpus | None:
    """So that systemd keeps the cpuset controller. The static policy writes its own sets."""
    if node.config.cpu_manager_policy == "static":
        return None
    return Cpus(node.capacity.cpu_numbers, _RULE, "cpuManagerPolicy none: every CPU")


def reserved_provision(node: NodeView, limits: CgroupLimits, what: str) -> Provision:
    reason = f"{what} is enforced"
    protected = limits.memory_bytes if node.memory_qos else None
    return Provision(
        cpu_shares=Amount(amounts.shares(limits.millicpu), _RULE, reason)
        if limits.millicpu is not None
        else None,
        cpus=_all_cpus(node),
        memory_min=None if protected is None else Amount(protected, _RULE, f"{reason}, and MemoryQoS is on"),
        memory_max=Amount(limits.memory_bytes, _RULE, reason) if limits.memory_bytes is not None else None,
        pids_max=Amount(limits.pids, _RULE, reason) if limits.pids is not None else None,
        **_hugepages(node, limits.hugepage_bytes, reason),
    )


def _qos_configs(node: NodeView, pods: Sequence[PodFacts]) -> Mapping[QoSClass, CgroupConfig]:
    percent = node.config.qos_reserved.get(MEMORY) if node.config.feature("QOSReserved") else None
    return qos_configs(
        ((facts.qos, facts.requests) for facts in pods),
        tiered=node.memory_qos and node.config.memory_reservation_policy == TIERED,
        allocatable_bytes=node.kubelet.allocatable_bytes,
        reserved_percent=int(percent.removesuffix("%")) if percent else None,
    )


def _provision(node: NodeView, config: CgroupConfig, shares_reason: str, limit_reason: str) -> Provision:
    # Kubelet sets no period without a quota.
    period = config.cpu_period_us or amounts.DEFAULT_PERIOD_US
    quota = config.cpu_quota_us or NO_LIMIT
    provision = Provision(
        cpu_shares=None if config.cpu_shares is None else Amount(config.cpu_shares, _RULE, shares_reason),
        cpu_quota=Quota(
            quota, period, _RULE, limit_reason if quota != NO_LIMIT else "not every container has a limit"
        ),
        memory_max=_limit(config.memory_bytes, limit_reason),
        **_hugepages(node, config.hugepage_bytes, "requests of the pod"),
    )
    return _with_unified(node, provision, config.unified)


def _with_unified(node: NodeView, provision: Provision, unified: Mapping[str, str]) -> Provision:
    """The values that kubelet passes through. All others get the kernel's default, so that a rollback restores them."""
    reserved = f"memoryReservationPolicy {node.config.memory_reservation_policy}"
    high = unified.get("memory.high", "max")
    swap = unified.get("memory.swap.max")
    return provision._replace(
        memory_min=Amount(int(unified.get("memory.min", "0")), _RULE, reserved),
        memory_low=Amount(int(unified.get("memory.low", "0")), _RULE, reserved),
        memory_high=Amount(NO_LIMIT, _RULE, "no memoryThrottlingFactor, or not above the request")
        if high == "max"
        else Amount(int(high), _RULE, f"memoryThrottlingFactor {node.config.memory_throttling_factor}"),
        swap_max=None if swap is None else Amount(int(swap), _RULE, "memorySwap.swapBehavior"),
    )


class _Hugepages(TypedDict):
    hugepages: Mapping[int, Amount]
    hugepages_when_reserved: bool


def _hugepages(node: NodeView, asked_bytes: Mapping[int, int], reason: str) -> _Hugepages:
    """For every page size of the machine: the amount asked for, or zero."""
    sizes = {**dict.fromkeys(node.capacity.hugepages, 0), **asked_bytes}
    amounts = {
        size: Amount(amount, _RULE, reason if amount else "none asked for") for size, amount in sizes.items()
    }
    return {"hugepages": amounts, "hugepages_when_reserved": True}


def _unbounded_hugepages(node: NodeView) -> _Hugepages:
    return _hugepages(node, dict.fromkeys(node.capacity.hugepages, _NO_BOUND), "not bounded above the pods")


def _limit(value: int | None, reason: str) -> Amount:
    return Amount(NO_LIMIT, _RULE, "no limit") if value is None else Amount(value, _RULE, reason)


# The amounts that kubelet computes, before they become files


def pod_config(pod: Pod, node: KubeletSettings, qos: QoSClass, requests: ResourceList) -> CgroupConfig:
    """The pod's cgroup. `qos` and `requests` are those of the pod."""
    limits = pod_limits(pod)
    shares, quota, period, memory = amounts.MIN_SHARES, None, None, None
    if qos != QoSClass.BEST_EFFORT:
        shares = amounts.shares(requests.get(CPU, ZERO).milli)
        if qos == QoSClass.GUARANTEED or is_limited_whole(pod, CPU):
            period = node.cpu_period_us
            quota = (
                amounts.quota_us(limits.get(CPU, ZERO).milli, period)
                if node.enforce_cpu_limits
                else amounts.NO_QUOTA
            )
        if qos == QoSClass.GUARANTEED or is_limited_whole(pod, MEMORY):
            memory = limits.get(MEMORY, ZERO).value
    unified: dict[str, str] = {}
    if node.memory_qos:
        request = requests.get(MEMORY, ZERO).value
        if node.reservation_policy == TIERED and request > 0:
            unified[_protection(qos)] = str(request)
        if (
            node.throttling_factor is not None
            and has_pod_level_resources(pod)
            and is_limited_whole(pod, MEMORY)
        ):
            limit = limits.get(MEMORY, ZERO).value
            high = memory_high(request, limit, node.throttling_factor)
            if limit > request and high > request:
                unified["memory.high"] = str(high)
    return CgroupConfig(shares, quota, period, memory, unified, _hugepages_in(requests))


def is_limited_whole(pod: Pod, resource: str) -> bool:
    """Whether the pod as a whole has a limit: the pod itself, or every container including init containers."""
    if pod.spec.resources is not None and pod.spec.resources.limits.get(resource):
        return True
    return all(container.resources.limits.get(resource) for container in pod.spec.every_container)


def qos_configs(
    pods: Iterable[tuple[QoSClass, ResourceList]],
    *,
    tiered: bool,
    allocatable_bytes: int,
    reserved_percent: int | None = None,
) -> Mapping[QoSClass, CgroupConfig]:
    """The QoS cgroups, from the classes and requests of all pods. Guaranteed stands for the pods' root."""
    burstable_millicpu = 0
    requested_bytes = {QoSClass.GUARANTEED: 0, QoSClass.BURSTABLE: 0}
    for qos, requests in pods:
        if qos == QoSClass.BEST_EFFORT:
            continue
        requested_bytes[qos] += requests.get(MEMORY, ZERO).value
        if qos == QoSClass.BURSTABLE:
            burstable_millicpu += requests.get(CPU, ZERO).milli
    guaranteed = CgroupConfig()
    burstable = CgroupConfig(cpu_shares=amounts.shares(burstable_millicpu))
    best_effort = CgroupConfig(cpu_shares=amounts.MIN_SHARES)
    if tiered:
        low = {"memory.low": str(requested_bytes[QoSClass.BURSTABLE])}
        guaranteed = guaranteed._replace(unified={"memory.min": str(sum(requested_bytes.values())), **low})
        burstable = burstable._replace(unified=low)
    if reserved_percent is not None and allocatable_bytes:
        # `qosReserved`: a percentage of what higher classes request is kept from lower classes.
        left = allocatable_bytes - requested_bytes[QoSClass.GUARANTEED] * reserved_percent // 100
        burstable = burstable._replace(memory_bytes=left)
        left -= requested_bytes[QoSClass.BURSTABLE] * reserved_percent // 100
        best_effort = best_effort._replace(memory_bytes=left)
    return {QoSClass.GUARANTEED: guaranteed, QoSClass.BURSTABLE: burstable, QoSClass.BEST_EFFORT: best_effort}


def container_config(pod: Pod, container: Container, node: KubeletSettings, qos: QoSClass) -> ContainerConfig:
    cpu_limit = effective_limit(pod, container, CPU)
    # A container without a request requests its limit.
    cpu_request = container.resources.requests.get(CPU, cpu_limit)
    return ContainerConfig(
        oom_score_adj=oom_score_adj(pod, container, node.capacity_bytes, Profile.KUBERNETES, qos),
        cpu_shares=amounts.shares(cpu_request.milli),
        cpu_quota_us=amounts.quota_us(cpu_limit.milli, node.cpu_period_us) if node.enforce_cpu_limits else 0,
        cpu_period_us=node.cpu_period_us if node.enforce_cpu_limits else 0,
        memory_bytes=effective_limit(pod, container, MEMORY).value,
        unified={
            **_swap(pod, container, node, qos),
            **_memory_qos(pod, container, node, qos),
            **_oom_group(node),
        },
        hugepage_bytes=_hugepages_in(
            {**(pod.spec.resources.limits if pod.spec.resources else {}), **container.resources.limits}
        ),
    )


def effective_limit(pod: Pod, container: Container, resource: str) -> Quantity:
    """The limit of the container, or the pod's limit if the container has none."""
    own = container.resources.limits.get(resource, ZERO)
    if own or pod.spec.resources is None:
        return own
    return pod.spec.resources.limits.get(resource, ZERO)


def memory_high(request_bytes: int, limit_bytes: int, factor: float) -> int:
    """A point between request and limit, rounded down to a page. Floating point, as kubelet computes it."""
    high = math.floor(float(request_bytes) + (float(limit_bytes) - float(request_bytes)) * factor)
    return int(high / PAGE_BYTES) * PAGE_BYTES


def _protection(qos: QoSClass) -> str:
    return "memory.min" if qos == QoSClass.GUARANTEED else "memory.low"


def _memory_qos(pod: Pod, container: Container, node: KubeletSettings, qos: QoSClass) -> dict[str, str]:
    if not node.memory_qos:
        return {"memory.high": "max"}
    request = container.resources.requests.get(MEMORY, ZERO).value
    limit = container.resources.limits.get(MEMORY, ZERO)
    is_throttled_by_pod = not limit and bool(effective_limit(pod, container, MEMORY))
    unified = {"memory.min": "0", "memory.low": "0"}
    if node.reservation_policy == TIERED and request > 0:
        unified = {_protection(qos): str(request)}
    if node.throttling_factor is not None and not is_throttled_by_pod:
        high = memory_high(request, limit.value or node.allocatable_bytes, node.throttling_factor)
        if high > request:
            unified["memory.high"] = str(high)
    return unified


def _swap(pod: Pod, container: Container, node: KubeletSettings, qos: QoSClass) -> dict[str, str]:
    if not node.has_swap_controller:
        return {}
    request = container.resources.requests.get(MEMORY, ZERO)
    limit = container.resources.limits.get(MEMORY, ZERO)
    may_swap = (
        node.swap_behavior == LIMITED_SWAP
        and not is_critical(pod, Profile.KUBERNETES)
        and qos == QoSClass.BURSTABLE
        and request
        and request != limit
        and request.value <= node.capacity_bytes
    )
    if not may_swap:
        return {"memory.swap.max": "0"}
    # The container gets the same part of the swap as its request is of the memory.
    return {"memory.swap.max": str(int(request.value / node.capacity_bytes * node.swap_bytes))}


def _oom_group(node: KubeletSettings) -> dict[str, str]:
    return {"memory.oom.group": "1"} if node.single_process_oom_kill is False else {}


def _hugepages_in(resources: ResourceList) -> dict[int, int]:
    return {hugepage_bytes(name): amount.value for name, amount in resources.items() if is_hugepages(name)}
