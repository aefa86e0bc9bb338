"""Memory figures read again and again, as cheaply as can be: through descriptors that are kept open (E1).

A decision under pressure is made on figures of that moment. Two reads give a cgroup's, one the machine's.
"""

import ctypes
import os
import threading
from typing import NamedTuple

from evenkeel.api.amount import Amount
from evenkeel.api.profile import Profile
from evenkeel.cgroup.statistics import MOST_BYTES, Layout, droppable
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
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
        self._usage = os.open(f"{directory}/{_USAGE_FILE[version]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._stat = os.open(f"{directory}/memory.stat", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._usage)
            raise

    def usage_bytes(self) -> int:
        return int(_pread(self._usage, 64))

    def read(self) -> Reading:
        """Raises OSError with ENODEV once the cgroup is gone."""
        return self.parsed(self.raw())

    def raw(self) -> tuple[bytes, bytes]:
        """What `parsed` takes: for those who must read now and have time to look at it later."""
        return _pread(self._usage, 64), _pread(self._stat, MOST_BYTES)

    def parsed(self, raw: tuple[bytes, bytes]) -> Reading:
        usage, stat = raw
        inactive, active, dirty, writeback, shmem, slab = self._layout.numbers(stat)
        can_drop = droppable(inactive + active, dirty + writeback)
        washable = min(dirty + writeback, inactive + active) + slab
        return Reading(int(usage), inactive, can_drop, washable, shmem)

    def close(self) -> None:
        os.close(self._usage)
        os.close(self._stat)


class NodeMemory:
    """The machine's own, from /proc/meminfo."""

    def __init__(self, profile: Profile, path: str = "/proc/meminfo") -> None:
        self._profile = profile
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> MemoryFigures:
        """As `memory_signal.node_memory`, from the few lines that it needs."""
        text = _pread(self._file, MOST_BYTES)
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


# Python lets other threads run during a read of its own, and then waits for its turn: a hundred times in a hundred
# reads, when there is no time for one. These files are made by the kernel, in a moment: nobody else needs to run in it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.pread.restype = ctypes.c_ssize_t
_libc.pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
_of_thread = threading.local()


def _pread(descriptor: int, most_bytes: int) -> bytes:
    """The beginning of a file. Raises OSError."""
    try:
        buffer = _of_thread.buffer
    except AttributeError:
        buffer = _of_thread.buffer = ctypes.create_string_buffer(MOST_BYTES)
    count = _libc.pread(descriptor, buffer, most_bytes, 0)
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.string_at(buffer, count)
