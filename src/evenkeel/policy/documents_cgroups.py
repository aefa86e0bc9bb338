"""The cgroups of the node, of pods and of containers as the documents set them (profile `documents`)."""

from collections.abc import Mapping, Sequence

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, hugepage_bytes, is_hugepages
from evenkeel.policy import amounts
from evenkeel.policy.allocatable import CgroupLimits
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.oom_score import INFRASTRUCTURE_SCORE, oom_score_adj
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.policy.provision import NO_LIMIT, Amount, Cpus, PodFacts, Provision, Quota
from evenkeel.policy.qos import QoSClass, container_class
from evenkeel.quantity import ZERO, Quantity

# E5: an annotation of the pod, for each container: evenkeel.dev/oom-kill.<container>: process|container
OOM_KILL_ANNOTATION = "evenkeel.dev/oom-kill."

_NO_BURST = Amount(0, "A23", "no burst")


def container_provision(node: NodeView, facts: PodFacts, container: Container) -> Provision:
    pod = facts.pod
    request, limit = container.resources.requests, container.resources.limits
    exclusive = facts.planned.exclusive_cpus.get(container.name)
    quota, burst = _container_quota(node, limit.get(CPU, ZERO).milli, is_exclusive=exclusive is not None)
    swap = _swap_max(node, container)
    memory_request, memory_limit = request.get(MEMORY, ZERO).value, limit.get(MEMORY, ZERO).value
    return Provision(
        cpu_shares=_shares(request.get(CPU, ZERO).milli, "requests"),
        cpu_quota=quota,
        cpu_burst_us=burst,
        cpus=_cpus(exclusive, facts.planned.shared_cpus),
        memory_min=_memory_min(node, memory_request, "request"),
        memory_high=_memory_high(node, memory_request, memory_limit),
        memory_max=_limit(memory_limit, "C3", "limit"),
        memory_soft_limit=Amount(memory_request, "D6", f"request {bytes_text(memory_request)}")
        if memory_request
        else Amount(NO_LIMIT, "D6", "no request"),
        swap_max=swap,
        swappiness=swap if swap.value == 0 else None,
        oom_group=_oom_group(node, pod, container),
        hugepages=_container_hugepages(node, container),
        oom_score_adj=_oom_score(node, pod, container),
    )


def infrastructure_provision(node: NodeView, pod: Pod) -> Provision:
    """The cgroup for the pod's own processes, beside its containers. Overhead is its request, never its limit (D4)."""
    overhead = pod.spec.overhead
    amount = overhead.get(MEMORY, ZERO).value
    return Provision(
        cpu_shares=_shares(overhead.get(CPU, ZERO).milli, "overhead", rule="D4"),
        memory_min=_memory_min(node, amount, "overhead", rule="D4"),
        oom_score_adj=Amount(INFRASTRUCTURE_SCORE, "A12", "pod infrastructure"),
    )


def pod_provision(node: NodeView, facts: PodFacts, min_bytes: int) -> Provision:
    """The pod's cgroup. `min_bytes` is the sum of what its children are protected by."""
    of_what = (
        "requests of its containers and overhead" if facts.pod.spec.overhead else "requests of its containers"
    )
    pids = node.config.pod_pids_limit
    quota = _pod_quota(node, facts)
    return Provision(
        cpu_shares=_shares(facts.requests.get(CPU, ZERO).milli, of_what),
        cpu_quota=quota,
        cpu_burst_us=_pod_burst(node, facts, quota),
        memory_min=_memory_min(node, min_bytes, of_what),
        memory_max=_pod_memory_max(node, facts),
        pids_max=Amount(pids, "B16", "podPidsLimit")
        if pids > 0
        else Amount(NO_LIMIT, "B16", "no podPidsLimit"),
    )


def branch_provision(node: NodeView, qos: QoSClass, pods: Sequence[PodFacts], min_bytes: int) -> Provision:
    """The Burstable or BestEffort branch. `pods` are all pods of the node; `min_bytes` is the sum of what the pods of
    the branch are protected by."""
    if qos == QoSClass.BEST_EFFORT:
        shares = Amount(amounts.MIN_SHARES, "A11", "BestEffort pods request nothing: the least there is")
    else:
        shares = _shares(
            sum(f.requests.get(CPU, ZERO).milli for f in pods if f.qos == qos), "requests of its pods"
        )
    return Provision(
        cpu_shares=shares,
        memory_min=_memory_min(node, min_bytes, "requests of its pods"),
    )


