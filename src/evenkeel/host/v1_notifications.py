"""Notifications of the memory controller of cgroup v1: usage thresholds, and OOM.

The numbers of an eventfd and of a descriptor of the watched file are written into `cgroup.event_control`. The kernel
then counts notifications in the eventfd, and adds one when the cgroup is removed.
"""

import os
from collections.abc import Iterator, Mapping

from evenkeel.host.event_types import (
    CGROUP_REMOVED,
    Event,
    MemoryThreshold,
    OomNotified,
    SubscriptionEnded,
    subscription_refusal,
)

USAGE_FILE = "memory.usage_in_bytes"
OOM_FILE = "memory.oom_control"
_CONTROL_FILE = "cgroup.event_control"

# The kernel notifies before it kills. So the counter is read again until it counts the kill, or until the kill was
# clearly in another cgroup. The process that reached the limit does the work in its own CPU time, and a BestEffort
# process may get none for seconds.
_READ_AGAIN_SECONDS = (0.001, 0.004, 0.016, 0.064, 0.256, 1.0, 4.0, 16.0)


def parse_oom_control(text: str) -> Mapping[str, int]:
    """`oom_kill_disable`, `under_oom` and, since kernel 4.13, `oom_kill`."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


class _Notification:
    """A file of one cgroup, kept open, and the eventfd in which the kernel counts."""

    def __init__(self, path: str, directory: str, file: str, argument: str = "") -> None:
        """Raises OSError if there is no such cgroup, or the memory controller of v1 does not have it."""
        self.path = path
        self._directory = directory
        self._file = os.open(f"{directory}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            control = os.open(f"{directory}/{_CONTROL_FILE}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(control, f"{self._event} {self._file} {argument}".rstrip().encode())
            finally:
                os.close(control)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        os.close(self._event)
        os.close(self._file)

    def _count(self) -> int:
        try:
            return os.eventfd_read(self._event)
        except BlockingIOError:
            return 0

    def _text(self) -> str:
        return os.pread(self._file, 4096, 0).decode()

    def _ended(self, what: str, error: OSError) -> SubscriptionEnded:
        gone = not os.path.exists(self._directory)
        return SubscriptionEnded(self.path, what, CGROUP_REMOVED if gone else subscription_refusal(error))


class UsageThreshold(_Notification):
    def __init__(self, path: str, directory: str, threshold_bytes: int) -> None:
        super().__init__(path, directory, USAGE_FILE, str(threshold_bytes))
        self._threshold_bytes = threshold_bytes

    def first(self) -> Iterator[Event]:
        """An event if usage is above the threshold already: the kernel notifies of crossings only."""
        yield from (event for event in self._changes() if not _is_below(event))

    def ready(self) -> Iterator[Event]:
        if self._count():
            yield from self._changes()

    def _changes(self) -> Iterator[Event]:
        try:
            usage = int(self._text())
        except OSError as error:
            yield self._ended(USAGE_FILE, error)
            return
        yield MemoryThreshold(self.path, self._threshold_bytes, usage)


class OomNotification(_Notification):
    def __init__(self, path: str, directory: str) -> None:
        super().__init__(path, directory, OOM_FILE)
        self._kills = parse_oom_control(self._text()).get("oom_kill", 0)
        self._waits = iter(())  # type: Iterator[float]

    def ready(self) -> Iterator[Event]:
        count = self._count()
        if count:
            self._waits = iter(_READ_AGAIN_SECONDS)
            yield from self._changes(count)

    def again_seconds(self) -> float | None:
        """When to read again, if no kill has been counted yet."""
        return next(self._waits, None)

    def again(self) -> Iterator[Event]:
        yield from self._changes(0)

    def _changes(self, notifications: int) -> Iterator[Event]:
        try:
            control = parse_oom_control(self._text())
        except OSError as error:
            self._waits = iter(())
            yield self._ended(OOM_FILE, error)
            return
        kills = control.get("oom_kill", 0)
        more = kills - self._kills
        self._kills = kills
        if more:
            self._waits = iter(())
        if notifications or more:
            yield OomNotified(self.path, notifications, more, bool(control.get("under_oom")))


def _is_below(event: Event) -> bool:
    return isinstance(event, MemoryThreshold) and event.usage_bytes < event.threshold_bytes
