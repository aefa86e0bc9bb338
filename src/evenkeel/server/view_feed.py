"""Views for those who watch, a second apart: taken and encoded once, however many there are, and not at all while there
is nobody."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from evenkeel.agent.feeds import Feed
from evenkeel.agent.interface import Front
from evenkeel.agent.picture import is_notable
from evenkeel.api.encode import encode
from evenkeel.errors import EvenkeelError
from evenkeel.server.http import event, to_json
from evenkeel.server.view import View, Views

_PERIOD_SECONDS = 1.0
_READER_SECONDS = 0.003  # ten times what it takes to send somebody a view


class ViewFeed:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._views = Views()
        self._next: asyncio.Future[View] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._latest: View | None = None
        self._events: dict[str, tuple[int, bytes]] = {}
        self._news: Feed[bytes] = Feed()
        self._readers = 0
        self._following: asyncio.Task[None] | None = None

    async def now(self) -> View:
        return await self._views.of(await self._front.picture())

    async def events(self) -> AsyncIterator[bytes]:
        """The whole first, and again whenever more than figures has changed, or this reader has missed one; between
        them what happens, at once."""
        news = self._news.listen()
        self._readers += 1
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        told: asyncio.Future[bytes | None] = asyncio.ensure_future(_next(news))
        seen: asyncio.Future[View] | None = None
        try:
            view = await self.now()
            yield self._event(view, "view")
            last = view.number
            while True:
                seen = seen or asyncio.ensure_future(self._later(last))
                await asyncio.wait((told, seen), return_when=asyncio.FIRST_COMPLETED)
                if told.done():
                    if (text := told.result()) is None:
                        return  # the agent ends, or this reader did not keep up
                    yield text
                    told = asyncio.ensure_future(_next(news))
                if seen.done():
                    view, seen = seen.result(), None
                    yield self._event(view, "figures" if view.changes and view.since == last else "view")
                    last = view.number
        finally:
            self._readers -= 1
            waiting: list[asyncio.Future[Any]] = [one for one in (told, seen) if one is not None]
            if self._readers == 0 and self._following is not None:
                waiting.append(self._following)
                self._following = None
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await _end(news)

    async def _follow(self) -> None:
        """One who listens to what happens, and encodes it, for all."""
        happenings = self._front.follow()
        try:
            async for happening in happenings:
                if is_notable(happening):
                    self._news.tell(event("happening", to_json(encode(happening)).strip()))
        finally:
            await _end(happenings)

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
            if self._latest is not None and self._latest.number > number:
                return self._latest  # it came while the reader was busy
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                self._next.add_done_callback(_seen)
                self._taking = asyncio.create_task(self._take(self._next))
            await asyncio.shield(self._next)

    async def _take(self, result: "asyncio.Future[View]") -> None:
        """Once, for all who wait: who comes back from it asks for the next."""
        try:
            # Sending to very many is what costs: they get it more rarely, so that it never takes much of the agent.
            period = max(_PERIOD_SECONDS, self._readers * _READER_SECONDS)
            await asyncio.sleep(max(self._taken_at + period - time.monotonic(), 0))
            self._taken_at = time.monotonic()
            view = await self.now()
        except asyncio.CancelledError:
            result.cancel()
            raise
        except EvenkeelError as error:
            result.set_exception(error)
        else:
            self._latest = view
            result.set_result(view)
        finally:
            self._next = None

    async def close(self) -> None:
        ending = [task for task in (self._taking, self._following) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _seen(result: "asyncio.Future[View]") -> None:
    """There may be nobody left who waits for it."""
    if not result.cancelled():
        result.exception()


async def _next(news: AsyncIterator[bytes]) -> bytes | None:
    async for text in news:
        return text
    return None


async def _end(source: AsyncIterator[object]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
