"""The supervisor's event loop: it calls back when a descriptor is ready or a time has come.

An error in a callback does not end the loop. The module also has sets of descriptors that are closed together after
an error half-way.
"""

import heapq
import os
import select
import time
from collections.abc import Callable
from typing import Self

from evenkeel.errors import raise_shortage
from evenkeel.host.polling import Poller

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
AT_ITS_END = 0  # only if the other side of a socket is closed: the kernel reports that in any case

_LONGEST_WAIT_SECONDS = 3600.0


class Timer:
    """A callback for a later time. It can be cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """The event loop.

    `on_error` gets the errors of callbacks. Such an error is our mistake, and it must not end other containers.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._epoll = Poller()
        # With the turn since which it is watched.
        self._callbacks: dict[int, tuple[int, Callable[[], None]]] = {}
        self._turn = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._on_error = on_error

    def watch(self, descriptor: int, callback: Callable[[], None], events: int = READABLE) -> None:
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = self._turn, callback

    def unwatch(self, descriptor: int) -> None:
        """Stops watching. Call it before the descriptor is closed: while a child has a copy of it, its events would go
        on under its number, which may be another one's by then. A descriptor that is not watched is allowed."""
        if self._callbacks.pop(descriptor, None) is not None:
            try:
                self._epoll.unregister(descriptor)
            except (OSError, ValueError):
                pass  # it was closed already

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self._count += 1
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, timer))
        return timer

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._once()

    def _once(self) -> None:
        wait = _LONGEST_WAIT_SECONDS
        if self._timers:
            wait = min(max(self._timers[0][0] - time.monotonic(), 0.0), wait)
        ready = self._epoll.poll(wait)
        self._turn += 1
        for descriptor, _ in ready:
            # Another callback may have removed it, and may watch another one that has its number by now. That is not
            # the one that is ready: if it were a FIFO without a writer, it would read as at its end.
            since, callback = self._callbacks.get(descriptor, (self._turn, None))
            if callback is not None and since < self._turn:
                self._call(callback)
        while self._timers and self._timers[0][0] <= time.monotonic():
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001
            self._on_error(error)


class Descriptors:
    """Closes all opened descriptors at the end, except those marked with `keep`."""

    def __init__(self) -> None:
        self._opened: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def add(self, descriptor: int) -> int:
        self._opened.add(descriptor)
        return descriptor

    def add_found(self, opened: Callable[[], int]) -> int:
        """Adds what the function opens; −1 if it is not there. Raises OSError if no descriptor is left for it."""
        try:
            return self.add(opened())
        except OSError as error:
            raise_shortage(error)
            return -1

    def keep(self, descriptor: int) -> int:
        self._opened.discard(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self.add(read), self.add(write)

    def fifo(self, path: str) -> int:
        """Makes a FIFO and opens it."""
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        return self.add(open_fifo(path))


def open_fifo(path: str) -> int:
    """Opens both ends, without waiting. So the FIFO is not at its end while it has no other writer."""
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
