"""How much memory is left: what the kernel could give, not what is free (E3).

Page cache that can be dropped is not in use; memory of processes, of tmpfs, locked memory, and file pages that are
still to be written to disk are. In the `kubernetes` profile only cache that has not been used lately counts as free, as
kubelet has it.
"""

from collections.abc import Mapping

from evenkeel.api.amount import Amount
from evenkeel.api.profile import Profile
from evenkeel.cgroup.driver import Statistics
from evenkeel.host.meminfo import figure
from evenkeel.policy.eviction.snapshot import MemoryFigures

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
