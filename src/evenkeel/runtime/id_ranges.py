"""User IDs for pods with a user namespace (hostUsers: false): each pod gets a range of the host's IDs.

As in kubelet, a range has 65536 users and as many groups of the same numbers, and the first range begins at 65536. It
is the pod's from its first start to its removal, and is written down in the pod's directory before it is used: no two
pods of the machine have the same one, also after a restart of the agent, or with several agents. Ranges that the
machine's own files give to other users are left out.

The numbers of users belong to the machine, not to an agent. So the state directories of all agents on this machine
whose pods have users of their own are entered in one place, with a lock among them. An agent enters its own before it
gives a range to a pod, and looks into the records of the others under the lock. The entries are symlinks below /run, so
they are gone after a reboot. All processes with such users are gone then too. The name of an entry ends with the device
of the directory: if that cannot be found now, its file system may be unmounted, and its pods count again when it is
mounted."""

import errno
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.host.node_figures import boot_id
from evenkeel.runtime.paths import StatePaths, make_directory, names_in, read_json, write_json

LENGTH = 1 << 16  # users of a pod
_RANGES = range(1, 1 << 15)  # below 2^31: some programs take numbers above it for negative ones
_RECORD = "users"  # in the pod's directory
_FIRST, _BOOT = "first", "boot"
# The users, groups and ranges of the machine: the field with the first number, and with the amount if there is one.
_TAKEN_BY_OTHERS = (
    ("/etc/subuid", 1, 2),
    ("/etc/subgid", 1, 2),
    ("/etc/passwd", 2, None),
    ("/etc/group", 2, None),
)
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


class NoRange(EvenkeelError):
    """The pod cannot get users of its own."""


class IdRanges:
    """The ranges of all pods of one state directory. Its methods may be called by any thread.

    `agents` are those of the machine. None if this agent does not run as root: then it cannot give users to processes.
    """

    def __init__(self, paths: StatePaths, agents: AgentsOfMachine | None) -> None:
        self._paths = paths
        self._agents = agents
        self._lock = threading.Lock()
        self._of_pod: dict[str, int] = {}
        # By state directory: the ranges of other agents, as they were last seen. They count while it is unmounted.
        self._of_others: dict[str, set[int]] = {}
        self._is_read = False

    def take(self, uid: str) -> int:
        """Returns the first user of the pod, which gets a range if it has none: then it waits for other agents. Raises
        NoRange."""
        if self._is_read and (known := self._of_pod.get(uid)) is not None:
            return known
        with self._lock:
            if not self._is_read or uid not in self._of_pod:
                try:
                    with self._agents.locked() if self._agents is not None else nullcontext():
                        self._give(uid)
                except OSError as error:
                    raise NoRange(
                        f"hostUsers: false: no users can be given to the pod: {reason(error)}"
                    ) from None
            return self._of_pod[uid]

    def release(self, uid: str) -> None:
        """The pod and its directory are gone."""
        self._of_pod.pop(uid, None)  # without the lock, as it must not wait

    def _give(self, uid: str) -> None:
        of_others = set(self._of_other_agents())
        if not self._is_read:
            self._of_pod.update(self._kept(of_others))
            self._is_read = True
        if uid not in self._of_pod:
            first = free_range([*self._of_pod.values(), *of_others], taken_by_others())
            self._record(uid, first)
            self._of_pod[uid] = first

    def _kept(self, of_others: set[int]) -> Iterator[tuple[str, int]]:
        """The ranges that former agents have given to pods of this state directory. They are read when the first pod
        asks for one.

        A range from before the last boot may have been given to a pod of another agent since: nothing of ours runs with
        it, so the pod gets another one.
        """
        boot = boot_id()
        for uid, first, of_boot in _records(self._paths.pods):
            if of_boot in ("", boot):
                yield uid, first
            elif first in of_others:
                os.unlink(f"{self._paths.pod(uid)}/{_RECORD}")
            else:
                self._record(uid, first)
                yield uid, first

    def _record(self, uid: str, first: int) -> None:
        make_directory(self._paths.pod(uid))
        write_json(self._paths.pod(uid), _RECORD, {_FIRST: first, _BOOT: boot_id()})

    def _of_other_agents(self) -> Iterator[int]:
        others = self._agents.others() if self._agents is not None else {}
        before, self._of_others = self._of_others, {}
        for directory, is_there in others.items():
            ranges = {first for _, first, _ in _records(StatePaths(directory).pods)}
            self._of_others[directory] = ranges if is_there else ranges | before.get(directory, set())
            yield from self._of_others[directory]


def _records(pods: str) -> Iterator[tuple[str, int, str]]:
    """Yields the UID, the first user and the boot of all pods in a directory of pods that have users of their own."""
    for uid in names_in(pods):
        record = read_json(f"{pods}/{uid}", _RECORD) or {}
        if isinstance(record.get(_FIRST), int):
            yield uid, record[_FIRST], str(record.get(_BOOT, ""))


def free_range(taken: Iterable[int], of_others: Iterable[tuple[int, int]]) -> int:
    """Returns the first number of the lowest range that is free. `of_others` are first number and amount. Pure."""
    numbers = {first // LENGTH for first in taken}
    others = [(first // LENGTH, (first + amount - 1) // LENGTH) for first, amount in of_others if amount > 0]
    for number in _RANGES:
        if number not in numbers and not any(low <= number <= high for low, high in others):
            return number * LENGTH
    raise NoRange(
        "hostUsers: false: no users are left for the pod",
        hint="other pods, /etc/subuid and /etc/subgid have all up to 2^31",
    )


def taken_by_others() -> list[tuple[int, int]]:
    return [
        found
        for path, first, amount in _TAKEN_BY_OTHERS
        for found in ranges_in(read_text(path), first, amount)
    ]


def ranges_in(text: str, first: int, amount: int | None) -> Iterator[tuple[int, int]]:
    """Yields the ranges of a file with colons. `first` and `amount` are the numbers of the fields. Pure."""
    for line in text.splitlines():
        fields = line.split(":")
        with suppress(IndexError, ValueError):
            yield int(fields[first]), 1 if amount is None else int(fields[amount])
