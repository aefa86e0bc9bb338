"""OOM scores of processes that run already: daemons, and containers whose score changes (A12, A14).

A process that the agent starts has its score before its first instruction (A17), so it does not need this module."""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple

_MOST_ROUNDS = 100
# Longer than a fork takes: a fork that is under way is not visible, and daemons cannot be frozen.
_PAUSE_SECONDS = 0.002
_INIT = 1


class Refused(NamedTuple):
    """A process whose score the kernel did not let us set; `kept` is the score that it has now."""

    pid: int
    kept: int
    why: str


class ScoresSet(NamedTuple):
    """The result of setting `score`."""

    score: int
    processes: int
    changed: int
    refused: tuple[Refused, ...] = ()
    is_stable: bool = True  # False: new processes appeared faster than their score could be set

    @property
    def message(self) -> str:
        """A sentence for the user if something is wrong; else empty."""
        if self.refused:
            one = self.refused[0]
            rest = f" and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
            what = f"could not be given oom_score_adj {self.score} and has {one.kept}"
            return f"process {one.pid}{rest} {what}: {one.why}"
        if not self.is_stable:
            return f"not every process has oom_score_adj {self.score}: new ones appear faster than they can be set"
        return ""


def set_oom_scores(
    list_processes: Callable[[], Iterable[int]],
    score: int,
    *,
    standstill: Callable[[], AbstractContextManager[None]] | None = None,
    proc: str = "/proc",
) -> ScoresSet:
    """Gives every process that `list_processes` names the score, and repeats until nothing is left to set (A14).

    A refusal of the kernel is part of the result, and the rest is done. A score below what is allowed becomes the
    lowest that is allowed. A child that is being forked has the old score of its parent and is in no list yet.
    `standstill` (`frozen`, for a container) prevents that. Without it, two rounds in a row with nothing to set must be
    enough.
    """
    rounds = _Rounds(list_processes, score, proc)
    if rounds.once():
        return rounds.result(is_stable=True)
    if standstill is not None:
        return rounds.result(is_stable=_standing_still(rounds, standstill))
    was_quiet = False
    for _ in range(_MOST_ROUNDS):
        is_quiet = rounds.once()
        if is_quiet and was_quiet:
            return rounds.result(is_stable=True)
        if is_quiet:
            time.sleep(_PAUSE_SECONDS)
        was_quiet = is_quiet
    return rounds.result(is_stable=False)


def _standing_still(rounds: "_Rounds", standstill: Callable[[], AbstractContextManager[None]]) -> bool:
    try:
        with standstill():
            return any(rounds.once() for _ in range(_MOST_ROUNDS))
    except EvenkeelError:
        return False


@contextmanager
def frozen(driver: Driver, path: str) -> Iterator[None]:
    """Freezes a container for `standstill`. Not for a cgroup that may hold this process."""
    driver.freeze(path, frozen=True)
    try:
        yield
    finally:
        driver.freeze(path, frozen=False)


class _Rounds:
    """A process that forks meanwhile gives its child the new score or the old one; then the next round finds the child.
    So nothing is left to do when every listed process was seen with the score."""

    def __init__(self, list_processes: Callable[[], Iterable[int]], score: int, proc: str) -> None:
        self._list_processes = list_processes
        self._score = score
        self._proc = proc
        self._refused: dict[int, Refused] = {}
        self._changed: set[int] = set()
        self._seen: set[int] = set()

    def once(self) -> bool:
        """One round; returns whether every process had the score."""
        is_done = True
        for pid in self._list_processes():
            if pid in self._refused:
                continue
            has = read_score(pid, self._proc)
            if has == self._score:
                self._seen.add(pid)
            elif has is not None:
                self._seen.add(pid)
                is_done = False
                self._set(pid, has)
            elif pid not in self._seen:
                is_done = False  # it ended before it was seen, and may have left a child with the old score
        return is_done

    def result(self, *, is_stable: bool) -> ScoresSet:
        refused = tuple(self._refused.values())
        return ScoresSet(self._score, len(self._seen), len(self._changed), refused, is_stable)

    def _set(self, pid: int, has: int) -> None:
        refusal = _set(pid, self._score, has, self._proc)
        if refusal is None:
            self._changed.add(pid)
        else:
            self._refused[pid] = refusal


def protect_daemons(
    pids: Collection[int], list_reserved: Callable[[], Iterable[int]], score: int, proc: str = "/proc"
) -> ScoresSet:
    """Sets the score of the node's daemons (A12): of `pids` (the agent, the container runtime) and of every process in
    the cgroups that are reserved for daemons."""
    return set_oom_scores(
        lambda: [*pids, *(pid for pid in list_reserved() if pid != _INIT)], score, proc=proc
    )


def runtime_process(endpoint: str) -> int | None:
    """The process that serves the socket of the container runtime; None if nothing answers, or if init holds the socket
    and starts the runtime on demand."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(1)
        try:
            connection.connect(endpoint.removeprefix("unix://"))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        except (OSError, ValueError):
            return None
    pid, _, _ = struct.unpack("iII", credentials)
    return int(pid) if pid > _INIT else None


def read_score(pid: int, proc: str = "/proc") -> int | None:
    """None if the process is gone."""
    try:
        descriptor = os.open(_file(pid, proc), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 32))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _set(pid: int, score: int, has: int, proc: str) -> Refused | None:
    error = write_score(pid, score, proc)
    if error is None or error.errno in (errno.ENOENT, errno.ESRCH):
        return None  # done, or it is gone and needs no score
    if error.errno == errno.EACCES and score < 0 < has:
        write_score(pid, 0, proc)
    kept = read_score(pid, proc)
    return Refused(pid, has if kept is None else kept, _refusal_reason(error, score))


def write_score(pid: int, score: int, proc: str) -> OSError | None:
    try:
        descriptor = os.open(_file(pid, proc), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(score).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
    return None


def _refusal_reason(error: OSError, score: int) -> str:
    if error.errno == errno.EACCES and score < 0:
        return (
            "the kernel takes scores below 0 only from a process with CAP_SYS_RESOURCE; give it to the agent, or the"
            " OOM killer may choose this process before a pod"
        )
    return reason(error)


def _file(pid: int, proc: str) -> str:
    return f"{proc}/{pid}/oom_score_adj"
