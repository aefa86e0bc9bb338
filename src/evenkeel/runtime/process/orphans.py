"""Containers whose keeper was killed. They run on, and become children of the nearest process that has asked for such
(`PR_SET_CHILD_SUBREAPER`): of the agent, if it had started that keeper. Then, and only then, it can know how they end.

The next keeper watches them (`adopt`) and says when one has ended.
"""

import os
from collections.abc import Iterable

from evenkeel.runtime.proc_stat import start_ticks
from evenkeel.runtime.process.attempt_files import ProcessFile


def ended_status(process: ProcessFile) -> int | None:
    """What waitpid says of an orphan that has ended, if we are its parent; None if nobody can know. Never waits."""
    if start_ticks(process.pid) != process.ticks:
        return None  # the number is another's by now
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if pid == process.pid else None


def ended_children() -> frozenset[int]:
    """Children that have ended and were not waited for."""
    found = set()
    for pid in _children():
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                found.add(pid)
        except ChildProcessError:
            pass
    return frozenset(found)


def take_note(pids: Iterable[int]) -> None:
    """A dead keeper leaves more than containers: processes that it would have waited for, now ours."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
        except (OSError, ValueError):
            pass
    return found
