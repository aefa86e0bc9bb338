"""Opens the part of a volume that a subPath names. No symlink in the volume leads out of it.

A container that shares the volume may make symlinks there at any time. So the kernel itself resolves the path, and the
result is a descriptor: what is mounted is what was checked.
"""

import errno
import os
import stat

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

_TRIES = 16


class SubPathRefused(EvenkeelError):
    """The subPath leads out of the volume, or cannot be opened."""


def open_sub_path(volume: int, sub_path: str, *, must_exist: bool = False) -> int:
    """Returns a descriptor of the subPath. Missing directories are made, with the volume's permissions, unless it must
    exist. Raises SubPathRefused."""
    mode = os.fstat(volume).st_mode & 0o7777
    try:
        return open_below(volume, sub_path) if must_exist else made_below(volume, sub_path, mode)
    except OSError as error:
        if error.errno == errno.EXDEV:
            problem = "leads out of the volume"
        elif must_exist and error.errno == errno.ENOENT:
            problem = "is no file of the volume"
        else:
            problem = f"cannot be opened: {reason(error)}"
        raise SubPathRefused(f"subPath {sub_path} {problem}") from None


def made_below(directory: int, path: str, mode: int) -> int:
    """Returns a descriptor of `path` below the directory. Missing directories are made. Raises OSError, with EXDEV if
    the path leads out."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    parent = os.dup(directory)
    try:
        for count, name in enumerate(names, 1):
            part = "/".join(names[:count])
            try:
                found = open_below(directory, part)
            except FileNotFoundError:
                os.mkdir(name, mode, dir_fd=parent)
                found = open_below(directory, part)
                if stat.S_ISDIR(os.fstat(found).st_mode):  # a container may have put something else there
                    os.chmod(f"/proc/self/fd/{found}", mode)  # the umask took a part of it away
            os.close(parent)
            parent = found
    except OSError:
        os.close(parent)
        raise
    return parent


def open_below(directory: int, path: str) -> int:
    """Returns a descriptor of `path` below the directory. Raises OSError, with EXDEV if it leads out."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
    for _ in range(_TRIES):
        try:
            return syscalls.open_within(directory, path, os.O_PATH, resolve)
        except BlockingIOError:  # a path was renamed meanwhile
            pass
    return syscalls.open_within(directory, path, os.O_PATH, resolve)
