"""Views for those who watch, a second apart: taken and encoded once, however many there are, and not at all while there
is nobody."""

import asyncio
import time
from collections.abc import AsyncIterator

from evenkeel.agent.interface import Front
from evenkeel.errors import EvenkeelError
from evenkeel.server.view import View, Views

EVENT_STREAM = "text/event-stream"
_PERIOD_SECONDS = 1.0


class ViewFeed:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._views = Views()
        self._next: asyncio.Future[View] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._events: dict[str, tuple[int, bytes]] = {}

    async def now(self) -> View:
        return await self._views.of(await self._front.picture())

    async def events(self) -> AsyncIterator[bytes]:
        """The whole first, and again whenever more than figures has changed, or this reader has missed one."""
        view = await self.now()
        yield self._event(view, "view")
        last = view.number
        while True:
            view = await self._later(last)
            yield self._event(view, "figures" if view.changes and view.since == last else "view")
            last = view.number

    def _event(self, view: View, name: str) -> bytes:
        """The same bytes for everyone."""
        number, text = self._events.get(name, (0, b""))
        if number != view.number:
            text = event(name, view.changes if name == "figures" else view.whole)
            self._events[name] = (view.number, text)
        return text

    async def _later(self, number: int) -> View:
        """The next one after that of `number`."""
        while True:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                self._next.add_done_callback(_seen)
                self._taking = asyncio.create_task(self._take(self._next))
            view = await asyncio.shield(self._next)
            if view.number > number:
                return view

    async def _take(self, result: "asyncio.Future[View]") -> None:
        """Once, for all who wait: who comes back from it asks for the next."""
        try:
            await asyncio.sleep(max(self._taken_at + _PERIOD_SECONDS - time.monotonic(), 0))
            self._taken_at = time.monotonic()
            view = await self.now()
        except asyncio.CancelledError:
            result.cancel()
            raise
        except EvenkeelError as error:
            result.set_exception(error)
        else:
            result.set_result(view)
        finally:
            self._next = None

    async def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)


def _seen(result: "asyncio.Future[View]") -> None:
    """There may be nobody left who waits for it."""
    if not result.cancelled():
        result.exception()


def event(name: str, data: bytes) -> bytes:
    """One of a server-sent stream; `data` has no line ends."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
