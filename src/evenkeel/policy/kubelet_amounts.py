"""The amounts that kubelet computes for the cgroups of pods and containers (profile `kubernetes`).

They are kubelet's own: shares rather than weight, a quota, a limit, and the `unified` values that it passes to the
runtime. `memoryReservationPolicy: TieredReservation` protects Guaranteed pods with `memory.min` and Burstable pods with
`memory.low`; `memoryThrottlingFactor` sets `memory.high` between request and limit. `make conformance` compares them
with kubelet's.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceList, hugepage_bytes, is_hugepages
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy import amounts
from evenkeel.policy.amounts import PAGE_BYTES
from evenkeel.policy.node_view import KubeletSettings
from evenkeel.policy.oom_score import oom_score_adj
from evenkeel.policy.pod_resources import has_pod_level_resources, pod_limits
from evenkeel.policy.qos import QoSClass, is_critical
from evenkeel.quantity import ZERO, Quantity

TIERED = "TieredReservation"
LIMITED_SWAP = "LimitedSwap"


class CgroupConfig(NamedTuple):
    """Amounts for one cgroup. None means "not set"."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_bytes: int | None = None
    unified: Mapping[str, str] = MappingProxyType({})
    hugepage_bytes: Mapping[int, int] = MappingProxyType({})


class ContainerConfig(NamedTuple):
    """The amounts that kubelet passes to the container runtime. 0 means "no limit"."""

    oom_score_adj: int
    cpu_shares: int
    cpu_quota_us: int
    cpu_period_us: int
    memory_bytes: int
    unified: Mapping[str, str]
    hugepage_bytes: Mapping[int, int]


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
    return all(container.resources.limits.get(resource) for container in pod.spec.sized_containers)


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
