"""The agent's link to the supervisor: it finds or starts one, notices that it ended or hangs, and replaces it.

A supervisor that hangs is killed. Its containers run on, and the next supervisor adopts them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from evenkeel.errors import EvenkeelError
from evenkeel.host.ticks import next_tick
from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.process.supervisor_connection import (
    SupervisorConnection,
    SupervisorLost,
    SupervisorRefused,
    connected,
)
from evenkeel.runtime.process.supervisor_protocol import Message, ProcessFile
from evenkeel.runtime.procfs import start_ticks

_TRIES = 3
_FIRST_RECONNECTION_SECONDS = 0.5
_LONGEST_RECONNECTION_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_PING_SECONDS = 3.0
_SILENT_SECONDS = 3.0  # without an answer: then the node is not ready
_HUNG_SECONDS = 12.0  # after that, another supervisor is started. No task of the supervisor takes so long
_TAKE_UP_SECONDS = 60.0
_STRAY_SECONDS = 2.0
_LONGEST_CALL_SECONDS = 120.0  # a start takes a minute at most, and the supervisor may be replaced meanwhile


class SupervisorLink:
    """The link.

    `on_event` gets messages of the supervisor that are no answers. `take_up` gets each new connection and the
    supervisor's first message, before any other request. `on_news` gets losses and replacements, as sentences.
    """

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
        self._is_silent = False
        self._shortage = ""  # of descriptors, in the supervisor
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.connection: SupervisorConnection | None = None

    @property
    def problem(self) -> str:
        """Why no container can be started now; empty if one can."""
        if not self._ready.is_set():
            return "the supervisor of containers is gone, and another is being started"
        if self._is_silent:
            return "the supervisor of containers does not answer"
        return f"the supervisor of containers {self._shortage}" if self._shortage else ""

    async def open(self) -> None:
        for _ in range(_TRIES):
            try:
                await self._connect()
            except SupervisorLost:
                continue
            return
        raise EvenkeelError("the supervisor of containers ends as soon as it is started")

    async def close(self) -> None:
        self._is_closed = True
        if self.connection is not None:
            self.connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def current(self) -> SupervisorConnection:
        """Returns the connection, as soon as there is one."""
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
        """Returns the answer. If the supervisor is replaced, the request is sent again.

        Returns None if `is_done` says so after a replacement. Raises SupervisorLost if there is no answer in time.
        """
        try:
            async with asyncio.timeout(_LONGEST_CALL_SECONDS):
                for _ in range(_TRIES):
                    connection = await self.current()
                    try:
                        return await connection.ask(todo, attempt=list(attempt), **fields)
                    except SupervisorLost:
                        if self._is_closed:
                            raise
                        await asyncio.sleep(0)  # `_lost` has been called, or is about to be
                        await self._ready.wait()
                        if is_done():
                            return None
        except TimeoutError:
            raise SupervisorLost("the supervisor of containers did not answer in time") from None
        raise SupervisorLost

    async def _connect(self) -> None:
        connection, hello = await connected(self._state, self._on_event, self._lost)
        self.connection = connection
        try:
            async with asyncio.timeout(_TAKE_UP_SECONDS):
                await self._take_up(connection, hello)
        except TimeoutError:
            await connection.kill()
            raise SupervisorLost("the supervisor of containers does not answer") from None
        except BaseException:
            connection.close()  # its loss must not be taken for that of the next one
            raise
        if not connection.is_open:
            raise SupervisorLost
        self._is_silent = False
        self._shortage = ""
        self._ready.set()
        self._keep(self._watch(connection))

    async def _watch(self, connection: SupervisorConnection) -> None:
        """Pings the supervisor regularly, as long as this is the current connection."""
        while connection.is_open:
            await next_tick(_PING_SECONDS)
            answer = asyncio.ensure_future(connection.ask("ping"))
            try:
                self._shortage = str((await self._wait_for(answer)).get("shortage", ""))
            except TimeoutError:
                self._on_news(
                    f"the supervisor of containers, process {connection.pid}, hangs and is replaced"
                )
                # Before the kill, which may take a while: requests wait for the next supervisor from now on.
                self._ready.clear()
                await connection.kill()
                self._replace()
            except SupervisorRefused:
                pass  # an older supervisor, which does not know pings and is healthy
            except SupervisorLost:
                return

    async def _wait_for(self, answer: "asyncio.Future[Message]") -> Message:
        """Waits twice, since the agent itself may have been stopped for a while. Raises TimeoutError."""
        try:
            async with asyncio.timeout(_SILENT_SECONDS):
                said = await asyncio.shield(answer)
        except TimeoutError:
            self._is_silent = True
            async with asyncio.timeout(_HUNG_SECONDS):
                said = await answer
        self._is_silent = False
        return said

    def _lost(self) -> None:
        """Starts a replacement. There is one supervisor after another, never two at a time."""
        if self._ready.is_set() and not self._is_closed:
            self._ready.clear()
            self._replace()

    def _replace(self) -> None:
        if not self._is_closed:
            self._keep(self._reconnect())
            self._on_lost()

    async def _reconnect(self) -> None:
        """Tries until there is a supervisor again. Meanwhile containers run on, and no container is started."""
        self._on_news("the supervisor of containers ended")
        wait = _FIRST_RECONNECTION_SECONDS
        while not self._is_closed:
            try:
                await self._connect()
            except (SupervisorLost, EvenkeelError, OSError) as error:
                self._on_news(f"the supervisor of containers cannot be started: {error}")
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_RECONNECTION_SECONDS)
            else:
                self._on_news("another supervisor has the containers now")
                return

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def orphan_status(process: ProcessFile) -> int | None:
    """The same as `ended_status`, once a descriptor is free. An orphan that was not looked at would stay a zombie, and
    its status would be lost."""
    while True:
        try:
            return ended_status(process)
        except OSError:
            await asyncio.sleep(_LOOK_SECONDS)


def ended_status(process: ProcessFile) -> int | None:
    """Reaps an orphan that has ended, if we are its parent. Never waits.

    Returns the status from waitpid; None if it cannot be known. Raises OSError if no descriptor is left to look.
    """
    if start_ticks(process.pid) != process.ticks:
        return None  # the number belongs to another process by now
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


async def reap_strays(containers: Callable[[], set[int]]) -> None:
    """Reaps children of a dead supervisor that have ended and are not containers. They are our children now, and no
    other process reaps them. `containers` returns the first processes of containers.
    """
    await asyncio.sleep(_STRAY_SECONDS)
    ended = ended_children()
    await asyncio.sleep(_STRAY_SECONDS)
    reap((ended & ended_children()) - containers())


def reap(pids: Iterable[int]) -> None:
    """Waits for children that have ended."""
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
