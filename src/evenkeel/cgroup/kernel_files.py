"""The files of cgroup v1 and v2: from amounts to settings, defaults, and how two values of a file compare."""

from collections.abc import Callable, Iterator

from evenkeel.api.scalars import format_cpuset
from evenkeel.cgroup.tree import Setting, Version
from evenkeel.policy.amounts import PAGE_BYTES
from evenkeel.policy.provision import NO_LIMIT, Amount, Provision, Quota

# Above these the kernel refuses a number or reads it as another one. No machine has so much.
_MOST_QUOTA_US = 1 << 43
_MOST_BYTES = 1 << 62
_MOST_PIDS = 1 << 22
_SHARES = {Version.V1: "cpu.shares", Version.V2: "cpu.weight"}
_HUGEPAGE_UNITS = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def settings(version: Version, provision: Provision, weight: Callable[[int], int]) -> tuple[Setting, ...]:
    """The settings of one cgroup. `weight` converts shares into cpu.weight of v2; profiles convert differently."""
    return tuple(_v1(provision) if version == Version.V1 else _v2(provision, weight))


def with_shares(
    version: Version, of_cgroup: tuple[Setting, ...], shares: Amount, weight: Callable[[int], int]
) -> tuple[Setting, ...]:
    """The settings of a cgroup with other shares."""
    value = shares.value if version == Version.V1 else weight(shares.value)
    file = _SHARES[version]
    changed = Setting(file, str(value), shares.rule, shares.reason)
    return tuple(changed if setting.file == file else setting for setting in of_cgroup)


def oom_score_setting(provision: Provision) -> Setting | None:
    amount = provision.oom_score_adj
    return None if amount is None else Setting("oom_score_adj", str(amount.value), amount.rule, amount.reason)


def hugepage_size(page_bytes: int) -> str:
    """The size in the name of the hugetlb files: `2MB`."""
    for unit, size in _HUGEPAGE_UNITS:
        if page_bytes >= size and page_bytes % size == 0:
            return f"{page_bytes // size}{unit}"
    return f"{page_bytes}B"


def _v2(provision: Provision, weight: Callable[[int], int]) -> list[Setting]:
    found: list[Setting] = []
    shares, quota, cpus = provision.cpu_shares, provision.cpu_quota, provision.cpus
    if shares is not None:
        found.append(Setting("cpu.weight", str(weight(shares.value)), shares.rule, shares.reason))
    if quota is not None:
        limit = "max" if _is_no_quota(quota) else str(quota.quota_us)
        found.append(Setting("cpu.max", f"{limit} {quota.period_us}", quota.rule, quota.reason))
    _add(found, "cpu.max.burst", _burst(provision))
    if cpus is not None:
        found.append(Setting("cpuset.cpus", format_cpuset(cpus.cpus), cpus.rule, cpus.reason))
    for file, plain in (
        ("memory.min", provision.memory_min),
        ("memory.low", provision.memory_low),
        ("memory.high", provision.memory_high),
        ("memory.max", provision.memory_max),
        ("memory.swap.max", provision.swap_max),
        ("memory.oom.group", provision.oom_group),
        ("pids.max", provision.pids_max),
    ):
        if plain is not None:
            _add(found, file, plain)
    for file, amount in _hugepages(provision) if provision.hugepages else ():
        _add(found, f"{file}.max", amount)
    return found


def _v1(provision: Provision) -> list[Setting]:
    found: list[Setting] = []
    quota, cpus = provision.cpu_quota, provision.cpus
    _add(found, "cpu.shares", provision.cpu_shares)
    if quota is not None:
        found.append(Setting("cpu.cfs_period_us", str(quota.period_us), quota.rule, quota.reason))
        limit_us = NO_LIMIT if _is_no_quota(quota) else quota.quota_us
        found.append(Setting("cpu.cfs_quota_us", str(limit_us), quota.rule, quota.reason))
    _add(found, "cpu.cfs_burst_us", _burst(provision))
    if cpus is not None:
        found.append(Setting("cpuset.cpus", format_cpuset(cpus.cpus), cpus.rule, cpus.reason))
    _add(found, "memory.limit_in_bytes", provision.memory_max, unlimited="-1")
    _add(found, "memory.soft_limit_in_bytes", provision.memory_soft_limit, unlimited="-1")
    swap, limit = provision.swap_max, provision.memory_max
    if swap is not None and limit is not None:
        # v1 counts memory and swap together: no swap is memory+swap = memory (A18).
        both = NO_LIMIT if NO_LIMIT in (swap.value, limit.value) else limit.value + swap.value
        _add(found, "memory.memsw.limit_in_bytes", swap._replace(value=both), unlimited="-1")
    # memsw bounds the sum, and only where there is a limit. Swappiness keeps pages from being swapped out.
    _add(found, "memory.swappiness", provision.swappiness)
    _add(found, "pids.max", provision.pids_max)
    for file, amount in _hugepages(provision) if provision.hugepages else ():
        _add(found, f"{file}.limit_in_bytes", amount, unlimited="-1")
    return found


