"""How much disk a directory uses, without `du`: a walk that can be interrupted and continued.

The directories belong to containers, and a container may put anything there. Symlinks are counted and not followed,
mounts are not entered, and a file with several names is counted once. A container may move directories during a walk,
and the walk would not find its way back. So the directories of the first levels stay open. Deeper levels need no more
descriptors: on the way up, the walk opens `..` and checks that it is the directory it came from. It comes back only to
directories in which something is left to do, and remembers no others: a container can make directories a million levels
deep. Blocks are counted, not lengths: a file may be large and have few blocks.

A container may also rename files and directories all the time, so that none has its name any more when the walk comes
to it, or another one has. So what is not there under its name is opened by its number (`inodes`), which no renaming
changes. Where the filesystem cannot do that, such a directory is not found, and `missed` says how many were not.
"""

import errno
import os
import stat
from array import array
from contextlib import suppress
from typing import Any

from evenkeel.host.inodes import open_inode
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
        self.missed = 0  # directories that could not be entered: they are gone, or have another name
        self._bytes = 0
        self._inodes = 0
        self._linked: set[int] = set()  # inodes that were counted and may come again, under another name
        self._pending = 0  # directories still to be entered
        self._above: list[_Level] = []  # the directories above the present one that the walk comes back to
        self._level: _Level | None = None
        self._device = 0
        self._root = ""  # its path, as the kernel has it
        self._has_numbers: bool | None = (
            None  # whether files can be opened by their numbers, if that is known
        )
        self._remembered = 0  # directories that were noted as entered, in all levels
        self._instead: set[int] = set()  # directories that had the name of another one
        try:
            self._level = _Level(os.open(path, _OPEN))
            self._root = _path_of(self._level.descriptor)
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
        """Counts at most this many entries. Returns how many it has counted."""
        counted = 0
        while self._level is not None and counted < entries:
            entry = self._level.next_entry()
            if entry is not None:
                self._count(entry, self._level)
            elif self._level.directories:
                self._descend(self._level, self._level.directories.pop(), self._level.inodes.pop())
            else:
                self._ascend(self._level)
            counted += 1
        return counted

    def close(self) -> None:
        for level in (*self._above, *filter(None, (self._level,))):
            level.close()
        self._above, self._level = [], None

    def _count(self, entry: "os.DirEntry[str]", level: "_Level") -> None:
        seen, has_moved = self._seen(entry, level)
        if seen is None:
            return  # it is gone
        if seen.st_dev != self._device:
            return  # a mount
        is_directory = stat.S_ISDIR(seen.st_mode)
        if not is_directory:
            if seen.st_ino in self._linked:
                return
            if (seen.st_nlink > 1 or has_moved) and len(self._linked) < _MOST_REMEMBERED:
                self._linked.add(seen.st_ino)
        self._bytes += seen.st_blocks * _BLOCK_BYTES
        self._inodes += 1
        if is_directory:
            if self._pending < _MOST_REMEMBERED:
                self._pending += 1
                level.directories.append(entry.name)
                level.inodes.append(seen.st_ino)
            else:
                self.is_whole = False

    def _seen(self, entry: "os.DirEntry[str]", level: "_Level") -> tuple[os.stat_result | None, bool]:
        """The status of the file, None if it is gone; and whether it had another name by now."""
        descriptor = -1
        try:
            return entry.stat(follow_symlinks=False), False
        except OSError:
            with suppress(OSError):
                descriptor = self._by_number(entry.inode(), os.O_PATH | os.O_NOFOLLOW, level)
        if descriptor < 0:
            return None, False
        try:
            return os.fstat(descriptor), True
        finally:
            os.close(descriptor)

    def _by_number(self, inode: int, flags: int, level: "_Level") -> int:
        """Opens a file that has another name by now; −1 if it is gone. Raises OSError if that is not known."""
        try:
            descriptor = open_inode(inode, flags, level.descriptor)
        except OSError as error:
            if self._has_numbers is None:
                self._has_numbers = _has_numbers(level)
            if error.errno == errno.ESTALE and self._has_numbers:
                return -1
            raise
        try:
            # Its number may be that of a file of others by now.
            if _path_of(descriptor).startswith(f"{self._root}/") and os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return -1

    def _entered(self, level: "_Level", name: str, inode: int) -> "_Level | None":
        """Opens the directory that had this name and number. None if there is nothing to enter."""
        inside = None
        with suppress(OSError):
            inside = _Level(os.open(name, _OPEN, dir_fd=level.descriptor))
        if inode in level.entered and inside is not None:
            # It was read twice, under two names. Two directories that take each other's name look like that, too.
            inode = inside.inode
        if inode in level.entered:
            if inside is not None:
                inside.close()
            return None
        if (level.directories or level.entered) and self._remembered < _MOST_REMEMBERED:
            self._remembered += 1
            level.entered.add(inode)
        if inside is not None and inside.inode == inode:
            return inside
        try:
            descriptor = self._by_number(inode, _OPEN, level)
        except OSError:
            self.missed += 1  # it is gone, or has another name
            return inside
        if descriptor < 0:
            return inside  # another directory, which was made in its place; or nothing
        if inside is not None:
            self._enter_later(level, name, inside.inode)
            inside.close()
        return _Level(descriptor)

    def _enter_later(self, level: "_Level", name: str, inode: int) -> None:
        """A directory had the name of another one. Perhaps they take each other's name in turn, so that only one of
        them was read."""
        is_new = inode not in level.entered and inode not in self._instead
        if is_new and self._pending < _MOST_REMEMBERED and len(self._instead) < _MOST_REMEMBERED:
            self._instead.add(inode)
            self._pending += 1
            level.directories.append(name)
            level.inodes.append(inode)

    def _descend(self, level: "_Level", name: str, inode: int) -> None:
        self._pending -= 1
        inside = self._entered(level, name, inode)
        if inside is None:
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

    __slots__ = (
        "_entries",
        "below",
        "descriptor",
        "device",
        "directories",
        "entered",
        "inode",
        "inodes",
        "is_read",
    )

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        seen = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device, self.inode = seen.st_dev, seen.st_ino
        self.directories: list[str] = []  # still to be entered
        self.inodes = array("Q")  # and their numbers
        self.entered: set[int] = set()  # the numbers of others, if there were others
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


def _has_numbers(level: "_Level") -> bool:
    """Whether files of this filesystem can be opened by their numbers: this one is there."""
    try:
        os.close(open_inode(level.inode, _OPEN, level.descriptor))
    except OSError:
        return False
    return True


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
