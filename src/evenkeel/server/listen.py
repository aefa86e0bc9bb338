"""The agent's Unix socket in its state directory, reached through a descriptor of that directory: the kernel limits a
socket's path to about a hundred bytes, and a state directory may lie deeper."""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.errors import EvenkeelError

SOCKET_NAME = "agent.sock"
_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def listen(state_dir: str) -> socket.socket:
    """A socket that listens at agent.sock, root's alone (0600). One that an agent left behind is replaced; one at which
    another agent answers is an error."""
    here = os.path.join(state_dir, SOCKET_NAME)
    with _reached(state_dir) as directory:
        path = f"{directory}/{SOCKET_NAME}"
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise EvenkeelError(f"cannot listen at {here}: what is there is not a socket")
            if _is_answered(path):
                raise EvenkeelError(f"another agent listens at {here}")
        listening = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            # Made under another name and renamed, so that it is nobody else's at any moment, and there at all moments.
            new = f"{path}.{os.getpid()}"
            if os.path.lexists(new):
                os.unlink(new)
            listening.bind(new)
            os.chmod(new, 0o600)
            listening.listen(_BACKLOG)
            os.rename(new, path)
        except OSError as error:
            listening.close()
            raise EvenkeelError(
                f"cannot listen at {here}: {(error.strerror or str(error)).lower()}"
            ) from None
        return listening


def connect(state_dir: str) -> socket.socket:
    """Connected to the agent of `state_dir`; OSError if none listens there."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _reached(state_dir) as directory:
            connected.connect(f"{directory}/{SOCKET_NAME}")
    except OSError:
        connected.close()
        raise
    return connected


def remove(state_dir: str, inode: int) -> None:
    """Removes the socket of that inode, and not one that a successor put in its place."""
    try:
        with _reached(state_dir) as directory:
            path = f"{directory}/{SOCKET_NAME}"
            if os.lstat(path).st_ino == inode:
                os.unlink(path)
    except OSError:
        pass  # gone, and that is what was wanted


def inode_at(state_dir: str) -> int:
    with _reached(state_dir) as directory:
        return os.lstat(f"{directory}/{SOCKET_NAME}").st_ino


def peer_uid(connected: socket.socket) -> int:
    """Whose process is at the other end, as the kernel says."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


@contextmanager
def _reached(state_dir: str) -> Iterator[str]:
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
