"""Finds out whether an ended container was OOM-killed by the kernel (A17).

The kernel counts an OOM kill before it sends the signal. So its count is correct when it is read after the container's
end. But a container runtime soon removes the container's cgroup, and the count with it. The runtime may also report the
end before it has seen the OOM kill. So an unexplained SIGKILL waits for a short time, until one of three sources
explains it: the count, the kernel log, or the runtime.
"""

from collections.abc import Callable
from enum import Enum
from signal import SIGKILL
from typing import NamedTuple, TypeVar

from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.cgroup.tree import Version
from evenkeel.journal.records import PodRecord
from evenkeel.runtime.interface import Attempt, Exit

# Waiting time for the kernel log and for a second report of the runtime. Both take milliseconds, unless the machine is
# stuck.
WAIT_SECONDS = 2.0
NOT_KNOWN = (
    "killed by signal 9; whether by the kernel for want of memory is not known:"
    " its cgroup was removed before its OOM kills were read"
)
_MOST_REMEMBERED = 4096  # attempts
_Value = TypeVar("_Value")


class Verdict(Enum):
    KILLED = "killed"
    NOT_KILLED = "not killed"
    WAIT = "wait"  # ask again after the next report, or at `wake_at`
    UNKNOWN = "unknown"


class _Waiting(NamedTuple):
    exit: Exit
    until: float


class OomKills:
    """`machine_count` returns the kernel's count of all OOM kills on the machine; None if the kernel has no count."""

    def __init__(self, cgroups: NodeCgroups, machine_count: Callable[[], int | None]) -> None:
        self._cgroups = cgroups
        self._machine_count = machine_count
        self._machine_count_before: dict[Attempt, int | None] = {}
        self._seen: dict[Attempt, None] = {}
        self._waiting: dict[Attempt, _Waiting] = {}

    def begins(self, record: PodRecord, attempt: Attempt) -> int:
        """Called before the attempt is started. Returns the OOM kills that its cgroup has counted before it."""
        _remember(self._machine_count_before, attempt, self._machine_count())
        cgroup = self._cgroups.of_container(record.pod.key, attempt.container)
        is_new = (
            cgroup is not None and not cgroup.is_ours_to_make and self._cgroups.driver.version == Version.V1
        )
        return 0 if is_new else self._cgroups.oom_kills(record.pod.key, attempt.container) or 0

    def has_counted(self, record: PodRecord, name: str) -> bool | None:
        """Whether the kernel has counted a kill of the container's last attempt; None if the count is gone."""
        counted = self._cgroups.oom_kills(record.pod.key, name)
        return None if counted is None else counted > record.state.container(name).oom_kills_at_start

    def saw(self, attempt: Attempt) -> None:
        """The kernel has counted or logged an OOM kill of this attempt."""
        _remember(self._seen, attempt, None)

    def verdict(self, record: PodRecord, attempt: Attempt, exit_: Exit, now: float) -> Verdict:
        """The verdict on an ended attempt that is the container's last."""
        found = self._verdict(record, attempt, exit_)
        if found is Verdict.WAIT:
            since = self._waiting.setdefault(attempt, _Waiting(exit_, now + WAIT_SECONDS))
            if now < since.until:
                return found
            found = Verdict.UNKNOWN
        self._waiting.pop(attempt, None)
        return found

    def _verdict(self, record: PodRecord, attempt: Attempt, exit_: Exit) -> Verdict:
        was_asked = bool(record.state.container(attempt.container).stopping)
        if exit_.oom_kills is not None:  # the count of a cgroup that had no other attempt
            is_counted: bool | None = exit_.oom_kills > 0
        else:
            is_counted = self.has_counted(record, attempt.container)
        # On v1, if a cgroup ran out of memory, a runtime reports an OOM kill for every container below it, even for the
        # containers that survived.
        if is_counted or attempt in self._seen or (exit_.is_oom_killed and not was_asked):
            return Verdict.KILLED
        is_ours = was_asked or record.state.verdict is not None
        if is_counted is not None or is_ours or exit_.signal != SIGKILL or not exit_.is_known:
            return Verdict.NOT_KILLED
        before, after = self._machine_count_before.get(attempt), self._machine_count()
        if before is not None and before == after:
            return Verdict.NOT_KILLED  # no process on the machine was OOM-killed meanwhile
        return Verdict.WAIT

    def waiting(self, attempt: Attempt) -> Exit | None:
        """The exit of an attempt that waits for its verdict; None if it does not wait."""
        found = self._waiting.get(attempt)
        return found.exit if found is not None else None

    def due(self, now: float) -> list[tuple[Attempt, Exit]]:
        """The exits that have waited long enough."""
        return [(attempt, exit_) for attempt, (exit_, until) in self._waiting.items() if until <= now]

    @property
    def wake_at(self) -> float | None:
        return min((waiting.until for waiting in self._waiting.values()), default=None)


def _remember(kept: dict[Attempt, _Value], attempt: Attempt, value: _Value) -> None:
    kept[attempt] = value
    if len(kept) > _MOST_REMEMBERED:
        del kept[next(iter(kept))]
