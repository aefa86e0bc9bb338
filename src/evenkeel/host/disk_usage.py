"""How much disk a directory uses, without `du`: a walk that can be interrupted and continued.

The directories belong to containers, and a container may put anything there. Symlinks are counted and not followed,
mounts are not entered, and a file with several names is counted once. A container may move directories during a walk,
and the walk would not find its way back. So the directories of the first levels stay open. Deeper levels need no more
descriptors: on the way up, the walk opens `..` and checks that it is the directory it came from. It comes back only to
directories in which something is left to do, and remembers no others: a container can make directories a million levels
deep. Blocks are counted, not lengths: a file may be large and have few blocks.

A directory that is renamed between the reading of its name and its opening is not found. A container that does so all
the time hides it from every walk. `missed` says how many were not found.
"""

import os
import stat
from typing import Any

from evenkeel.named_tuples import NamedTuple

_BLOCK_BYTES = 512  # the unit of st_blocks on every filesystem
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_REMEMBERED = 250_000  # directories to be entered, and files with several names: this bounds memory
_KEPT_LEVELS = 48  # directories above the present one that stay open


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
    """Everything below a directory. The directory itself does not count: its user did not make it. A directory that
    does not exist has nothing in it."""

    def __init__(self, path: str) -> None:
        self.is_whole = True  # False: not everything was counted
        self.missed = 0  # directories that were gone, or had another name, when they were to be entered
        self._bytes = 0
        self._inodes = 0
        self._linked: set[int] = set()  # inodes with several names that were counted
        self._pending = 0  # directories still to be entered
        self._above: list[_Level] = []  # the directories above the present one that the walk comes back to
        self._level: _Level | None = None
        self._device = 0
        try:
            self._level = _Level(os.open(path, _OPEN))
        except OSError:
            return
        self._device = self._level.device

    @property
    def usage(self) -> Usage:
        """The usage that was counted so far."""
        return Usage(self._bytes, self._inodes)

    @property
    def is_done(self) -> bool:
        return self._level is None

    def advance(self, entries: int) -> int:
        """Counts at most so many entries; returns how many it was."""
        counted = 0
        while self._level is not None and counted < entries:
            entry = self._level.next_entry()
            if entry is not None:
                self._count(entry, self._level)
            elif self._level.directories:
                self._descend(self._level, self._level.directories.pop())
            else:
                self._ascend(self._level)
            counted += 1
        return counted

    def close(self) -> None:
        for level in (*self._above, *filter(None, (self._level,))):
            level.close()
        self._above, self._level = [], None

    def _count(self, entry: "os.DirEntry[str]", level: "_Level") -> None:
        try:
            seen = entry.stat(follow_symlinks=False)
        except OSError:
            return  # it is gone
        if seen.st_dev != self._device:
            return  # a mount
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
            self.missed += 1  # gone, or no directory any more
            return
        if inside.device != self._device:
            inside.close()
            return
        if level.directories:
            self._above.append(level)
            if len(self._above) > _KEPT_LEVELS:
                level.close()
        else:
            level.close()
            if self._above:
                self._above[-1].below += 1
        self._level = inside

    def _ascend(self, level: "_Level") -> None:
        """Goes up to the nearest directory that is open, or one level towards the nearest one that is not."""
        if not self._above:
            self._level = None
        elif self._above[-1].is_open:
            self._level = self._above.pop()
        else:
            self._level = self._one_up(level)
        level.close()

    def _one_up(self, level: "_Level") -> "_Level | None":
        try:
            up = _Level(os.open("..", _OPEN, dir_fd=level.descriptor))
        except OSError:
            up = None
        above = self._above[-1]
        if up is not None and above.below:
            above.below -= 1
            up.is_read = True  # nothing is left to do in it
            return up
        try:
            while self._above:
                above = self._above.pop()
                if above.is_open:
                    return above
                if up is not None and above.is_same(up):
                    above.take(up)
                    return above
                # A directory was moved while the walk was inside it. The way goes on from one that is open.
                self.is_whole = False
                self._pending -= len(above.directories)
        finally:
            if up is not None:
                up.close()
        return None


class _Level:
    """A directory of the walk. All its entries are read before one of them is entered."""

    __slots__ = ("_entries", "below", "descriptor", "device", "directories", "inode", "is_read")

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        seen = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device, self.inode = seen.st_dev, seen.st_ino
        self.directories: list[str] = []  # still to be entered
        self.below = 0  # levels between this one and the next one below that the walk comes back to, or is in
        self.is_read = False
        self._entries: Any = None  # of os.scandir, whose type has no public name

    @property
    def is_open(self) -> bool:
        return self.descriptor >= 0

    def next_entry(self) -> "os.DirEntry[str] | None":
        if self.is_read:
            return None
        try:
            if self._entries is None:
                self._entries = os.scandir(self.descriptor)
            entry: os.DirEntry[str] | None = next(self._entries, None)
        except OSError:
            entry = None
        if entry is None:
            self._entries, self.is_read = None, True
        return entry

    def is_same(self, other: "_Level") -> bool:
        return (self.device, self.inode) == (other.device, other.inode)

    def take(self, other: "_Level") -> None:
        """Takes over the descriptor of the other one, which is the same directory."""
        self.descriptor, other.descriptor = other.descriptor, -1

    def close(self) -> None:
        if self._entries is not None:
            self._entries.close()
            self._entries = None
        if self.is_open:
            os.close(self.descriptor)
            self.descriptor = -1
