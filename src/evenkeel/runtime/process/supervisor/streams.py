"""The three streams of a container's first process: FIFOs of its attempt, or a terminal of its own."""

import fcntl
import os
import stat
import termios

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor.terminals import open_both_sides

IN_CONTAINER, ON_HOST = "/dev/pts/ptmx", "/dev/ptmx"  # where a terminal is made


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
