"""Removes directories of containers. A container may have made them hard to remove on purpose.

Each step uses a descriptor of the directory. The kernel follows no symlink and enters no mount, so a container cannot
redirect the removal. Any depth is possible: deep directories are moved up first.
"""

import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeVar

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

_DEEPEST = 32  # levels of recursion; each needs two descriptors
_NAMES = 1024  # of one directory that are remembered
_STAY = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602  # ioctl FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_UNREMOVABLE = 0x10 | 0x20  # immutable, append-only


T = TypeVar("T")


class Resists(EvenkeelError):
    """A path could not be removed. The message names it and the reason."""


def remove_tree(path: str) -> None:
    """Removes a directory and everything in it, with any names, depths and flags.

    Follows no symlink and enters no mount (raises Resists). The directory may be gone already.
    """
    above, name = os.path.split(path.rstrip("/"))
    try:
        parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Resists(f"{above} cannot be opened: {reason(error)}") from None
    try:
        _remove(parent, name)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):
            raise Resists(
                f"{path} cannot be removed: something is mounted in it", hint="unmount it first"
            ) from None
        raise Resists(f"{path} cannot be removed: {reason(error)}") from None
    finally:
        os.close(parent)


def empty_tree(path: str) -> None:
    """Removes everything in a directory in the same way, but not the directory, which may be a mount point."""
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Resists(f"{path} cannot be opened: {reason(error)}") from None
    try:
        _empty_whole(top)
    except OSError as error:
        raise Resists(f"{path} cannot be emptied: {reason(error)}") from None
    finally:
        os.close(top)


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        _insist(lambda: os.unlink(name, dir_fd=parent), parent, name)
        return
    top = _open(parent, name)
    try:
        _empty_whole(top)
    finally:
        os.close(top)
    _insist(lambda: os.rmdir(name, dir_fd=parent), parent, name)


def _empty_whole(top: int) -> None:
    """Empties a directory in rounds. Each round removes some levels, and moves deeper directories to the top."""
    while not _empty(top, top, 0):
        pass


def _empty(directory: int, top: int, depth: int) -> bool:
    """Empties a directory. Returns False if a directory was moved to the top instead of being removed."""
    is_empty = True
    with os.scandir(directory) as entries:
        # Some names at a time, as rm does it: a container can make millions of names, and our memory is not its own.
        while found := [(one.name, one.is_dir(follow_symlinks=False)) for one in islice(entries, _NAMES)]:
            for name, is_directory in found:
                # Another removal may run in a part of this tree. Entries that it has removed are skipped.
                with suppress(FileNotFoundError):
                    if not is_directory:
                        _insist(partial(os.unlink, name, dir_fd=directory), directory, name)
                    elif depth == _DEEPEST:
                        is_empty = False
                        _move_up(directory, name, top)
                    else:
                        is_empty &= _empty_and_remove(directory, name, top, depth + 1)
    return is_empty


def _empty_and_remove(directory: int, name: str, top: int, depth: int) -> bool:
    inside = _open(directory, name)
    try:
        is_empty = _empty(inside, top, depth)
    finally:
        os.close(inside)
    _insist(partial(os.rmdir, name, dir_fd=directory), directory, name)
    return is_empty


def _move_up(directory: int, name: str, top: int) -> None:
    new = f"evenkeel-removes-{secrets.token_hex(8)}"
    _insist(lambda: os.rename(name, new, src_dir_fd=directory, dst_dir_fd=top), directory, name)


def _open(parent: int, name: str) -> int:
    """Opens a directory. Raises OSError with EXDEV if it is a mount point."""

    def opened() -> int:
        return syscalls.open_within(parent, name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, _STAY)

    return _insist(opened, parent, name)


def _insist(act: Callable[[], T], directory: int, name: str) -> T:
    try:
        return act()
    except PermissionError:
        _unprotect(directory, ".")
        _unprotect(directory, name)
    return act()


def _unprotect(directory: int, name: str) -> None:
    """Clears the obstacles to a removal: the flags of an entry, and its mode (for users other than root)."""
    try:
        entry = syscalls.open_within(directory, name, os.O_PATH | os.O_NOFOLLOW, _STAY)
    except OSError:
        return
    try:
        mode = os.fstat(entry).st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            return
        here = f"/proc/self/fd/{entry}"
        with suppress(OSError):  # the removal itself will report an error
            os.chmod(here, stat.S_IMODE(mode) | stat.S_IRWXU)
        with suppress(OSError):
            _clear_flags(here)
    finally:
        os.close(entry)


def _clear_flags(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = struct.unpack("I4x", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))[0]
        if flags & _UNREMOVABLE:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("I4x", flags & ~_UNREMOVABLE))
    finally:
        os.close(descriptor)
