"""`memory.events` of cgroup v2: the kernel modifies the file when a cgroup reaches one of its limits.

inotify reports that. It does not report that the file of a removed cgroup is gone, so the directory of its parent is
watched too. `read_stall_sample` reads the same file, with others, for a cgroup that is throttled at its memory.high.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from evenkeel.host.event_types import (
    CGROUP_REMOVED,
    Event,
    MemoryEvents,
    SubscriptionEnded,
    subscription_refusal,
)
from evenkeel.host.inotify import DELETED, IGNORED, OVERFLOW, Inotify
from evenkeel.host.psi import Resource, cgroup_file, parse_pressure, read_if_there
from evenkeel.policy.memory_stall import UNLIMITED, StallSample

FILE = "memory.events"

_COUNTERS = MemoryEvents._fields[1:]


def parse_memory_events(text: str) -> Mapping[str, int]:
    """The counters by name, also those of later kernels."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


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
        self.descriptor = os.open(f"{directory}/{FILE}", os.O_RDONLY | os.O_CLOEXEC)
        self.counters: Mapping[str, int] = {}

    def read(self) -> Mapping[str, int]:
        return parse_memory_events(os.pread(self.descriptor, 4096, 0).decode())


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
                watched.file_watch = self._inotify.watch_file(f"{directory}/{FILE}")
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
            gone = not os.path.exists(watched.directory)
            yield SubscriptionEnded(
                watched.path, FILE, CGROUP_REMOVED if gone else subscription_refusal(error)
            )
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


def read_stall_sample(directory: str, now: float) -> StallSample | None:
    """Usage, memory.high and stall time of a cgroup; None if it is gone. The stall time is 0 without pressure files."""
    high = _text(f"{directory}/memory.high")
    try:
        usage = int(_text(f"{directory}/memory.current"))
        high_bytes = UNLIMITED if high == "max" else int(high)
    except ValueError:
        return None
    events = parse_memory_events(_text(f"{directory}/memory.events"))
    full = parse_pressure(_text(cgroup_file(directory, Resource.MEMORY))).full.total_us
    return StallSample(now, usage, high_bytes, full, events.get("high", 0))


def _text(path: str) -> str:
    return read_if_there(path).decode("ascii", "replace").strip()
