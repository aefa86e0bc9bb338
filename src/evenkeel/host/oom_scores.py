"""OOM scores of processes that we did not start: daemons, and containers whose score changes (A12, A14).

What we start has its score before its first instruction (A17) and does not come here.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

# A process that forks while we go round has given its child either the old score, and we see the child the next time
# round, or the new one. So this is far more than it takes, and keeps us from going round for ever all the same.
_MOST_ROUNDS = 100
_INIT = 1


class Refused(NamedTuple):
    """A process whose score the kernel did not let us set; `kept` is the score it has now."""

    pid: int
    kept: int
    why: str


class ScoresSet(NamedTuple):
    """What became of setting `score`."""

    score: int
    processes: int
    changed: int
    refused: tuple[Refused, ...] = ()
    is_stable: bool = True  # False: new processes kept coming faster than we could set their score

    @property
    def message(self) -> str:
        """What the user should know, if anything."""
        if self.refused:
            one = self.refused[0]
            rest = f" and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
            what = f"could not be given oom_score_adj {self.score} and has {one.kept}"
            return f"process {one.pid}{rest} {what}: {one.why}"
        if not self.is_stable:
            return f"not every process has oom_score_adj {self.score}: new ones appear faster than they can be set"
        return ""


def set_oom_scores(list_processes: Callable[[], Iterable[int]], score: int, proc: str = "/proc") -> ScoresSet:
    """Gives every process that `list_processes` names the score, and goes round until nothing is left to set (A14).

    Where the kernel refuses, it is said and the rest is done. A score below what is allowed becomes the lowest that is.
    """
    refused: dict[int, Refused] = {}
    changed: set[int] = set()
    seen: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        wrote = False
        for pid in list_processes():
            seen.add(pid)
            if pid in refused:
                continue
            has = read_score(pid, proc)
            if has is None or has == score:
                continue
            wrote = True
            refusal = _set(pid, score, has, proc)
            if refusal is None:
                changed.add(pid)
            else:
                refused[pid] = refusal
        if not wrote:
            return ScoresSet(score, len(seen), len(changed), tuple(refused.values()))
    return ScoresSet(score, len(seen), len(changed), tuple(refused.values()), is_stable=False)


def protect_daemons(
    pids: Collection[int], list_reserved: Callable[[], Iterable[int]], score: int, proc: str = "/proc"
) -> ScoresSet:
    """The score of the node's daemons (A12): `pids` (the agent, the container runtime) and every process of the cgroups
    that are reserved for daemons."""
    return set_oom_scores(lambda: [*pids, *(pid for pid in list_reserved() if pid != _INIT)], score, proc)


def runtime_process(endpoint: str) -> int | None:
    """The process that serves the container runtime's socket; None if nothing answers there, or init holds the socket
    until someone asks for it."""
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
    error = _write(pid, score, proc)
    if error is None or error.errno in (errno.ENOENT, errno.ESRCH):
        return None  # done, or it is gone and needs no score
    if error.errno == errno.EACCES and score < 0 < has:
        _write(pid, 0, proc)
    kept = read_score(pid, proc)
    return Refused(pid, has if kept is None else kept, _why(error, score))


def _write(pid: int, score: int, proc: str) -> OSError | None:
    try:
        descriptor = os.open(_file(pid, proc), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(score).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
    return None


def _why(error: OSError, score: int) -> str:
    if error.errno == errno.EACCES and score < 0:
        return (
            "the kernel takes scores below 0 only from a process with CAP_SYS_RESOURCE; give it to the agent, or the"
            " OOM killer may choose this process before a pod"
        )
    return (error.strerror or str(error)).lower()


def _file(pid: int, proc: str) -> str:
    return f"{proc}/{pid}/oom_score_adj"
