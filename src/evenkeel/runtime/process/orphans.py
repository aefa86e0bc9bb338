"""Containers whose keeper was killed. They run on, and become children of the nearest process that has asked for such
(`PR_SET_CHILD_SUBREAPER`): of the agent, if it had started that keeper. Then, and only then, it can know how they end.

The next keeper watches them (`adopt`) and says when one has ended.
"""

import os

from evenkeel.runtime.process import attempts
from evenkeel.runtime.process.attempts import ProcessFile


def ended_status(process: ProcessFile) -> int | None:
    """What waitpid says of an orphan that has ended, if we are its parent; None if nobody can know. Never waits."""
    if attempts.start_ticks(process.pid) != process.ticks:
        return None  # the number is another's by now
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if pid == process.pid else None


def take_note_of_strays(known: frozenset[int]) -> None:
    """A dead keeper leaves more than containers: processes that were to be waited for. As their parent we do that, but
    not for children of our own (`known`), which somebody else waits for."""
    for pid in _children() - known:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def children() -> frozenset[int]:
    return frozenset(_children())


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
        except (OSError, ValueError):
            pass
    return found
