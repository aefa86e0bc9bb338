"""The agent's state directory. It belongs to one user. A lock ensures that only one agent at a time uses it."""

import fcntl
import os

from evenkeel.errors import EvenkeelError

NAME = "lock"


class StateLock:
    def __init__(self, descriptor: int) -> None:
        """Use `acquire`."""
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: str) -> "StateLock":
        """Locks `directory`/lock. Raises EvenkeelError if another agent holds the lock, and names its pid."""
        path = os.path.join(directory, NAME)
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise EvenkeelError(
                    f"cannot lock the state directory {directory}: {(error.strerror or str(error)).lower()}",
                    hint="give one that is yours with --state-dir",
                ) from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_there(path, descriptor):
                    _sign(descriptor)
                    return cls(descriptor)
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise EvenkeelError(
                    f"another agent{holder} runs with the state directory {directory}",
                    hint="stop it first, or give another --state-dir",
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise EvenkeelError(
                    f"cannot lock {path}: {(error.strerror or str(error)).lower()}",
                    hint="give a state directory on a local file system with --state-dir",
                ) from None
            os.close(descriptor)  # the file was removed in the meantime: lock the new one

    def release(self) -> None:
        """Releases the lock. The file stays: it may already be the lock of another agent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_still_there(path: str, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sign(descriptor: int) -> None:
    """Writes the holder's pid to the lock file, for the error message of another agent. The lock holds even if a full
    disk prevents this."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass


def _holder(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return f" (pid {text})" if text.isdigit() else ""


def made_state_directory(directory: str) -> str:
    """Makes the state directory, with access for its owner only. A user that can write here decides what runs as
    root."""
    path = os.path.abspath(directory)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        seen = os.stat(path)
        if seen.st_uid != os.geteuid():
            raise EvenkeelError(
                f"--state-dir {path} belongs to user {seen.st_uid}, and the agent runs as user {os.geteuid()}",
                hint=f"chown {os.geteuid()} {path}, or name another directory",
            )
        if seen.st_mode & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        raise EvenkeelError(
            f"--state-dir {path} cannot be made: {(error.strerror or str(error)).lower()}"
        ) from None
    return path
