"""Notifications of cgroup v1's memory controller: usage thresholds, and OOM.

A descriptor of ours (eventfd) and one of the file that is watched are written into `cgroup.event_control`; the kernel
then counts in ours. It does so once more when the cgroup is removed.
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

# The kernel tells of an OOM before it kills: look again until the kill is counted, or was another cgroup's. Whoever met
# the limit does it in its own processor time, of which a BestEffort process may have none for seconds.
_LOOK_AGAIN_SECONDS = (0.001, 0.004, 0.016, 0.064, 0.256, 1.0, 4.0, 16.0)


def parse_oom_control(text: str) -> Mapping[str, int]:
    """`oom_kill_disable`, `under_oom` and, since kernel 4.13, `oom_kill`."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


class _Notification:
    """A file of one cgroup, kept open, and the eventfd that the kernel counts in."""

    def __init__(self, path: str, directory: str, file: str, argument: str = "") -> None:
        """Raises OSError where there is no such cgroup, or it is not one of v1's memory controller."""
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
        """The kernel tells of crossings only: what was above the threshold before we looked is told here."""
        yield from (event for event in self._news() if not _is_below(event))

    def ready(self) -> Iterator[Event]:
        if self._count():
            yield from self._news()

    def _news(self) -> Iterator[Event]:
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
        self._looks = iter(())  # type: Iterator[float]

    def ready(self) -> Iterator[Event]:
        count = self._count()
        if count:
            self._looks = iter(_LOOK_AGAIN_SECONDS)
            yield from self._news(count)

    def again_seconds(self) -> float | None:
        """When to look again, if no kill has been counted yet."""
        return next(self._looks, None)

    def again(self) -> Iterator[Event]:
        yield from self._news(0)

    def _news(self, notifications: int) -> Iterator[Event]:
        try:
            control = parse_oom_control(self._text())
        except OSError as error:
            self._looks = iter(())
            yield self._ended(OOM_FILE, error)
            return
        kills = control.get("oom_kill", 0)
        more = kills - self._kills
        self._kills = kills
        if more:
            self._looks = iter(())
        if notifications or more:
            yield OomNotified(self.path, notifications, more, bool(control.get("under_oom")))


def _is_below(event: Event) -> bool:
    return isinstance(event, MemoryThreshold) and event.usage_bytes < event.threshold_bytes
