"""How much memory is available and in use, on the machine and in cgroups, as the eviction signals count it.

`node_memory` and `cgroup_memory` compute it from files that were read anyway. `NodeMemory` and `CgroupMemory` read it
many times a second through descriptors that stay open (E1): a decision under pressure needs the figures of that moment,
and they cost one read for the machine and two for a cgroup.
"""

import os
from collections.abc import Mapping

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.statistics import MOST_BYTES, Layout, droppable
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import MemoryFigures

NUMBER_BYTES = 64
_USAGE_FILE = {Version.V1: "memory.usage_in_bytes", Version.V2: "memory.current"}
_NAMES = (
    b"inactive_file",
    b"active_file",
    b"dirty",
    b"writeback",
    b"shmem",
    b"slab_reclaimable",
)
_LAYOUT = {
    Version.V1: Layout(*(b"total_" + name for name in _NAMES)),
    Version.V2: Layout(*(b"file_" + name if name in (b"dirty", b"writeback") else name for name in _NAMES)),
}


class Reading(NamedTuple):
    """The memory of one cgroup with all below it."""

    usage_bytes: int
    inactive_file_bytes: int
    droppable_bytes: int  # file cache that the kernel can free at once (E3)
    reclaimable_bytes: int  # what it can free with some work: unwritten files, its own caches
    shmem_bytes: int = 0

    def working_set_bytes(self, profile: Profile) -> int:
        """Usage without the cache that can be dropped, as the profile counts it."""
        cache = self.inactive_file_bytes if profile is Profile.KUBERNETES else self.droppable_bytes
        return max(self.usage_bytes - cache, 0)

    def protected_bytes(self, min_bytes: int) -> int:
        """The file cache that memory.min protects: the kernel reclaims nothing from a cgroup whose usage is not above
        its memory.min, however droppable its pages are."""
        return max(self.droppable_bytes - max(self.usage_bytes - min_bytes, 0), 0)


class CgroupMemory:
    """The memory of the cgroup whose files are in `directory`."""

    def __init__(self, directory: str, version: Version) -> None:
        """Raises OSError if there is no such cgroup."""
        self.directory = directory
        self._layout = _LAYOUT[version]
        self.usage_descriptor = _opened(f"{directory}/{_USAGE_FILE[version]}")
        try:
            self._stat = _opened(f"{directory}/memory.stat")
        except BaseException:
            os.close(self.usage_descriptor)
            raise

    def usage_bytes(self) -> int:
        return int(os.pread(self.usage_descriptor, NUMBER_BYTES, 0))

    def read(self) -> Reading:
        """Raises OSError with ENODEV once the cgroup is gone."""
        return self.parsed(self.raw())

    def raw(self) -> tuple[bytes, bytes]:
        """The input of `parsed`: reading now and parsing later."""
        return os.pread(self.usage_descriptor, NUMBER_BYTES, 0), os.pread(self._stat, MOST_BYTES, 0)

    def parsed(self, raw: tuple[bytes, bytes]) -> Reading:
        usage, stat = raw
        inactive, active, dirty, writeback, shmem, slab = self._layout.numbers(stat)
        can_drop = droppable(inactive + active, dirty + writeback)
        reclaimable = min(dirty + writeback, inactive + active) + slab
        return Reading(int(usage), inactive, can_drop, reclaimable, shmem)

    def close(self) -> None:
        os.close(self.usage_descriptor)
        os.close(self._stat)


class NodeMemory:
    """The memory of the machine, from /proc/meminfo."""

    def __init__(self, profile: Profile, path: str = "/proc/meminfo") -> None:
        self._profile = profile
        self._path = path
        self._file = _opened(path)

    def read(self) -> MemoryFigures:
        """The same figures as `node_memory`, from the few lines that are needed."""
        text = os.pread(self._file, MOST_BYTES, 0)
        total = self._bytes(text, b"MemTotal:")
        if self._profile is Profile.KUBERNETES:
            available = self._bytes(text, b"MemFree:") + self._bytes(text, b"Inactive(file):")
        else:
            available = self._bytes(text, b"MemAvailable:")
        available = min(available, total)
        return MemoryFigures(Amount(available), Amount(total - available))

    def _bytes(self, text: bytes, name: bytes) -> int:
        start = text.find(name)
        if start < 0:
            raise EvenkeelError(f"{self._path} has no {name.decode().rstrip(':')}: this is no Linux kernel's")
        return int(text[start + len(name) : text.index(b"\n", start)].split()[0]) * 1024

    def close(self) -> None:
        os.close(self._file)


def node_memory(meminfo: Mapping[str, int], profile: Profile = Profile.DOCUMENTS) -> MemoryFigures:
    """The memory of the machine, from /proc/meminfo."""
    from evenkeel.host.capacity import meminfo_bytes

    total = meminfo_bytes(meminfo, "MemTotal")
    if profile == Profile.DOCUMENTS:
        return figures_of(total, total - meminfo_bytes(meminfo, "MemAvailable"))
    used = total - meminfo_bytes(meminfo, "MemFree")
    return figures_of(total, used - meminfo_bytes(meminfo, "Inactive(file)"))


def cgroup_memory(
    statistics: Statistics, limit_bytes: int, profile: Profile = Profile.DOCUMENTS
) -> MemoryFigures:
    """The memory of a cgroup, below its limit. Cache that memory.min protects counts as available."""
    if profile == Profile.KUBERNETES:
        return figures_of(limit_bytes, statistics.memory_working_set_bytes)
    return figures_of(limit_bytes, statistics.memory_usage_bytes - statistics.memory_droppable_bytes)


def figures_of(total: int, working_set: int) -> MemoryFigures:
    """Available memory and working set add up to the total, so neither is above it or below zero."""
    working_set = min(max(working_set, 0), total)
    return MemoryFigures(Amount(total - working_set), Amount(working_set))


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
