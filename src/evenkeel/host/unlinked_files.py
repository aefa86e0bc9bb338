"""The disk space of deleted files that processes of a container still hold. No walk finds them.

A container may hold a file by a descriptor, or by nothing but a mapping of it. A file that is only on its way through a
socket, or registered with io_uring, is not found.

A file of another filesystem is not looked at. It may be of a server that does not answer: a process that asks for the
status of such a file waits, and cannot even be killed. The list of a process's mappings waits, too, while the process
waits for such a file. So it is read only where all that the process sees is local.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache

from evenkeel.host.descriptors import descriptors_of
from evenkeel.host.disk_usage import Usage
from evenkeel.named_tuples import NamedTuple

_BLOCK_BYTES = 512  # the unit of st_blocks on every filesystem
_MOST_LOOKED_AT = 1 << 20  # descriptors and mappings of one container
_SLICE = 512
_DELETED = " (deleted)"
# Filesystems of which the kernel has everything itself. It answers at once, whatever is in them.
_IN_KERNEL = frozenset((
    "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "overlay", "proc", "pstore", "ramfs", "securityfs", "selinuxfs", "sysfs", "tmpfs",
    "tracefs",
))  # fmt: skip
# They are on a disk of this machine.
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "squashfs", "erofs", "iso9660"))
_OVERLAY_MAGIC = 0x794C7630  # statfs(2)
_STATFS_BYTES = 256  # more than the structure has


def unlinked_usage(
    pids: Iterable[int],
    devices: Collection[int],
    proc: str = "/proc",
    between: Callable[[], None] = lambda: None,
) -> Usage:
    """The disk space of deleted files that these processes have open or mapped, on the filesystems with these device
    numbers and in writable layers (overlay). It is free only when the processes end. `between` is called now and
    then."""
    search = _Search(devices, between)
    for pid in pids:
        process = f"{proc}/{pid}"
        mounts: _Mounts | None = None
        for name in descriptors_of(process):
            if not search.goes_on():
                return search.usage
            if not _is_called_deleted(f"{process}/fd/{name}"):
                continue
            if mounts is None:
                mounts = _mounts_of(process, search.is_counted)
            if not mounts.elsewhere or _mount_of(f"{process}/fdinfo/{name}") not in mounts.elsewhere:
                search.look_at(f"{process}/fd/{name}")
        if mounts is None:
            mounts = _mounts_of(process, search.is_counted)
        if mounts.has_remote:
            continue
        for name in _deleted_mappings(f"{process}/maps", search.goes_on):
            search.look_at(f"{process}/map_files/{name}")
    return search.usage


class _Search:
    def __init__(self, devices: Collection[int], between: Callable[[], None]) -> None:
        self.is_counted = dict.fromkeys(devices, True)
        self.is_counted.setdefault(os.stat("/").st_dev, False)
        self._between = between
        self._found: set[tuple[int, int]] = set()
        self._bytes = 0
        self._looked_at = 0

    @property
    def usage(self) -> Usage:
        return Usage(self._bytes, len(self._found))

    def goes_on(self) -> bool:
        """Called for each descriptor and mapping. False if it was enough."""
        self._looked_at += 1
        if self._looked_at % _SLICE == 0:
            self._between()
        return self._looked_at <= _MOST_LOOKED_AT

    def look_at(self, path: str) -> None:
        try:
            seen = os.stat(path)
        except OSError:
            return
        key = (seen.st_dev, seen.st_ino)
        if seen.st_nlink or not stat.S_ISREG(seen.st_mode) or key in self._found:
            return
        if seen.st_dev not in self.is_counted:
            self.is_counted[seen.st_dev] = _is_overlay(path)
        if self.is_counted[seen.st_dev]:
            self._found.add(key)
            self._bytes += seen.st_blocks * _BLOCK_BYTES


class _Mounts(NamedTuple):
    """What a process sees. `elsewhere` are the numbers of the mounts whose files are not to be asked about: those of
    other filesystems, but for overlays and what the kernel has itself."""

    elsewhere: frozenset[str] = frozenset()
    has_remote: bool = False  # one of them may be of a server


def _deleted_mappings(path: str, goes_on: Callable[[], bool]) -> Iterator[str]:
    """The mappings of files that the kernel calls deleted, as they are named in `map_files`: one of each file."""
    known: set[tuple[str, ...]] = set()
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not goes_on():
                return
            if line.endswith(f"{_DELETED}\n"):
                span, _, _, *identity = line.split(maxsplit=5)[:5]
                if tuple(identity) not in known:
                    known.add(tuple(identity))
                    # The list has leading zeros, and the names have none.
                    yield "-".join(f"{int(end, 16):x}" for end in span.split("-"))


def _is_called_deleted(link: str) -> bool:
    """Whether the kernel says so. It asks no filesystem for that. A file may have such a name, too."""
    try:
        return os.readlink(link).endswith(_DELETED)
    except OSError:
        return False


def _mounts_of(process: str, devices: dict[int, bool]) -> _Mounts:
    elsewhere, has_remote = set(), False
    try:
        with open(f"{process}/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                mount, _, kinds = line.partition(" - ")
                number, _, device, *_ = mount.split(" ")
                major, _, minor = device.partition(":")
                kind = kinds.partition(" ")[0]
                if not devices.get(os.makedev(int(major), int(minor)), False) and kind not in _IN_KERNEL:
                    elsewhere.add(number)
                    has_remote |= kind not in _LOCAL
    except (OSError, ValueError):
        return _Mounts(frozenset(elsewhere), has_remote=True)  # it has ended
    return _Mounts(frozenset(elsewhere), has_remote)


def _mount_of(path: str) -> str:
    """The number of the mount of an open file; "" if it is not known."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return next((line[7:].strip() for line in file if line.startswith("mnt_id:")), "")
    except OSError:
        return ""


def _is_overlay(path: str) -> bool:
    """Whether the file is in an overlay. A container may have changed its root, so that does not tell."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc().statfs(os.fsencode(path), buffer) != 0:
        return False
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) == _OVERLAY_MAGIC


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
