"""What today's kubelet sets on pod, QoS and container cgroups (profile `kubernetes`).

The amounts are kubelet's own, before they become files: shares rather than weight, a quota, a limit, and the `unified`
values it passes through. `memoryReservationPolicy: TieredReservation` protects Guaranteed pods by `memory.min` and
Burstable ones by `memory.low`; `memoryThrottlingFactor` sets `memory.high` between request and limit.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceList, hugepage_bytes, is_hugepages
from evenkeel.policy import kernel_amounts
from evenkeel.policy.kernel_amounts import PAGE_BYTES
from evenkeel.policy.node_view import KubeletSettings
from evenkeel.policy.oom import oom_score_adj
from evenkeel.policy.pod_resources import has_pod_level_resources, pod_limits
from evenkeel.policy.qos import QoSClass, is_critical
from evenkeel.quantity import ZERO, Quantity

TIERED = "TieredReservation"
LIMITED_SWAP = "LimitedSwap"


class CgroupConfig(NamedTuple):
    """Amounts for one cgroup; None is not set."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_bytes: int | None = None
    unified: Mapping[str, str] = MappingProxyType({})
    hugepage_bytes: Mapping[int, int] = MappingProxyType({})


class ContainerConfig(NamedTuple):
    """What the container runtime is told; 0 is no limit."""

    oom_score_adj: int
    cpu_shares: int
    cpu_quota_us: int
    cpu_period_us: int
    memory_bytes: int
    unified: Mapping[str, str]
    hugepage_bytes: Mapping[int, int]


def pod_config(pod: Pod, node: KubeletSettings, qos: QoSClass, requests: ResourceList) -> CgroupConfig:
    """The pod's own cgroup; `qos` and `requests` are the pod's."""
    limits = pod_limits(pod)
    shares, quota, period, memory = kernel_amounts.MIN_SHARES, None, None, None
    if qos != QoSClass.BEST_EFFORT:
        shares = kernel_amounts.shares(requests.get(CPU, ZERO).milli)
        if qos == QoSClass.GUARANTEED or is_limited_whole(pod, CPU):
            period = node.cpu_period_us
            quota = (
                kernel_amounts.quota_us(limits.get(CPU, ZERO).milli, period)
                if node.enforce_cpu_limits
                else kernel_amounts.NO_QUOTA
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
    return CgroupConfig(shares, quota, period, memory, unified, _hugepages(requests))


def is_limited_whole(pod: Pod, resource: str) -> bool:
    """Whether the pod as a whole has a limit: every container, init containers included, or the pod itself."""
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
    """The Burstable and BestEffort branches, and (as Guaranteed) the pods' root, from pods' classes and requests."""
    burstable_millicpu = 0
    requested_bytes = {QoSClass.GUARANTEED: 0, QoSClass.BURSTABLE: 0}
    for qos, requests in pods:
        if qos == QoSClass.BEST_EFFORT:
            continue
        requested_bytes[qos] += requests.get(MEMORY, ZERO).value
        if qos == QoSClass.BURSTABLE:
            burstable_millicpu += requests.get(CPU, ZERO).milli
    guaranteed = CgroupConfig()
    burstable = CgroupConfig(cpu_shares=kernel_amounts.shares(burstable_millicpu))
    best_effort = CgroupConfig(cpu_shares=kernel_amounts.MIN_SHARES)
    if tiered:
        low = {"memory.low": str(requested_bytes[QoSClass.BURSTABLE])}
        guaranteed = guaranteed._replace(unified={"memory.min": str(sum(requested_bytes.values())), **low})
        burstable = burstable._replace(unified=low)
    if reserved_percent is not None and allocatable_bytes:
        # `qosReserved`: what higher classes request is kept from lower ones, in part or whole.
        left = allocatable_bytes - requested_bytes[QoSClass.GUARANTEED] * reserved_percent // 100
        burstable = burstable._replace(memory_bytes=left)
        left -= requested_bytes[QoSClass.BURSTABLE] * reserved_percent // 100
        best_effort = best_effort._replace(memory_bytes=left)
    return {QoSClass.GUARANTEED: guaranteed, QoSClass.BURSTABLE: burstable, QoSClass.BEST_EFFORT: best_effort}


def container_config(pod: Pod, container: Container, node: KubeletSettings, qos: QoSClass) -> ContainerConfig:
    """What the runtime is told of one container."""
    cpu_limit = effective_limit(pod, container, CPU)
    # A request that is not stated is the limit.
    cpu_request = container.resources.requests.get(CPU, cpu_limit)
    return ContainerConfig(
        oom_score_adj=oom_score_adj(pod, container, node.capacity_bytes, Profile.KUBERNETES, qos),
        cpu_shares=kernel_amounts.shares(cpu_request.milli),
        cpu_quota_us=kernel_amounts.quota_us(cpu_limit.milli, node.cpu_period_us)
        if node.enforce_cpu_limits
        else 0,
        cpu_period_us=node.cpu_period_us if node.enforce_cpu_limits else 0,
        memory_bytes=effective_limit(pod, container, MEMORY).value,
        unified={
            **_swap(pod, container, node, qos),
            **_memory_qos(pod, container, node, qos),
            **_oom_group(node),
        },
        hugepage_bytes=_hugepages(
            {**(pod.spec.resources.limits if pod.spec.resources else {}), **container.resources.limits}
        ),
    )


def effective_limit(pod: Pod, container: Container, resource: str) -> Quantity:
    """The container's limit, or where it has none the pod's."""
    own = container.resources.limits.get(resource, ZERO)
    if own or pod.spec.resources is None:
        return own
    return pod.spec.resources.limits.get(resource, ZERO)


def memory_high(request_bytes: int, limit_bytes: int, factor: float) -> int:
    """Between request and limit by `factor`, down to a page; in floating point, as kubelet computes it."""
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
    )
    if not may_swap:
        return {"memory.swap.max": "0"}
    # A container's part of the swap is its part of the node's memory.
    return {"memory.swap.max": str(int(request.value / node.capacity_bytes * node.swap_bytes))}


def _oom_group(node: KubeletSettings) -> dict[str, str]:
    return {"memory.oom.group": "1"} if node.single_process_oom_kill is False else {}


def _hugepages(resources: ResourceList) -> dict[int, int]:
    return {hugepage_bytes(name): amount.value for name, amount in resources.items() if is_hugepages(name)}
