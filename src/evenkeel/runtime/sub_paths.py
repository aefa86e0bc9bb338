"""Opens the part of a volume that a subPath names. No symlink in the volume leads out of it.

A container that shares the volume may make symlinks there at any time. So the kernel itself resolves the path, and the
result is a descriptor: what is mounted is what was checked.
"""

import errno
import os

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

_TRIES = 16


class SubPathRefused(EvenkeelError):
    """The subPath leads out of the volume, or cannot be opened."""


def open_sub_path(volume: int, sub_path: str, *, must_exist: bool = False) -> int:
    """Returns a descriptor of the subPath. Missing directories are made, with the volume's permissions, unless it must
    exist. Raises SubPathRefused."""
    names = [name for name in sub_path.split("/") if name not in ("", ".")]
    mode = os.fstat(volume).st_mode & 0o7777
    parent = os.dup(volume)
    try:
        for count, name in enumerate(names, 1):
            path = "/".join(names[:count])
            try:
                found = _open_beneath(volume, path)
            except FileNotFoundError:
                if must_exist:
                    raise
                os.mkdir(name, mode, dir_fd=parent)
                found = _open_beneath(volume, path)
            os.close(parent)
            parent = found
    except OSError as error:
        os.close(parent)
        if error.errno == errno.EXDEV:
            problem = "leads out of the volume"
        elif must_exist and error.errno == errno.ENOENT:
            problem = "is no file of the volume"
        else:
            problem = f"cannot be opened: {reason(error)}"
        raise SubPathRefused(f"subPath {sub_path} {problem}") from None
    return parent


def _open_beneath(directory: int, path: str) -> int:
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
    for _ in range(_TRIES):
        try:
            return syscalls.open_within(directory, path, os.O_PATH, resolve)
        except BlockingIOError:  # a path was renamed meanwhile
            pass
    return syscalls.open_within(directory, path, os.O_PATH, resolve)
