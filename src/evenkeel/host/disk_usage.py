"""How much disk a directory takes, without `du`: a walk that can be done in slices, whatever lies in its way.

The directories are containers' own, who may put there what they like: symlinks are counted and not followed, what is
mounted there is not entered, a file of several names is counted once, and depth costs no descriptors: on the way up
the kernel is asked for `..`, and what it answers must be where we came from. Blocks are counted, not lengths: a file
may be large and mostly not there.
"""

import os
import stat
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

_BLOCK_BYTES = 512  # what st_blocks counts in, whatever the filesystem
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_REMEMBERED = 250_000  # directories still to be entered, and files of several names: memory is bounded
_MOST_DESCRIPTORS = 4096  # of one process that are looked at


class Usage(NamedTuple):
    used_bytes: int = 0
    inodes: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self.used_bytes + other.used_bytes, self.inodes + other.inodes)


def usage_below(path: str) -> Usage:
    """In one go, however long it takes: for a thread."""
    walk = Walk(path)
    try:
        while not walk.is_done:
            walk.advance(_MOST_REMEMBERED)
    finally:
        walk.close()
    return walk.usage


class Walk:
    """What lies below a directory; the directory itself does not count, for it is not its user's. A directory that is
    not there has nothing in it."""

    def __init__(self, path: str) -> None:
        self.is_whole = True  # False: there is more than was counted
        self._bytes = 0
        self._inodes = 0
        self._linked: set[int] = set()  # inodes of several names that were counted
        self._pending = 0  # directories still to be entered
        self._above: list[_Level] = []  # those that were left for a deeper one
        self._level: _Level | None = None
        self._device = 0
        try:
            self._level = _Level(os.open(path, _OPEN))
        except OSError:
            return
        self._device = self._level.device

    @property
    def usage(self) -> Usage:
        """So far."""
        return Usage(self._bytes, self._inodes)

    @property
    def is_done(self) -> bool:
        return self._level is None

    def advance(self, entries: int) -> int:
        """Looks at so many entries, or at what is left; returns how many it was."""
        looked_at = 0
        while self._level is not None and looked_at < entries:
            entry = self._level.next_entry()
            if entry is not None:
                self._count(entry, self._level)
            elif self._level.directories:
                self._descend(self._level, self._level.directories.pop())
            else:
                self._ascend(self._level)
            looked_at += 1
        return looked_at

    def close(self) -> None:
        if self._level is not None:
            self._level.close()
            self._level = None

    def _count(self, entry: "os.DirEntry[str]", level: "_Level") -> None:
        try:
            seen = entry.stat(follow_symlinks=False)
        except OSError:
            return  # it is gone
        if seen.st_dev != self._device:
            return  # something is mounted there
        is_directory = stat.S_ISDIR(seen.st_mode)
        if seen.st_nlink > 1 and not is_directory:
            if seen.st_ino in self._linked:
                return
            if len(self._linked) < _MOST_REMEMBERED:
                self._linked.add(seen.st_ino)
        self._bytes += seen.st_blocks * _BLOCK_BYTES
        self._inodes += 1
        if is_directory:
            if self._pending < _MOST_REMEMBERED:
                self._pending += 1
                level.directories.append(entry.name)
            else:
                self.is_whole = False

    def _descend(self, level: "_Level", name: str) -> None:
        self._pending -= 1
        try:
            inside = _Level(os.open(name, _OPEN, dir_fd=level.descriptor))
        except OSError:
            return  # gone, or no directory any more
        if inside.device != self._device:
            inside.close()
            return
        level.close()
        self._above.append(level)
        self._level = inside

    def _ascend(self, level: "_Level") -> None:
        self._level = None
        if self._above:
            above = self._above.pop()
            if above.reopen(level):
                self._level = above
            else:  # somebody moves directories while we are in them
                self.is_whole = False
        level.close()


class _Level:
    """A directory on the way down. Its entries are read to their end before one of them is entered."""

    def __init__(self, descriptor: int) -> None:
        """Owns the descriptor."""
        seen = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device, self._inode = seen.st_dev, seen.st_ino
        self.directories: list[str] = []
        self._entries: Any = None  # of os.scandir, whose type has no public name
        self._is_read = False

    def next_entry(self) -> "os.DirEntry[str] | None":
        if self._is_read:
            return None
        try:
            if self._entries is None:
                self._entries = os.scandir(self.descriptor)
            entry: os.DirEntry[str] | None = next(self._entries, None)
        except OSError:
            entry = None
        if entry is None:
            self._entries, self._is_read = None, True
        return entry

    def reopen(self, below: "_Level") -> bool:
        try:
            descriptor = os.open("..", _OPEN, dir_fd=below.descriptor)
        except OSError:
            return False
        seen = os.fstat(descriptor)
        if (seen.st_dev, seen.st_ino) != (self.device, self._inode):
            os.close(descriptor)
            return False
        self.descriptor = descriptor
        return True

    def close(self) -> None:
        if self._entries is not None:
            self._entries.close()
            self._entries = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def unlinked_usage(pids: Iterable[int], devices: Collection[int], proc: str = "/proc") -> Usage:
    """What processes hold in files that have no name any more, on filesystems with these device numbers: no walk finds
    it, and it is given back when they end."""
    found: set[tuple[int, int]] = set()
    used = 0
    for pid in pids:
        directory = f"{proc}/{pid}/fd"
        try:
            names = os.listdir(directory)
        except OSError:
            continue  # it has ended
        for name in names[:_MOST_DESCRIPTORS]:
            try:
                seen = os.stat(f"{directory}/{name}")
            except OSError:
                continue
            key = (seen.st_dev, seen.st_ino)
            if (
                not seen.st_nlink
                and stat.S_ISREG(seen.st_mode)
                and seen.st_dev in devices
                and key not in found
            ):
                found.add(key)
                used += seen.st_blocks * _BLOCK_BYTES
    return Usage(used, len(found))
