"""That there is a keeper, whatever becomes of the one before: found or started, lost, and replaced by another."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.process.supervisor_connection import SupervisorConnection, SupervisorLost, connected
from evenkeel.runtime.process.supervisor_protocol import Message, ProcessFile
from evenkeel.runtime.procfs import start_ticks

_RECONNECTIONS = 3
_FIRST_RECONNECTION_SECONDS = 0.5
_LONGEST_RECONNECTION_SECONDS = 30.0


class SupervisorLink:
    """`on_event` hears what a keeper says unasked. `take_up` is given each new one and what it said first, before
    anybody else may ask it for anything. `on_news` hears of losses and replacements, in a sentence."""

    def __init__(
        self,
        state: str,
        on_event: Callable[[Message], None],
        take_up: Callable[[SupervisorConnection, Message], Awaitable[None]],
        on_lost: Callable[[], None],
        on_news: Callable[[str], None],
    ) -> None:
        self._state = state
        self._on_event = on_event
        self._take_up = take_up
        self._on_lost = on_lost
        self._on_news = on_news
        self._ready = asyncio.Event()
        self._is_closed = False
        self._reconnecting: asyncio.Task[None] | None = None
        self.connection: SupervisorConnection | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    async def open(self) -> None:
        try:
            await self._connect()
        except SupervisorLost:
            raise EvenkeelError("the process that keeps containers ends as soon as it is started") from None

    async def close(self) -> None:
        self._is_closed = True
        if self.connection is not None:
            self.connection.close()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)

    async def keeper(self) -> SupervisorConnection:
        """The connection, as soon as there is one."""
        await self._ready.wait()
        assert self.connection is not None
        return self.connection

    async def ask(
        self,
        todo: str,
        attempt: Attempt,
        is_done: Callable[[], bool] = lambda: False,
        **fields: object,
    ) -> Message | None:
        """The answer, asked for as often as keepers go away; None if it is done already when there is another."""
        for _ in range(_RECONNECTIONS):
            keeper = await self.keeper()
            try:
                return await keeper.ask(todo, attempt=list(attempt), **fields)
            except SupervisorLost:
                if self._is_closed:
                    raise
                await asyncio.sleep(0)  # `_lost` has been called, or is about to be
                await self._ready.wait()
                if is_done():
                    return None
        raise SupervisorLost

    async def _connect(self) -> None:
        self.connection, hello = await connected(self._state, self._on_event, self._lost)
        await self._take_up(self.connection, hello)
        if not self.connection.is_open:
            raise SupervisorLost
        self._ready.set()

    def _lost(self) -> None:
        """One keeper after another, and never two at a time."""
        if self._is_closed or not self._ready.is_set():
            return
        self._ready.clear()
        self._reconnecting = asyncio.ensure_future(self._reconnect())
        self._on_lost()

    async def _reconnect(self) -> None:
        """Until there is a keeper again: containers run on meanwhile, and nothing is started."""
        self._on_news("the process that keeps containers ended")
        wait = _FIRST_RECONNECTION_SECONDS
        while not self._is_closed:
            try:
                await self._connect()
            except (SupervisorLost, EvenkeelError, OSError) as error:
                self._on_news(f"the process that keeps containers cannot be started: {error}")
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_RECONNECTION_SECONDS)
            else:
                self._on_news("another process keeps the containers now")
                return


def ended_status(process: ProcessFile) -> int | None:
    """What waitpid says of an orphan that has ended, if we are its parent; None if nobody can know. Never waits."""
    if start_ticks(process.pid) != process.ticks:
        return None  # the number is another's by now
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if pid == process.pid else None


def ended_children() -> frozenset[int]:
    """Children that have ended and were not waited for."""
    found = set()
    for pid in _children():
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                found.add(pid)
        except ChildProcessError:
            pass
    return frozenset(found)


def take_note(pids: Iterable[int]) -> None:
    """A dead keeper leaves more than containers: processes that it would have waited for, now ours."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
        except (OSError, ValueError):
            pass
    return found