def root_provision(node: NodeView, pods: Sequence[PodFacts], min_bytes: int) -> Provision:
    """The cgroup that holds all pods (A16, B8)."""
    limits = node.pods_limits
    assert limits.millicpu is not None
    plain = amounts.shares(limits.millicpu)
    capped = amounts.capped_shares(
        plain, capacity_millicpu=node.capacity.millicpu, reserved_millicpu=node.reserved_millicpu
    )
    shares = Amount(plain, "B8", f"allocatable cpu {cores_text(limits.millicpu)}")
    if capped < plain:
        kept = cores_text(node.reserved_millicpu)
        shares = Amount(capped, "E11", f"system cgroups of default weight keep their {kept} reserved")
    return Provision(
        cpu_shares=shares,
        memory_min=_memory_min(node, min_bytes, "requests of all pods"),
        memory_max=_root_memory_max(node, limits),
        pids_max=_limit_of(limits.pids, "B8", "pids that are not reserved"),
        hugepages={
            size: Amount(amount, "B8", "pages that are not reserved")
            for size, amount in limits.hugepage_bytes.items()
        },
    )


def ancestor_provision(root: Provision) -> Provision:
    """A cgroup between the root of the hierarchy and the pods' root. Weight and protection must pass through it."""
    return Provision(cpu_shares=root.cpu_shares, memory_min=root.memory_min, memory_low=root.memory_low)


def including(provision: Provision, inner: Sequence[Provision]) -> Provision:
    """`provision` for a cgroup with others inside: it must be protected by the sum of their protection, too (C1)."""
    protected = [amount.value for each in inner if (amount := each.memory_min) is not None]
    own = provision.memory_min
    if own is None or not any(protected):
        return provision
    total = own.value + sum(protected)
    return provision._replace(
        memory_min=Amount(total, own.rule, f"{own.reason}, and what lies within it: {bytes_text(total)}")
    )


def reserved_provision(node: NodeView, limits: CgroupLimits, what: str) -> Provision:
    """The cgroup of kube or system daemons, if its reservation is enforced (B4, C1, E8)."""
    protected = limits.memory_bytes or 0
    capped: Amount | None = None
    if limits.memory_bytes is not None:
        capped = (
            Amount(NO_LIMIT, "E8", "reservations protect and do not cap (reservedProtectOnly)")
            if node.config.reserved_protect_only
            else Amount(limits.memory_bytes, "B4", f"{what} is enforced")
        )
    return Provision(
        cpu_shares=_shares(limits.millicpu, what, rule="B4") if limits.millicpu is not None else None,
        memory_min=_memory_min(node, protected, what) if limits.memory_bytes is not None else None,
        memory_max=capped,
        pids_max=_limit_of(limits.pids, "B4", f"{what} is enforced") if limits.pids is not None else None,
    )


def pod_min_bytes(facts: PodFacts, children_bytes: int) -> int:
    """The protected bytes (`memory.min`) of the pod's cgroup: its requests, and never less than the sum of its children
    (C1)."""
    return max(facts.requests.get(MEMORY, ZERO).value, children_bytes)


def _shares(millicpu: int, what: str, rule: str = "A11") -> Amount:
    reason = f"{what} {cores_text(millicpu)}" if millicpu else f"no cpu in {what}: the least there is"
    return Amount(amounts.shares(millicpu), rule, reason)


def _cpus(exclusive: tuple[int, ...] | None, shared: tuple[int, ...]) -> Cpus | None:
    if exclusive:
        return Cpus(exclusive, "A23", "cores of its own: Guaranteed, whole cores requested")
    return Cpus(shared, "A23", "the cores that no container has for itself") if shared else None


