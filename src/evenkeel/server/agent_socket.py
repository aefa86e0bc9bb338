"""The agent's Unix socket, `agent.sock` in its state directory.

The kernel limits the path of a socket to about a hundred bytes, and a state directory may lie deeper. So the socket is
reached through a descriptor of the directory.
"""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.errors import EvenkeelError, reason

SOCKET_NAME = "agent.sock"
_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def listen(state_dir: str) -> socket.socket:
    """A listening socket at agent.sock, for its owner alone (0600). It replaces a socket that an agent left behind. A
    socket at which another agent answers is an error."""
    here = os.path.join(state_dir, SOCKET_NAME)
    with _short_path(state_dir) as directory:
        path = f"{directory}/{SOCKET_NAME}"
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise EvenkeelError(f"cannot listen at {here}: it exists and is not a socket")
            if _is_answered(path):
                raise EvenkeelError(f"another agent listens at {here}")
        listening = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            # Bound under another name, made private, then renamed: agent.sock exists at every moment, and no other user
            # can connect at any moment.
            new = f"{path}.{os.getpid()}"
            if os.path.lexists(new):
                os.unlink(new)
            listening.bind(new)
            os.chmod(new, 0o600)
            listening.listen(_BACKLOG)
            os.rename(new, path)
        except OSError as error:
            listening.close()
            raise EvenkeelError(f"cannot listen at {here}: {reason(error)}") from None
        return listening


def connect(state_dir: str) -> socket.socket:
    """A connection to the agent of `state_dir`. Raises OSError if no agent listens there."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _short_path(state_dir) as directory:
            connected.connect(f"{directory}/{SOCKET_NAME}")
    except OSError:
        connected.close()
        raise
    return connected


def peer_uid(connected: socket.socket) -> int:
    """The user of the process at the other end, as the kernel says."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


class SocketFile:
    """agent.sock and the state directory around it, by their inodes: either may be deleted under a running agent."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._directory = _identity(os.stat(state_dir))
        self._inode = 0
        self.note()

    def note(self) -> None:
        """The socket that is there now is ours."""
        with _short_path(self._state_dir) as directory:
            self._inode = os.lstat(f"{directory}/{SOCKET_NAME}").st_ino

    def directory_failure(self) -> str:
        """Why the state directory is not the one that the agent was started with; empty if it is."""
        try:
            seen = os.stat(self._state_dir)
        except OSError as error:
            return f"the state directory {self._state_dir} cannot be used: {reason(error)}"
        if _identity(seen) != self._directory:
            return f"the state directory {self._state_dir} was replaced by another directory"
        return ""

    def is_missing(self) -> bool:
        return not os.path.lexists(f"{self._state_dir}/{SOCKET_NAME}")

    def remove(self) -> None:
        """A socket that another agent has put in its place stays."""
        try:
            with _short_path(self._state_dir) as directory:
                path = f"{directory}/{SOCKET_NAME}"
                if os.lstat(path).st_ino == self._inode:
                    os.unlink(path)
        except OSError:
            pass  # it is gone already


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


@contextmanager
def _short_path(state_dir: str) -> Iterator[str]:
    """A short path to the directory, for as long as the context lasts."""
    descriptor = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(path)
        except OSError:
            return False
    return True
