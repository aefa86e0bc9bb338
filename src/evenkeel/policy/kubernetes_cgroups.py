"""The cgroups of the node, of pods and of containers as today's kubelet sets them (profile `kubernetes`).

Every amount comes from `kubelet_amounts`. Here it gets its reason, and its place in the tree of cgroups.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.policy import amounts
from evenkeel.policy.allocatable import CgroupLimits
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.policy.kubelet_amounts import TIERED, CgroupConfig, container_config, pod_config, qos_configs
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import NO_LIMIT, Amount, Cpus, PodFacts, Provision, Quota
from evenkeel.policy.qos import QoSClass

SANDBOX_SCORE = -998
_RULE = "kubelet"
# Kubelet sets no burst. A burst of the documents profile must be removed before the quota can fall below it.
_NO_BURST = Amount(0, _RULE, "no burst")
_NO_BOUND = 1 << 62  # what kubelet writes for unlimited huge pages


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
    assert limits.cpu_shares is not None
    config = _qos_configs(node, pods)[QoSClass.GUARANTEED]
    # If `pods` is not enforced these are the size of the machine. Kubelet writes that, too.
    provision = Provision(
        cpu_shares=Amount(limits.cpu_shares, _RULE, f"allocatable cpu {cores_text(limits.millicpu)}"),
        memory_max=_limit(limits.memory_bytes, "capacity less what is reserved"),
        pids_max=_limit(limits.pids, "pids less what is reserved"),
        cpus=_all_cpus(node),
        # Kubelet limits them when it starts, but removes the limit each time it updates the QoS cgroups.
        **_unbounded_hugepages(node),
    )
    return _with_unified(node, provision, config.unified)


def ancestor_provision(root: Provision) -> Provision:
    """Kubelet leaves a cgroup root above its own alone. Protection must pass through it all the same: without it the
    kernel would not protect the cgroups below."""
    return Provision(memory_min=root.memory_min, memory_low=root.memory_low)


def _all_cpus(node: NodeView) -> Cpus | None:
    """All CPUs. It is set so that systemd keeps the cpuset controller. The static policy writes its own sets."""
    if node.config.cpu_manager_policy == "static":
        return None
    return Cpus(node.capacity.cpu_numbers, _RULE, "cpuManagerPolicy none: every CPU")


def reserved_provision(node: NodeView, limits: CgroupLimits, what: str) -> Provision:
    reason = f"{what} is enforced"
    protected = limits.memory_bytes if node.memory_qos else None
    return Provision(
        cpu_shares=Amount(limits.cpu_shares, _RULE, reason) if limits.cpu_shares is not None else None,
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
