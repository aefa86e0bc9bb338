"""`memory.events` of cgroup v2: the kernel changes the file when a cgroup meets one of its limits, and inotify tells.

A cgroup that is removed takes its file with it without a word; its parent's directory tells of that.
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
from evenkeel.host.psi import Resource, cgroup_file, parse_pressure
from evenkeel.policy.memory_stall import UNLIMITED, StallSample

FILE = "memory.events"

_COUNTERS = MemoryEvents._fields[1:]


def parse_memory_events(text: str) -> Mapping[str, int]:
    """The counters by name; those that a later kernel adds too."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def added(path: str, before: Mapping[str, int], after: Mapping[str, int]) -> MemoryEvents | None:
    """What came in between two readings; None if nothing that we know of."""
    counts = {name: max(after.get(name, 0) - before.get(name, 0), 0) for name in _COUNTERS}
    return MemoryEvents(path, **counts) if any(counts.values()) else None


class _Watched:
    """One cgroup: its open file, and the counters as last read."""

    def __init__(self, path: str, directory: str) -> None:
        self.path = path
        self.directory = directory
        self.file_watch = self.parent_watch = -1
        self.descriptor = os.open(f"{directory}/{FILE}", os.O_RDONLY | os.O_CLOEXEC)
        self.counters: Mapping[str, int] = {}

    def read(self) -> Mapping[str, int]:
        return parse_memory_events(os.pread(self.descriptor, 4096, 0).decode())


class MemoryEventsWatch:
    """All cgroups whose `memory.events` are watched, on one descriptor."""

    def __init__(self) -> None:
        """Raises OSError where the user has too many such watches."""
        self._inotify = Inotify()
        self._by_file: dict[int, _Watched] = {}
        self._by_parent: dict[int, dict[str, _Watched]] = {}

    def fileno(self) -> int:
        return self._inotify.fileno()

    def add(self, path: str, directory: str) -> None:
        """Raises OSError where there is no such cgroup, or no room for more watches."""
        directory = directory.rstrip("/")
        self.remove(path)
        # In this order: whenever the cgroup is removed, either opening its file fails or its parent tells.
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
        for happened in self._inotify.read():
            if happened.mask & OVERFLOW:
                changed.update(dict.fromkeys(self._by_file))
            elif happened.mask & DELETED:
                # It may be of a cgroup that had the same name before: reading tells which.
                if watched := self._by_parent.get(happened.watch, {}).get(happened.name):
                    changed[watched.file_watch] = None
            elif not happened.mask & IGNORED:
                changed[happened.watch] = None
        for file_watch in changed:
            if watched := self._by_file.get(file_watch):
                yield from self._news(watched)

    def close(self) -> None:
        for watched in self._by_file.values():
            os.close(watched.descriptor)
        self._by_file.clear()
        self._inotify.close()

    def _news(self, watched: _Watched) -> Iterator[Event]:
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


def read_at_mark(directory: str, now: float) -> StallSample | None:
    """None if the cgroup is gone. A kernel without pressure figures says nothing of waiting: then there is none."""
    high = _read(f"{directory}/memory.high")
    try:
        usage = int(_read(f"{directory}/memory.current"))
        mark = UNLIMITED if high == "max" else int(high)
    except ValueError:
        return None
    events = parse_memory_events(_read(f"{directory}/memory.events"))
    full = parse_pressure(_read(cgroup_file(directory, Resource.MEMORY))).full.total_us
    return StallSample(now, usage, mark, full, events.get("high", 0))


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