def _container_quota(node: NodeView, limit: int, *, is_exclusive: bool) -> tuple[Quota, Amount]:
    period = _period_us(node)
    if is_exclusive:
        return Quota(NO_LIMIT, period, "A23", "cores of its own need no quota"), _NO_BURST
    if not limit:
        return Quota(NO_LIMIT, period, "A4", "no limit: may use what is idle"), _NO_BURST
    if not node.config.cpu_cfs_quota:
        return Quota(NO_LIMIT, period, "E10", "cpuCFSQuota is off"), _NO_BURST
    quota = amounts.quota_us(limit, period)
    return Quota(quota, period, "A4", f"limit {cores_text(limit)}"), _burst(node, quota, [limit])


def _pod_quota(node: NodeView, facts: PodFacts) -> Quota:
    limit = _pod_limit(facts, CPU)
    period = _period_us(node)
    if limit.value == NO_LIMIT:
        return Quota(NO_LIMIT, period, limit.rule, limit.reason)
    if not node.config.cpu_cfs_quota:
        return Quota(NO_LIMIT, period, "E10", "cpuCFSQuota is off")
    if facts.planned.exclusive_cpus:
        return Quota(NO_LIMIT, period, "A23", "a container has cores of its own")
    return Quota(amounts.quota_us(limit.value, period), period, limit.rule, limit.reason)


def _pod_burst(node: NodeView, facts: PodFacts, quota: Quota) -> Amount:
    """The burst of its containers must pass through the pod's quota, too."""
    if not node.config.cpu_burst:
        return _NO_BURST
    spec = facts.pod.spec
    own = spec.resources.limits.get(CPU, ZERO) if spec.resources is not None else ZERO
    limits = [own, *(container.resources.limits.get(CPU, ZERO) for container in spec.sized_containers)]
    return _burst(node, quota.quota_us, [limit.milli for limit in limits])


def _burst(node: NodeView, quota_us: int, limits_millicpu: Sequence[int]) -> Amount:
    """A23: a limit of whole cores needs no burst, because it never runs out within a period."""
    percent = node.config.cpu_burst
    if quota_us == NO_LIMIT or not percent or not any(limit % 1000 for limit in limits_millicpu):
        return _NO_BURST
    return Amount(amounts.burst_us(quota_us, percent), "A23", f"{percent}% of a quota, from idle periods")


def _pod_limit(facts: PodFacts, resource: str) -> Amount:
    """D1–D3: the pod-level limit once init containers are done; otherwise the sum, if every container has a limit."""
    pod = facts.pod
    of_pod = pod.spec.resources.limits.get(resource) if pod.spec.resources is not None else None
    if of_pod and not facts.planned.awaits_init and facts.qos != QoSClass.GUARANTEED:  # D7
        value, text = _measured(of_pod, resource)
        return Amount(value, "D1", f"the pod's own limit {text}, shared by its containers")
    waiting = "; the pod's own limit is set when its init containers are done (D3)" if of_pod else ""
    if all(container.resources.limits.get(resource) for container in pod.spec.sized_containers):
        total = pod_limits(pod, with_pod_level=False, with_overhead=False)[resource]
        value, text = _measured(total, resource)
        return Amount(value, "D2", f"limits of its containers {text}{waiting}")
    return Amount(NO_LIMIT, "D2", f"a container has no limit{waiting}")


