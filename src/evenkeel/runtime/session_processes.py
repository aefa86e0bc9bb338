"""The processes of a command that was executed in a container: its session, and the descendants of its members.

They are killed when the client of the command is gone.
"""

import os
import signal
from contextlib import suppress

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.procfs import read_stat

_MOST_ROUNDS = 10  # a member may fork while the others are killed
_FILE = "cgroup.procs"


class Member(NamedTuple):
    parent: int
    session: int
    has_ended: bool


def directory_of(procs: tuple[str, ...]) -> str:
    """A directory of the cgroup that is entered through these files."""
    return os.path.dirname(procs[0]) if procs else ""


def signal_all(cgroup: str, session: int, number: int) -> None:
    """Sends a signal to every process of the session. `cgroup` is the directory of the container's cgroup."""
    for pid in members(_processes(cgroup), session):
        with suppress(OSError):
            os.kill(pid, number)


def kill_all(cgroup: str, session: int) -> None:
    """Session 0 means that the session is not known: then nothing is killed."""
    for _ in range(_MOST_ROUNDS):
        found = members(_processes(cgroup), session)
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def members(processes: dict[int, Member], session: int) -> set[int]:
    """The living processes of the session, and all their descendants. Session 0 is no command's, so it has none.
    Pure."""
    found = {pid for pid, one in processes.items() if session and session in (pid, one.session)}
    while more := {pid for pid, one in processes.items() if one.parent in found} - found:
        found |= more
    return {pid for pid in found if not processes[pid].has_ended}


def _processes(cgroup: str) -> dict[int, Member]:
    found = {}
    with suppress(OSError):  # it is gone, and its processes too
        with open(f"{cgroup}/{_FILE}", encoding="ascii") as file:
            pids = set(map(int, file.read().split()))
        for pid in pids:
            stat = read_stat(pid)
            if stat is not None:
                found[pid] = Member(stat.parent, stat.session, stat.has_ended)
    return found
