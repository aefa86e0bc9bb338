"""Notifications of the memory controller about one cgroup, on either version of cgroups.

v1: the numbers of an eventfd and of a descriptor of the watched file are written into `cgroup.event_control`. The
kernel then counts crossed thresholds and OOM kills in the eventfd, and adds one when the cgroup is removed.

v2: the kernel modifies `memory.events` when a cgroup reaches one of its limits, and inotify reports that. inotify does
not report that the file of a removed cgroup is gone, so the directory of its parent is watched too.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from evenkeel.host.event_types import (
    CGROUP_REMOVED,
    Event,
    MemoryEvents,
    MemoryThreshold,
    OomNotified,
    SubscriptionEnded,
    subscription_refusal,
)
from evenkeel.host.inotify import DELETED, IGNORED, OVERFLOW, Inotify

USAGE_FILE = "memory.usage_in_bytes"
OOM_FILE = "memory.oom_control"
EVENTS_FILE = "memory.events"
_CONTROL_FILE = "cgroup.event_control"

# The kernel notifies before it kills. So the counter is read again until it counts the kill, or until the kill was
# clearly in another cgroup. The process that reached the limit does the work in its own CPU time, and a BestEffort
# process may get none for seconds.
_READ_AGAIN_SECONDS = (0.001, 0.004, 0.016, 0.064, 0.256, 1.0, 4.0, 16.0)


def parse_counters(text: str) -> Mapping[str, int]:
    """The numbers in `memory.oom_control` (v1) or `memory.events` (v2) by name, also those of later kernels."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _ended(path: str, directory: str, what: str, error: OSError) -> SubscriptionEnded:
    is_gone = not os.path.exists(directory)
    return SubscriptionEnded(path, what, CGROUP_REMOVED if is_gone else subscription_refusal(error))


# cgroup v1


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
        return _ended(self.path, self._directory, what, error)


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

    def consume(self) -> None:
        """Lets the descriptor be unreadable until the next crossing."""
        self._count()

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
        try:
            self._kills = parse_counters(self._text()).get("oom_kill", 0)
        except BaseException:  # the cgroup was removed meanwhile
            self.close()
            raise
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
            control = parse_counters(self._text())
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


# cgroup v2

_COUNTERS = MemoryEvents._fields[1:]


def added(path: str, before: Mapping[str, int], after: Mapping[str, int]) -> MemoryEvents | None:
    """The increase between two readings; None if no counter that we know has changed."""
    counts = {name: max(after.get(name, 0) - before.get(name, 0), 0) for name in _COUNTERS}
    return MemoryEvents(path, **counts) if any(counts.values()) else None


class _Watched:
    """One cgroup: its open file, and the counters of the last reading."""

    def __init__(self, path: str, directory: str) -> None:
        self.path = path
        self.directory = directory
        self.file_watch = self.parent_watch = -1
        self.descriptor = os.open(f"{directory}/{EVENTS_FILE}", os.O_RDONLY | os.O_CLOEXEC)
        self.counters: Mapping[str, int] = {}

    def read(self) -> Mapping[str, int]:
        return parse_counters(os.pread(self.descriptor, 4096, 0).decode())


class MemoryEventsWatch:
    """Watches the `memory.events` of many cgroups on one descriptor."""

    def __init__(self) -> None:
        """Raises OSError if the user has too many inotify instances."""
        self._inotify = Inotify()
        self._by_file: dict[int, _Watched] = {}
        self._by_parent: dict[int, dict[str, _Watched]] = {}

    def fileno(self) -> int:
        return self._inotify.fileno()

    def add(self, path: str, directory: str) -> None:
        """Raises OSError if there is no such cgroup, or there are too many watches."""
        directory = directory.rstrip("/")
        self.remove(path)
        # In this order: if the cgroup is removed meanwhile, either opening its file fails or the parent is notified.
        parent_watch = self._inotify.watch_directory(os.path.dirname(directory))
        siblings = self._by_parent.setdefault(parent_watch, {})
        try:
            watched = _Watched(path, directory)
            try:
                watched.parent_watch = parent_watch
                watched.file_watch = self._inotify.watch_file(f"{directory}/{EVENTS_FILE}")
                watched.counters = watched.read()
            except BaseException:
                os.close(watched.descriptor)
                raise
        except BaseException:
            self._drop_parent(parent_watch)
            raise
        self._by_file[watched.file_watch] = siblings[os.path.basename(directory)] = watched

    def remove(self, path: str) -> None:
        for watched in [watched for watched in self._by_file.values() if watched.path == path]:
            self._drop(watched)

    def ready(self) -> Iterator[Event]:
        changed: dict[int, None] = {}  # each once, in order
        for event in self._inotify.read():
            if event.mask & OVERFLOW:
                changed.update(dict.fromkeys(self._by_file))
            elif event.mask & DELETED:
                # It may be an earlier cgroup of the same name: reading the file decides.
                if watched := self._by_parent.get(event.watch, {}).get(event.name):
                    changed[watched.file_watch] = None
            elif not event.mask & IGNORED:
                changed[event.watch] = None
        for file_watch in changed:
            if watched := self._by_file.get(file_watch):
                yield from self._changes(watched)

    def close(self) -> None:
        for watched in self._by_file.values():
            os.close(watched.descriptor)
        self._by_file.clear()
        self._inotify.close()

    def _changes(self, watched: _Watched) -> Iterator[Event]:
        try:
            now = watched.read()
        except OSError as error:
            self._drop(watched)
            yield _ended(watched.path, watched.directory, EVENTS_FILE, error)
            return
        event = added(watched.path, watched.counters, now)
        watched.counters = now
        if event is not None:
            yield event

    def _drop(self, watched: _Watched) -> None:
        del self._by_file[watched.file_watch]
        with suppress(KeyError):
            del self._by_parent[watched.parent_watch][os.path.basename(watched.directory)]
        self._inotify.unwatch(watched.file_watch)
        self._drop_parent(watched.parent_watch)
        os.close(watched.descriptor)

    def _drop_parent(self, parent_watch: int) -> None:
        if not self._by_parent.get(parent_watch):
            self._by_parent.pop(parent_watch, None)
            self._inotify.unwatch(parent_watch)
