"""/proc/meminfo as numbers."""

from collections.abc import Mapping

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.driver import Statistics
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.snapshot import MemoryFigures


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Every line's number: bytes where the kernel writes kB, else what it counts (`HugePages_Total`)."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def memory_total(meminfo: str) -> int:
    """`MemTotal` of /proc/meminfo, in bytes."""
    return figure(parse_meminfo(meminfo), "MemTotal", "say the node's size with --node 32Gi,8cpu")


def figure(meminfo: Mapping[str, int], name: str, mend: str) -> int:
    """One number that a kernel has had for ten years and something that pretends to be one may not have."""
    try:
        return meminfo[name]
    except KeyError:
        raise EvenkeelError(f"/proc/meminfo has no {name}: {mend}") from None


_MEND = "this is no Linux kernel of the last ten years, or /proc is not its own"


def node_memory(
    meminfo: Mapping[str, int],
    profile: Profile = Profile.DOCUMENTS,
    *,
    root_working_set_bytes: int | None = None,
    held_bytes: int = 0,
) -> MemoryFigures:
    """The machine's, from /proc/meminfo. `held_bytes` is cache that memory.min keeps from being dropped, which the
    kernel's own estimate counts as available. On cgroup v1 kubelet takes the working set of the root cgroup."""
    total = figure(meminfo, "MemTotal", _MEND)
    if profile == Profile.DOCUMENTS:
        return _figures(total, total - figure(meminfo, "MemAvailable", _MEND) + held_bytes)
    if root_working_set_bytes is not None:
        return _figures(total, root_working_set_bytes)
    used = total - figure(meminfo, "MemFree", _MEND)
    return _figures(total, used - figure(meminfo, "Inactive(file)", _MEND))


def cgroup_memory(
    statistics: Statistics,
    limit_bytes: int,
    profile: Profile = Profile.DOCUMENTS,
    *,
    held_bytes: int = 0,
) -> MemoryFigures:
    """A cgroup's, below its limit. `held_bytes` is cache of cgroups inside it that their memory.min protects."""
    if profile == Profile.KUBERNETES:
        return _figures(limit_bytes, statistics.memory_working_set_bytes)
    droppable = max(statistics.memory_droppable_bytes - held_bytes, 0)
    return _figures(limit_bytes, statistics.memory_usage_bytes - droppable)


def held_bytes(statistics: Statistics, min_bytes: int) -> int:
    """The cache of a cgroup that its memory.min keeps from whoever is short of memory above it: the kernel reclaims
    nothing from a cgroup that uses no more than that, however droppable it is."""
    reclaimable = max(statistics.memory_usage_bytes - min_bytes, 0)
    return max(statistics.memory_droppable_bytes - reclaimable, 0)


def _figures(total: int, working_set: int) -> MemoryFigures:
    """Together they are the whole, so neither is more than that or less than nothing."""
    working_set = min(max(working_set, 0), total)
    return MemoryFigures(Amount(total - working_set), Amount(working_set))
