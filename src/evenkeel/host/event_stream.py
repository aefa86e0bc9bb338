"""Everything the kernel tells, as one asynchronous stream of typed events (E1).

    async with EventStream() as stream:
        stream.watch_memory_events("/evenkeel/kubepods", directory)
        stream.watch_kernel_log()
        async for event in stream: …

Nothing here blocks, polls or runs in a thread: the event loop waits for descriptors, so that idle costs nothing. A
cgroup that disappears, or a kernel that refuses, ends a subscription with an event and never with an exception. When
nobody takes the events, the kernel's are left with the kernel, which counts on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from evenkeel.errors import CGROUP_REMOVED, reason
from evenkeel.host.event_types import NODE, Event, SubscriptionEnded
from evenkeel.host.event_types import Pressure as PressureEvent
from evenkeel.host.kernel_log import DEVICE, KernelLog
from evenkeel.host.memory_events import FILE as MEMORY_EVENTS
from evenkeel.host.memory_events import MemoryEventsWatch
from evenkeel.host.psi import ArmedTrigger, Trigger, cgroup_file, node_file
from evenkeel.host.v1_notifications import OOM_FILE, USAGE_FILE, OomNotification, UsageThreshold

_MOST_WAITING = 1024


class Source(Protocol):
    """A descriptor that becomes readable, and the events that this means."""

    def fileno(self) -> int: ...
    def ready(self) -> Iterable[Event]: ...
    def close(self) -> None: ...


class EventStream(AsyncIterator[Event]):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._sources: dict[Source, str] = {}
        self._timers: dict[Source, asyncio.TimerHandle] = {}
        self._memory_events: MemoryEventsWatch | None = None
        self._is_paused = False
        self._is_closed = False

    # What to listen to

    def watch_memory_events(self, path: str, directory: str) -> None:
        """`memory.events` of the v2 cgroup at `directory`."""

        def watch() -> None:
            if self._memory_events is None:
                self._memory_events = MemoryEventsWatch()
                self._add(self._memory_events, NODE)
            self._memory_events.add(path, directory)

        self._try(path, MEMORY_EVENTS, watch)

    def watch_usage(self, path: str, directory: str, threshold_bytes: int) -> None:
        """When the usage of the v1 cgroup at `directory` crosses `threshold_bytes`; at once, if it already has."""

        def watch() -> None:
            source = UsageThreshold(path, directory, threshold_bytes)
            self._add(source, path)
            self._take(source, source.first())

        self._try(path, USAGE_FILE, watch)

    def watch_oom(self, path: str, directory: str) -> None:
        """When an OOM concerns the v1 cgroup at `directory`."""
        self._try(path, OOM_FILE, lambda: self._add(OomNotification(path, directory), path))

    def watch_pressure(self, trigger: Trigger, path: str = NODE, directory: str = "") -> ArmedTrigger | None:
        """When tasks of the cgroup at `directory`, or without one of the whole machine, wait too long. What is returned
        says which trigger the kernel took and, if it is not the one asked for, why; None if it took none."""
        file = cgroup_file(directory, trigger.resource) if directory else node_file(trigger.resource)
        armed: list[ArmedTrigger] = []

        def watch() -> None:
            armed.append(ArmedTrigger(file, trigger))
            self._add(_PressureSource(path, armed[0]), path)

        self._try(path, f"{trigger.resource}.pressure", watch)
        return armed[0] if armed else None

    def watch_kernel_log(self, after_sequence: int | None = None, device: str = DEVICE) -> None:
        """OOM records in the kernel's log, from now on, or from the line after `after_sequence`."""
        self._try(NODE, device, lambda: self._add(KernelLog(after_sequence, device), NODE))

    def unwatch(self, path: str) -> None:
        """Nothing more of `path`; events that are already waiting are still given."""
        if self._memory_events is not None:
            self._memory_events.remove(path)
        for source in [source for source, of in self._sources.items() if of == path]:
            if source is not self._memory_events:
                self._drop(source)

    # What was heard

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event = self._events.popleft()
        if self._is_paused and len(self._events) < _MOST_WAITING // 2:
            self._resume()
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every descriptor; events that are waiting are still given."""
        self._is_closed = True
        for source in list(self._sources):
            self._drop(source)
        self._wake()

    # How

    def _try(self, path: str, what: str, watch: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            watch()
        except OSError as error:
            self._push(SubscriptionEnded(path, what, reason(error)))

    def _add(self, source: Source, path: str) -> None:
        try:
            if not self._is_paused:
                self._loop.add_reader(source.fileno(), self._ready, source)
        except OSError:  # not something that can be waited for
            source.close()
            raise
        self._sources[source] = path

    def _drop(self, source: Source) -> None:
        if self._sources.pop(source, None) is None:
            return
        if timer := self._timers.pop(source, None):
            timer.cancel()
        self._loop.remove_reader(source.fileno())
        source.close()

    def _ready(self, source: Source) -> None:
        self._take(source, source.ready())

    def _take(self, source: Source, events: Iterable[Event]) -> None:
        for event in events:
            self._push(event)
            # The one that watches many cgroups goes on without those that are gone.
            if isinstance(event, SubscriptionEnded) and source is not self._memory_events:
                self._drop(source)
                return
        if isinstance(source, OomNotification):
            self._look_again(source)

    def _look_again(self, source: OomNotification) -> None:
        if timer := self._timers.pop(source, None):
            timer.cancel()
        seconds = source.again_seconds()
        if seconds is not None:
            self._timers[source] = self._loop.call_later(seconds, lambda: self._take(source, source.again()))

    def _push(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) >= _MOST_WAITING and not self._is_paused:
            self._is_paused = True
            for source in self._sources:
                self._loop.remove_reader(source.fileno())
        self._wake()

    def _resume(self) -> None:
        self._is_paused = False
        for source in self._sources:
            self._loop.add_reader(source.fileno(), self._ready, source)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _PressureSource:
    def __init__(self, path: str, armed: ArmedTrigger) -> None:
        self._path = path
        self._armed = armed

    def fileno(self) -> int:
        return self._armed.fileno()

    def ready(self) -> Iterable[Event]:
        if self._armed.is_gone():
            yield SubscriptionEnded(self._path, f"{self._armed.trigger.resource}.pressure", CGROUP_REMOVED)
        else:
            yield PressureEvent(self._path, self._armed.trigger)

    def close(self) -> None:
        self._armed.close()
