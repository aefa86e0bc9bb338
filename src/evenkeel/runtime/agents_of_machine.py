"""The state directories of all agents on this machine whose pods have users of their own, and a lock among them.

The numbers of users belong to the machine, not to an agent. An agent enters its state directory here before it gives a
range to a pod, and looks into the records of the others under the lock. The entries are symlinks below /run, so they
are gone after a reboot, as everything is that ran with such users. The name of an entry ends with the device of the
directory: if that cannot be found now, its file system may be unmounted, and its pods count again when it is mounted.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.runtime.paths import make_directory, names_in

DIRECTORY = "/run/evenkeel/users"
_LOCK = "lock"
_DEVICE = "."  # in the name of an entry, before the device
_WAIT_SECONDS, _POLL_SECONDS = 10.0, 0.05  # another agent has the lock for milliseconds, unless it is stopped


class AgentsOfMachine:
    """The methods block for a moment, and raise OSError."""

    def __init__(self, state_directory: str, directory: str = DIRECTORY) -> None:
        self._state_directory = os.path.realpath(state_directory)
        self._directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one agent of the machine is in this context at a time. Our state directory is among the entries then."""
        make_directory(self._directory)
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{self._directory}/{_LOCK}", flags, 0o600)
        try:
            _take(lock)
            self._enter()
            yield
        finally:
            os.close(lock)

    def _enter(self) -> None:
        """Makes our entry, and removes those that are not of the present device or of an earlier version."""
        of_us, device = _name(self._state_directory), os.stat(self._state_directory).st_dev
        present = f"{of_us}{_DEVICE}{device}"
        names = names_in(self._directory)
        for name in names:
            if name.partition(_DEVICE)[0] == of_us and name != present:
                os.unlink(f"{self._directory}/{name}")
        if present not in names:
            os.symlink(self._state_directory, f"{self._directory}/{present}")

    def others(self) -> dict[str, bool]:
        """Returns the state directories of the other agents, and whether each is there: otherwise its file system seems
        to be unmounted. It is called in `locked`: entries of directories that were removed are removed."""
        found: dict[str, bool] = {}
        for name in names_in(self._directory):
            entry = f"{self._directory}/{name}"
            of_directory, _, device = name.partition(_DEVICE)
            if name == _LOCK or of_directory == _name(self._state_directory):
                continue
            path = os.readlink(entry)
            try:
                is_there = device in ("", str(os.stat(path).st_dev))
                is_removed = False
            except (FileNotFoundError, NotADirectoryError):
                is_there, is_removed = False, device in ("", str(_device_above(path)))
            except OSError:  # its file system does not answer
                is_there = is_removed = False
            if is_removed:
                os.unlink(entry)
            else:
                found[path] = found.get(path, False) or is_there
        return found


def _device_above(path: str) -> int | None:
    """The device of the nearest directory above the path that is there. It is that of a directory that was removed, and
    another one if a file system is unmounted. None if a file system does not answer."""
    while True:
        path = os.path.dirname(path)
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None


def _take(lock: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(
                    errno.ETIMEDOUT, "another agent holds the lock of users and does not go on"
                ) from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _name(state_directory: str) -> str:
    return hashlib.sha256(os.fsencode(state_directory)).hexdigest()[:32]
