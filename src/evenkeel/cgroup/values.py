"""Values of cgroup files as numbers: when two are the same to the kernel, and which of two gives more."""

from evenkeel.cgroup.tree import Version
from evenkeel.policy.memory import PAGE_BYTES

# v1 shows "no limit" as the largest multiple of a page that fits a signed 64-bit number.
_V1_UNLIMITED = (2**63 - 1) // PAGE_BYTES * PAGE_BYTES
# hugetlb rounds its "no limit" down to a huge page; kubelet writes this where it means none.
_MOST_LIMITED = 2**62
_UNLIMITED = float("inf")

_NOT_IN_BYTES = ("memory.oom.group", "memory.swappiness")

CPUS = "cpuset.cpus"
INHERITED = ""  # of CPUS: those of the cgroup above. v2 means it so; for v1 the driver looks them up

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
    """What the kernel, or on v1 the driver, puts into `file` of a new cgroup; None where nobody can know."""
    if file == CPUS:
        return INHERITED
    if file.startswith("hugetlb."):
        return "max" if version == Version.V2 else str(_V1_UNLIMITED)
    return DEFAULTS[version].get(file)


def same_value(file: str, ours: str, theirs: str) -> bool:
    """Whether writing `ours` would leave what is read as `theirs`: the kernel keeps memory in whole pages."""
    if file == "cpu.max":  # two quotas of one ratio are not the same: the period differs
        return ours.split() == theirs.split()
    return ours == theirs or _measure(file, ours) == _measure(file, theirs)


def direction(file: str, before: str, after: str) -> int:
    """−1 if `after` gives less than `before`, +1 if more, 0 if the same or not comparable."""
    old, new = _measure(file, before), _measure(file, after)
    if isinstance(old, str) or isinstance(new, str):
        return 0
    return (new > old) - (new < old)


def _measure(file: str, value: str) -> float | int | str:
    """The value as a number of which more is more, or its text where it is none."""
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
    """CPU time per time of `quota period`."""
    quota, _, period = value.partition(" ")
    try:
        limit = _UNLIMITED if quota in ("max", "-1") else int(quota)
        return limit / int(period or "100000")
    except (ValueError, ArithmeticError):
        return value