def _pod_memory_max(node: NodeView, facts: PodFacts) -> Amount:
    """D1 and D2, with room for what the pod needs besides its containers (A5).

    Without that room, containers within their requests would meet the pod's limit before their own. All their memory is
    protected (C1), so the kernel could reclaim nothing there, not even cache, and would kill one of them.
    """
    limit = _pod_limit(facts, MEMORY)
    if limit.value == NO_LIMIT:
        return limit
    cpus = -(-node.capacity.millicpu // 1000)
    spec = facts.pod.spec
    room = amounts.pod_own_bytes(1 + len(spec.init_containers) + len(spec.containers), cpus)
    needed = facts.requests.get(MEMORY, ZERO).value + room
    if limit.value >= needed:
        return limit
    more = bytes_text(needed - limit.value)
    return Amount(needed, limit.rule, f"{limit.reason}, and {more} that the pod itself may need (A5)")


def _measured(amount: Quantity, resource: str) -> tuple[int, str]:
    return (
        (amount.milli, cores_text(amount.milli))
        if resource == CPU
        else (amount.value, bytes_text(amount.value))
    )


def _memory_min(node: NodeView, amount: int, what: str, rule: str = "C1") -> Amount:
    if not node.memory_qos:
        return Amount(0, "C4", "MemoryQoS is off")
    return Amount(amount, rule, f"{what} {bytes_text(amount)}" if amount else f"no memory in {what}")


def _memory_high(node: NodeView, request: int, limit: int) -> Amount:
    if not node.memory_qos:
        return Amount(NO_LIMIT, "C4", "MemoryQoS is off")
    factor = node.config.memory_throttling_factor
    if factor is None:
        return Amount(NO_LIMIT, "C2", "no memoryThrottlingFactor")
    base = limit or node.allocatable_bytes
    high = amounts.high_bytes(base, factor)
    source = f"limit {bytes_text(limit)}" if limit else f"no limit: node allocatable {bytes_text(base)}"
    if high <= request:
        return Amount(NO_LIMIT, "C2", f"{source} × {factor:g} is not above the request")
    return Amount(high, "C2", f"{source} × {factor:g}")


def _limit(value: int, rule: str, what: str) -> Amount:
    return (
        Amount(value, rule, f"{what} {bytes_text(value)}") if value else Amount(NO_LIMIT, rule, f"no {what}")
    )


def _limit_of(value: int | None, rule: str, reason: str) -> Amount:
    return Amount(NO_LIMIT, rule, "no limit") if value is None else Amount(value, rule, reason)


def _root_memory_max(node: NodeView, limits: CgroupLimits) -> Amount:
    if not node.config.enforces("pods") or limits.memory_bytes is None:
        return Amount(NO_LIMIT, "B4", "node allocatable is not enforced on pods")
    capacity = bytes_text(node.capacity.memory_bytes)
    kept = node.capacity.memory_bytes - limits.memory_bytes
    less = f" − reserved {bytes_text(kept)}" if kept else ", nothing reserved"
    return Amount(limits.memory_bytes, "B8", f"capacity {capacity}{less}")


def _swap_max(node: NodeView, container: Container) -> Amount:
    """A18: if swap may be on, containers with a memory guarantee do not get any."""
    if node.config.fail_swap_on:
        return Amount(NO_LIMIT, "A18", "failSwapOn: there is no swap to keep away")
    if container_class(container, MEMORY) == QoSClass.BEST_EFFORT:
        return Amount(NO_LIMIT, "A18", "no guarantee that swap would break")
    return Amount(0, "A18", "swap would break its guarantee")


def _oom_group(node: NodeView, pod: Pod, container: Container) -> Amount:
    chosen = pod.metadata.annotations.get(OOM_KILL_ANNOTATION + container.name)
    if chosen in ("process", "container"):
        return Amount(int(chosen == "container"), "E5", f"annotation {OOM_KILL_ANNOTATION}{container.name}")
    whole = node.config.oom_group_kill is not False
    return Amount(
        int(whole), "A19", "an OOM kill takes the whole container" if whole else "oomGroupKill is off"
    )


def _oom_score(node: NodeView, pod: Pod, container: Container) -> Amount:
    score = oom_score_adj(pod, container, node.capacity.memory_bytes, Profile.DOCUMENTS)
    qos = container_class(container, MEMORY)
    request = container.resources.requests.get(MEMORY, ZERO).value
    reason = f"memory is {qos}"
    if qos == QoSClass.BURSTABLE:
        reason += (
            f": 1000 − 1000 × {bytes_text(request)} ÷ {bytes_text(node.capacity.memory_bytes)}, within 2…999"
        )
    return Amount(score, "A12", reason)


def _container_hugepages(node: NodeView, container: Container) -> Mapping[int, Amount]:
    """For every page size of the node: what the container may use of it, or zero."""
    if not node.capacity.hugepages:
        return {}
    asked = {
        hugepage_bytes(name): q.value for name, q in container.resources.limits.items() if is_hugepages(name)
    }
    return {
        size: Amount(
            asked.get(size, 0),
            "A1",
            f"limit {bytes_text(asked[size])}" if size in asked else "no limit asked",
        )
        for size in node.capacity.hugepages
    }


def _period_us(node: NodeView) -> int:
    return int(node.config.cpu_cfs_quota_period) // 1000
