"""All notifications of the kernel as one asynchronous stream of typed events (E1).

    async with EventStream() as stream:
        stream.watch_memory_events("/evenkeel/kubepods", directory)
        stream.watch_kernel_log()
        async for event in stream: …

The event loop waits for descriptors. Nothing here blocks, polls or runs in a thread, so an idle stream costs nothing.
If a cgroup disappears or the kernel refuses, the subscription ends with an event, never with an exception. If events
are not consumed, the stream stops reading: the kernel keeps counting, and nothing is lost.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from evenkeel.host.event_types import NODE, Event, SubscriptionEnded, subscription_refusal
from evenkeel.host.kernel_log import DEVICE, KernelLog
from evenkeel.host.memory_notifications import EVENTS_FILE, OOM_FILE, MemoryEventsWatch, OomNotification

_MOST_WAITING = 1024  # events; above that, nothing more is read until half of them are consumed


class Source(Protocol):
    """A descriptor that becomes readable, and the events that are then due."""

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

    # Subscriptions

    def watch_memory_events(self, path: str, directory: str) -> None:
        """Changes of `memory.events` of the v2 cgroup at `directory`."""

        def watch() -> None:
            if self._memory_events is None:
                self._memory_events = MemoryEventsWatch()
                self.add(self._memory_events, NODE)
            self._memory_events.add(path, directory)

        self._try(path, EVENTS_FILE, watch)

    def watch_oom(self, path: str, directory: str) -> None:
        """OOMs at or above the v1 cgroup at `directory`."""
        self._try(path, OOM_FILE, lambda: self.add(OomNotification(path, directory), path))

    def watch_kernel_log(self, after_sequence: int | None = None, device: str = DEVICE) -> None:
        """OOM records in the log of the kernel, from now on, or from the line after `after_sequence`."""
        self._try(NODE, device, lambda: self.add(KernelLog(after_sequence, device), NODE))

    def add(self, source: Source, path: str) -> None:
        """Subscribes to any source. Raises OSError if its descriptor cannot be polled."""
        try:
            if not self._is_paused:
                self._loop.add_reader(source.fileno(), self._ready, source)
        except OSError:  # a kind of file that cannot be polled
            source.close()
            raise
        self._sources[source] = path

    def unwatch(self, path: str) -> None:
        """Ends all subscriptions of `path`. Events that are already queued are still delivered."""
        if self._memory_events is not None:
            self._memory_events.remove(path)
        for source in [source for source, of in self._sources.items() if of == path]:
            if source is not self._memory_events:
                self._drop(source)

    # Events

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
        """Closes every descriptor. Events that are already queued are still delivered."""
        self._is_closed = True
        for source in list(self._sources):
            self._drop(source)
        self._wake()

    # Sources

    def _try(self, path: str, what: str, watch: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            watch()
        except OSError as error:
            self._push(SubscriptionEnded(path, what, subscription_refusal(error)))

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
            # The watch of memory.events is shared by many cgroups: it stays when one of them goes.
            if isinstance(event, SubscriptionEnded) and source is not self._memory_events:
                self._drop(source)
                return
        if isinstance(source, OomNotification):
            self._read_again(source)

    def _read_again(self, source: OomNotification) -> None:
        if timer := self._timers.pop(source, None):
            timer.cancel()
        seconds = source.again_seconds()
        if seconds is not None:
            self._timers[source] = self._loop.call_later(seconds, lambda: self._take(source, source.again()))

    # Queue

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