def _hugepages(provision: Provision) -> Iterator[tuple[str, Amount]]:
    """The beginning of the file names of each page size, and its amount."""
    for size, amount in provision.hugepages.items():
        file = f"hugetlb.{hugepage_size(size)}"
        yield file, amount
        if provision.hugepages_when_reserved:
            yield f"{file}.rsvd", amount


def _is_no_quota(quota: Quota) -> bool:
    return quota.quota_us == NO_LIMIT or quota.quota_us > _MOST_QUOTA_US


def _burst(provision: Provision) -> Amount | None:
    """The burst, or 0 without a quota: then there is nothing to carry over."""
    burst, quota = provision.cpu_burst_us, provision.cpu_quota
    if burst is not None and burst.value and quota is not None and _is_no_quota(quota):
        return burst._replace(value=0)
    return burst


def _add(found: list[Setting], file: str, amount: Amount | None, unlimited: str = "max") -> None:
    if amount is not None:
        number, rule, reason = amount
        is_too_much = number > _MOST_PIDS and (number > _MOST_BYTES or file == "pids.max")
        found.append(
            Setting(file, unlimited if is_too_much or number == NO_LIMIT else str(number), rule, reason)
        )


# v1 shows "no limit" as the largest multiple of a page that fits a signed 64-bit number.
_V1_UNLIMITED = (2**63 - 1) // PAGE_BYTES * PAGE_BYTES
# hugetlb rounds its "no limit" down to a huge page; kubelet writes this where it means none.
_MOST_LIMITED = 2**62
_UNLIMITED = float("inf")

_NOT_IN_BYTES = ("memory.oom.group", "memory.swappiness")

CPUS = "cpuset.cpus"
INHERITED = ""  # of CPUS: those of the cgroup above. v2 does that itself, for v1 the driver reads them

DEFAULTS = {
    Version.V2: {
        "cpu.weight": "100",
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "pids.max": "max",
    },
    Version.V1: {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
        "memory.limit_in_bytes": str(_V1_UNLIMITED),
        "memory.soft_limit_in_bytes": str(_V1_UNLIMITED),
        "memory.memsw.limit_in_bytes": str(_V1_UNLIMITED),
        "pids.max": "max",
    },
}


def default_value(file: str, version: Version) -> str | None:
    """The value of `file` in a new cgroup, from the kernel or on v1 from the driver; None if it is not fixed."""
    if file == CPUS:
        return INHERITED
    if file.startswith("hugetlb."):
        return "max" if version == Version.V2 else str(_V1_UNLIMITED)
    return DEFAULTS[version].get(file)


def same_value(file: str, ours: str, theirs: str) -> bool:
    """Whether the kernel shows `theirs` after `ours` was written: it rounds memory to whole pages."""
    if file == "cpu.max":  # two quotas with the same ratio may differ in their period
        return ours.split() == theirs.split()
    return ours == theirs or _measure(file, ours) == _measure(file, theirs)


def direction(file: str, before: str, after: str) -> int:
    """−1 if `after` gives less than `before`, +1 if more, 0 if the same or not comparable."""
    old, new = _measure(file, before), _measure(file, after)
    if isinstance(old, str) or isinstance(new, str):
        return 0
    return (new > old) - (new < old)


def _measure(file: str, value: str) -> float | int | str:
    """The value as a number where a larger one gives more; else its text."""
    if file == "cpu.max":
        return _ratio(value)
    if file == CPUS:
        return value
    if value == "max":
        return _UNLIMITED
    try:
        number = int(value)
    except ValueError:
        return value
    if file.startswith(("memory.", "hugetlb.")) and file not in _NOT_IN_BYTES:
        return _UNLIMITED if number < 0 or number > _MOST_LIMITED else number // PAGE_BYTES
    return _UNLIMITED if number < 0 else number


def _ratio(value: str) -> float | str:
    """CPUs of a `quota period`."""
    quota, _, period = value.partition(" ")
    try:
        limit = _UNLIMITED if quota in ("max", "-1") else int(quota)
        return limit / int(period or "100000")
    except (ValueError, ArithmeticError):
        return value
