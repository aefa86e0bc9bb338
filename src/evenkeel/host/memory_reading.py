"""Memory figures read again and again, as cheaply as can be: through descriptors that are kept open (E1).

A decision under pressure is made on figures of that moment. Two reads give a cgroup's, one the machine's.
"""

from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.statistics import MOST_BYTES, Layout, droppable
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.host import gil_held_io
from evenkeel.policy.eviction.snapshot import MemoryFigures

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
    """One cgroup with all below it."""

    usage_bytes: int
    inactive_file_bytes: int
    droppable_bytes: int  # file cache that the kernel could give back at once (E3)
    washable_bytes: int  # what it could give back with some work: unwritten files, caches of the kernel's own
    shmem_bytes: int = 0

    def working_set_bytes(self, profile: Profile) -> int:
        """What is in use and cannot simply be dropped, as the profile counts."""
        cache = self.inactive_file_bytes if profile is Profile.KUBERNETES else self.droppable_bytes
        return max(self.usage_bytes - cache, 0)


class CgroupMemory:
    """The memory of the cgroup whose files are in `directory`."""

    def __init__(self, directory: str, version: Version) -> None:
        """Raises OSError where there is no such cgroup."""
        self.directory = directory
        self._layout = _LAYOUT[version]
        self._usage = gil_held_io.open_to_read(f"{directory}/{_USAGE_FILE[version]}")
        try:
            self._stat = gil_held_io.open_to_read(f"{directory}/memory.stat")
        except BaseException:
            gil_held_io.close(self._usage)
            raise

    def usage_bytes(self) -> int:
        return gil_held_io.number(self._usage)

    def read(self) -> Reading:
        """Raises OSError with ENODEV once the cgroup is gone."""
        return self.parsed(self.raw())

    def raw(self) -> tuple[bytes, bytes]:
        """What `parsed` takes: for those who must read now and have time to look at it later."""
        return gil_held_io.pread(self._usage, 64), gil_held_io.pread(self._stat, MOST_BYTES)

    def parsed(self, raw: tuple[bytes, bytes]) -> Reading:
        usage, stat = raw
        inactive, active, dirty, writeback, shmem, slab = self._layout.numbers(stat)
        can_drop = droppable(inactive + active, dirty + writeback)
        washable = min(dirty + writeback, inactive + active) + slab
        return Reading(int(usage), inactive, can_drop, washable, shmem)

    def close(self) -> None:
        gil_held_io.close(self._usage)
        gil_held_io.close(self._stat)


class NodeMemory:
    """The machine's own, from /proc/meminfo."""

    def __init__(self, profile: Profile, path: str = "/proc/meminfo") -> None:
        self._profile = profile
        self._path = path
        self._file = gil_held_io.open_to_read(path)

    def read(self) -> MemoryFigures:
        """As `memory_signal.node_memory`, from the few lines that it needs."""
        text = gil_held_io.pread(self._file, MOST_BYTES)
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
        gil_held_io.close(self._file)
