"""A terminal of a container, made in the container's own /dev/pts, so that its name is valid there."""

import errno
import fcntl
import os
import stat
import struct

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor.event_loop import Descriptors
from evenkeel.runtime.procfs import start_ticks

_TIOCSPTLCK = 0x4004_5431
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)
_IN_DEVPTS = "dev/pts/ptmx"


def open_terminal(pid: int, ticks: int) -> tuple[int, int]:
    """Makes a terminal in the container of this process. Returns the side of the agent and the side of the command.

    The container controls its paths. So the file is looked at before it is opened, and the command's side is opened
    through the agent's side, not by its name. Raises EvenkeelError.
    """
    try:
        with Descriptors() as opened:
            root = opened.add(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            if start_ticks(pid) != ticks:
                raise EvenkeelError("the container has ended meanwhile")
            resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
            device = opened.add(syscalls.open_within(root, _IN_DEVPTS, os.O_PATH, resolve))
            _require_ptmx(os.fstat(device))
            return open_both_sides(f"/proc/self/fd/{device}")
    except OSError as error:
        raise EvenkeelError(
            f"the container cannot have a terminal: /{_IN_DEVPTS}: {reason(error)}",
            hint="leave -t out",
        ) from None


def open_both_sides(path: str) -> tuple[int, int]:
    """Opens a new terminal through the device at `path`. Neither side becomes our controlling terminal."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    ours = os.open(path, flags | os.O_NONBLOCK)
    try:
        fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
        theirs = fcntl.ioctl(ours, _TIOCGPTPEER, flags)
    except OSError:
        os.close(ours)
        raise
    return ours, theirs


def _require_ptmx(found: os.stat_result) -> None:
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _PTMX:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
