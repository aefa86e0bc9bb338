"""The streams of processes in a container: FIFOs of the attempt, or a terminal.

A terminal is made in the container's own /dev/pts, so that its name is valid there.
"""

import errno
import fcntl
import os
import stat
import struct
import termios

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor.event_loop import Descriptors
from evenkeel.runtime.procfs import start_ticks

IN_CONTAINER, ON_HOST = "/dev/pts/ptmx", "/dev/ptmx"  # where a terminal is made
_TIOCSPTLCK = 0x4004_5431
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)
_IN_DEVPTS = "dev/pts/ptmx"


def take_pipes(directory: str, *, has_stdin: bool, stdin_ends: bool) -> None:
    """Opens the FIFOs of the attempt as our streams.

    The output is open for reading too, so a write never fails for lack of a reader if the supervisor is gone. The input
    is open for writing too, so it does not end if the supervisor is gone; except where its end has a meaning.
    """
    streams = [(1, supervisor_protocol.STDOUT, os.O_RDWR), (2, supervisor_protocol.STDERR, os.O_RDWR)]
    if has_stdin:
        # It does not wait for the supervisor, which may be gone.
        mode = os.O_RDONLY | os.O_NONBLOCK if stdin_ends else os.O_RDWR
        streams.append((0, supervisor_protocol.STDIN, mode))
    for number, name, mode in streams:
        os.dup2(os.open(f"{directory}/{name}", mode | os.O_CLOEXEC | os.O_NOFOLLOW), number)
        os.set_blocking(number, True)


def take_terminal(device: str) -> int:
    """Makes a terminal: our streams and our controlling terminal. Returns the supervisor's side. Raises
    EvenkeelError."""
    try:
        ours, terminal = open_both_sides(device)
    except OSError as error:
        raise EvenkeelError(f"tty: no terminal can be made with {device}: {reason(error)}") from None
    for number in range(3):
        os.dup2(terminal, number)
    os.close(terminal)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return ours


def give_to(uid: int | None, gid: int = -1) -> None:
    """Lets the user open /dev/stdin and the like again. Of our streams only those that were made for the container
    get another owner: /dev/null is the host's."""
    if uid is None or os.geteuid() != 0:
        return
    for number in range(3):
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            os.fchown(number, uid, gid)
        elif os.isatty(number):  # it has the group of terminals
            os.fchown(number, uid, -1)


def hand_over(connection: int, descriptor: int) -> None:
    """Sends a descriptor to the supervisor, and closes it here."""
    syscalls.send_descriptor(connection, descriptor)
    os.close(descriptor)


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
