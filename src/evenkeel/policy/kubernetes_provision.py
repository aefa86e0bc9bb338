"""Kubelet's amounts (`kubernetes_cgroups`) as provisions with their reasons (profile `kubernetes`)."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.policy import kernel_amounts
from evenkeel.policy.allocatable import CgroupLimits
from evenkeel.policy.kubernetes_cgroups import (
    TIERED,
    CgroupConfig,
    container_config,
    pod_config,
    qos_configs,
)
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import NO_LIMIT, Amount, Cpus, PodFacts, Provision, Quota
from evenkeel.policy.qos import QoSClass
from evenkeel.policy.units import bytes_text, cores_text

SANDBOX_SCORE = -998
_RULE = "kubelet"
# Kubelet sets none; what our own profile may have left must go before a quota can fall below it.
_NO_BURST = Amount(0, _RULE, "no burst")
_NO_BOUND = 1 << 62  # what kubelet writes for huge pages that are not to be limited


def container_provision(node: NodeView, facts: PodFacts, container: Container) -> Provision:
    config = container_config(facts.pod, container, node.kubelet, facts.qos)
    exclusive = facts.moment.exclusive_cpus.get(container.name)
    is_exempt = exclusive is not None and node.config.feature("DisableCPUQuotaWithExclusiveCPUs")
    unlimited = not config.cpu_quota_us or is_exempt
    quota = Quota(
        NO_LIMIT if unlimited else config.cpu_quota_us,
        config.cpu_period_us or kernel_amounts.DEFAULT_PERIOD_US,
        _RULE,
        "no cpu limit, or one that is not enforced" if unlimited else "cpu limit of the container or its pod",
    )
    cpus = exclusive or facts.moment.shared_cpus
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
    """The sandbox: kubelet leaves its cgroup alone and only sets the score of its process."""
    return Provision(
        cpu_shares=Amount(kernel_amounts.MIN_SHARES, _RULE, "the sandbox requests nothing"),
        oom_score_adj=Amount(SANDBOX_SCORE, _RULE, "sandbox"),
    )


def pod_provision(node: NodeView, facts: PodFacts, min_bytes: int) -> Provision:
    settings = node.kubelet
    if facts.moment.exclusive_cpus and node.config.feature("DisableCPUQuotaWithExclusiveCPUs"):
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


def branch_provision(
    node: NodeView,
    qos: QoSClass,
    pods: Sequence[PodFacts],
    min_bytes: int,
) -> Provision:
    provision = _provision(node, _qos_configs(node, pods)[qos], "requests of its pods", "qosReserved")
    return provision._replace(
        cpu_quota=None,
        **_unbounded_hugepages(node),
    )


def root_provision(node: NodeView, pods: Sequence[PodFacts], min_bytes: int) -> Provision:
    limits = node.pods_limits
    assert limits.millicpu is not None
    config = _qos_configs(node, pods)[QoSClass.GUARANTEED]
    # Where `pods` is not enforced these are the machine's own size: kubelet sets that all the same.
    provision = Provision(
        cpu_shares=Amount(
            kernel_amounts.shares(limits.millicpu), _RULE, f"allocatable cpu {cores_text(limits.millicpu)}"
        ),
        memory_max=_limit(limits.memory_bytes, "capacity less what is reserved"),
        pids_max=_limit(limits.pids, "pids less what is reserved"),
        # Limited to what is allocatable at the start, but unbounded again whenever the branches are looked after.
        **_unbounded_hugepages(node),
    )
    return _with_unified(node, provision, config.unified)


def reserved_provision(node: NodeView, limits: CgroupLimits, what: str) -> Provision:
    reason = f"{what} is enforced"
    return Provision(
        cpu_shares=Amount(kernel_amounts.shares(limits.millicpu), _RULE, reason)
        if limits.millicpu is not None
        else None,
        memory_max=Amount(limits.memory_bytes, _RULE, reason) if limits.memory_bytes is not None else None,
        pids_max=Amount(limits.pids, _RULE, reason) if limits.pids is not None else None,
        **_hugepages(node, limits.hugepage_bytes, reason),
    )


def _qos_configs(node: NodeView, pods: Sequence[PodFacts]) -> Mapping[QoSClass, CgroupConfig]:
    percent = node.config.qos_reserved.get(MEMORY) if node.config.feature("QOSReserved") else None
    return qos_configs(
        ((facts.qos, facts.requests) for facts in pods),
        tiered=node.memory_qos and node.config.memory_reservation_policy == TIERED,
        allocatable_bytes=node.allocatable_bytes,
        reserved_percent=int(percent.removesuffix("%")) if percent else None,
    )


def _provision(node: NodeView, config: CgroupConfig, shares_reason: str, limit_reason: str) -> Provision:
    # Where kubelet sets no quota it sets no period either.
    period = config.cpu_period_us or kernel_amounts.DEFAULT_PERIOD_US
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
    """The values kubelet passes through, and the kernel's defaults for those it does not (so that a rollback does
    restore them)."""
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
    """Of every page size that the machine has: what is asked for, or none."""
    sizes = {**dict.fromkeys(node.capacity.hugepages, 0), **asked_bytes}
    amounts = {
        size: Amount(amount, _RULE, reason if amount else "none asked for") for size, amount in sizes.items()
    }
    return {"hugepages": amounts, "hugepages_when_reserved": True}


def _unbounded_hugepages(node: NodeView) -> _Hugepages:
    return _hugepages(node, dict.fromkeys(node.capacity.hugepages, _NO_BOUND), "not bounded above the pods")


def _limit(value: int | None, reason: str) -> Amount:
    return Amount(NO_LIMIT, _RULE, "no limit") if value is None else Amount(value, _RULE, reason)
