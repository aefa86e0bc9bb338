"""What happens, told to everyone who listens. A listener that does not keep up is dropped, and costs no more."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_WAITING = 4096


class Feed(Generic[T]):
    """Listeners get everything from the moment at which they began to listen."""

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._listeners: set[asyncio.Queue[T | None]] = set()
        self._most_waiting = most_waiting

    def tell(self, item: T) -> None:
        for queue in tuple(self._listeners):
            if queue.qsize() < self._most_waiting:
                queue.put_nowait(item)
            else:
                self._listeners.discard(queue)
                queue.put_nowait(None)

    def close(self) -> None:
        """Ends it for everyone, after what they have not heard yet."""
        for queue in self._listeners:
            queue.put_nowait(None)
        self._listeners.clear()

    def listen(self, first: Iterable[T] = ()) -> AsyncIterator[T]:
        """`first` comes before everything else. Listening begins now, not when the first item is asked for."""
        queue: asyncio.Queue[T | None] = asyncio.Queue()
        for item in first:
            queue.put_nowait(item)
        self._listeners.add(queue)
        return self._heard(queue)

    async def _heard(self, queue: asyncio.Queue[T | None]) -> AsyncIterator[T]:
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            self._listeners.discard(queue)
