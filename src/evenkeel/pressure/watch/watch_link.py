"""The agent's link to `evenkeel-watch`: it finds or starts one, notices that it ended or hangs, and replaces it.

A watch of another version is replaced without a gap: the new one gets settings and targets first, and then the former
one is asked to end. The new one takes over at that moment.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine

import evenkeel
from evenkeel.errors import EvenkeelError
from evenkeel.host.helper_process import kill_holder
from evenkeel.host.ticks import next_tick
from evenkeel.pressure.watch.messages import LOCK_NAME, PROTOCOL, Message
from evenkeel.pressure.watch.watch_connection import WatchConnection, WatchLost, existing, started

_HELLO_SECONDS = 15.0  # for a watch that runs
_STARTED_SECONDS = 60.0  # for a watch that was just started, on a busy machine
_PING_SECONDS = 3.0
# Without an answer: then another watch is started. A watch has no task that takes so long.
_HUNG_SECONDS = 15.0
# The agent is not ready if a watch that has ended is not replaced within this time.
_ABSENT_SECONDS = 3.0
# The pauses grow: a watch that ends at once must not be started too often.
_PAUSES_SECONDS = (0.0, 0.02, 0.1, 0.5, 1.0, 2.0, 4.0)


class _Busy(WatchLost):
    """Another watch holds the lock."""


class WatchLink:
    """`introduce` gives a watch its settings and targets. `take` gets its messages. `on_news` gets losses and
    replacements, as sentences. `on_lost` is called when a watch has ended or was killed, before another one is
    started; not when it has only closed the connection."""

    def __init__(
        self,
        state: str,
        introduce: Callable[[WatchConnection], None],
        take: Callable[[Message], None],
        on_news: Callable[[str], None],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._introduce = introduce
        self._take = take
        self._on_news = on_news
        self._on_lost = on_lost
        self._is_closed = False
        self._version: tuple[object, object] = (None, None)  # protocol and release of the watch
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None
        self.connection: WatchConnection | None = None
        self._next: WatchConnection | None = None  # knows its targets, and does not watch yet
        self._lost_at: float | None = None  # None: no watch was there yet

    async def find(self) -> Message | None:
        """Connects to the watch that runs, if there is one. Returns its first message. Its reports follow."""
        found = existing(self._state)
        if found is None:
            return None
        connection = WatchConnection(*found, self._take, self._lost)
        try:
            hello = await connection.hello(_HELLO_SECONDS)
            if hello.get("protocol") == PROTOCOL:
                await connection.ready(_HELLO_SECONDS)
        except WatchLost:
            await connection.kill()  # it hangs; its guard releases what it holds
            return None
        self._use(connection, hello)
        return hello

    def open(self) -> None:
        """Introduces the agent to the watch that was found. If there is none, or one of another version, it starts
        one, and does not wait for it."""
        former = self.connection if self.connection is not None and self.connection.is_open else None
        if former is None:
            lost, self.connection = self.connection, None  # one that was found has ended since
            self._starting = self._keep(self._start_until_there(None, lost))
        elif self._version != (PROTOCOL, evenkeel.__version__):
            self._starting = self._keep(self._start_until_there(former))
        else:
            self._introduce(former)
            self._attend(former)

    @property
    def absence(self) -> str:
        """Why nothing watches memory, once `open` was called; empty if a watch has its settings and targets. A short
        gap during a replacement does not count."""
        if self._is_closed or (self.connection is not None and self.connection.is_open):
            return ""
        if self._lost_at is None:
            return "the watch over memory is being started"
        is_late = time.monotonic() - self._lost_at > _ABSENT_SECONDS
        return "the watch over memory ended, and no other one is there yet" if is_late else ""

    def send(self, message: Message) -> None:
        if self.connection is not None:
            self.connection.send(message)

    def change(self, make: Callable[[], Message]) -> None:
        """Sends a change of settings or targets, if there is a watch that `introduce` has given them to."""
        connection = self._next or self.connection
        if connection is not None:
            connection.send(make())

    def receive(self) -> None:
        """Takes everything that the watch has sent."""
        if self.connection is not None and self.connection.is_open:
            self.connection.receive()

    async def close(self, *, end: bool) -> None:
        """Leaves the watch alone, or asks it to end."""
        if end and self._starting is not None:
            await asyncio.wait({self._starting}, timeout=_STARTED_SECONDS)
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.connection is not None:
            if end:
                await self.connection.end()
            self.connection.close()

    async def _start(self, former: WatchConnection | None) -> None:
        """Raises _Busy if another watch holds the lock all the time, and EvenkeelError."""
        is_busy = False
        for pause in _PAUSES_SECONDS:
            await asyncio.sleep(pause)
            replaced = former if former is not None and former.is_open else None
            if former is not None and replaced is None:
                await former.kill()  # it has closed the connection: it ended, or hangs in its end
            connection = WatchConnection(
                *started(self._state, replaced.pid if replaced else 0), self._take, self._lost
            )
            try:
                hello = await self._installed(connection, replaced)
            except WatchLost as error:
                is_busy = isinstance(error, _Busy)
                await connection.kill()
                if replaced is None or not replaced.is_open:
                    self._on_lost()  # it may have had targets, and no other watch had them
                continue
            finally:
                self._next = None
            self._use(connection, hello)
            self._attend(connection)
            return
        if is_busy:
            raise _Busy
        raise EvenkeelError(
            f"the watch over memory cannot be started for {self._state}",
            hint=f"{self._state}/watch.log may say why",
        )

    async def _installed(self, connection: WatchConnection, former: WatchConnection | None) -> Message:
        """Introduces the agent to a new watch, and lets it take the place of the former one. Returns its first message.
        Raises WatchLost."""
        hello = await connection.hello(_STARTED_SECONDS)
        if hello.get("event") != "hello":
            raise _Busy  # another one is about to end
        self._introduce(connection)
        self._next = connection
        if former is not None:
            await connection.ping(_STARTED_SECONDS)  # by then it has its targets
            await former.end()
        await connection.ready(_STARTED_SECONDS)
        return hello

    def _use(self, connection: WatchConnection, hello: Message) -> None:
        self.connection = connection
        self._version = (hello.get("protocol"), hello.get("version"))
        backlog, connection.backlog = connection.backlog, []
        for message in backlog if hello.get("protocol") == PROTOCOL else ():
            self._take(message)

    def _attend(self, connection: WatchConnection) -> None:
        """Replaces the watch from now on if it ends or hangs."""
        connection.attend()
        if connection.is_open:
            self._keep(self._ping(connection))

    async def _ping(self, connection: WatchConnection) -> None:
        while connection.is_open:
            await next_tick(_PING_SECONDS)
            try:
                await connection.ping(_HUNG_SECONDS)
            except WatchLost:
                if connection.is_open:
                    self._on_news(f"the watch over memory, process {connection.pid}, hangs and is replaced")
                    await connection.kill()
                    self._lost()
                return

    def _lost(self) -> None:
        if not self._is_closed:
            lost, self.connection = self.connection, None
            self._lost_at = time.monotonic()
            self._starting = self._keep(self._start_until_there(None, lost))

    async def _start_until_there(
        self, former: WatchConnection | None, lost: WatchConnection | None = None
    ) -> None:
        """Replaces the former watch, which still watches, or one that is lost."""
        try:
            await self._try_until_there(former, lost)
        finally:
            if lost is not None:
                lost.close()

    async def _try_until_there(self, former: WatchConnection | None, lost: WatchConnection | None) -> None:
        while not self._is_closed:
            try:
                if former is not None and not former.is_open:
                    # It has ended, or hangs in its end. Another one may have taken over by now.
                    await former.kill()
                    former = None
                if former is None and await self.find() is not None:
                    # It has only closed the connection, as to an agent that was stopped and did not read.
                    self.open()
                else:
                    if lost is not None:
                        # A watch that hangs in its end would keep the lock, and the next watch could not work.
                        await lost.kill()
                        self._on_news("the watch over memory ended: another one is started")
                        self._on_lost()
                        lost = None
                    await self._start(former)
            except _Busy:
                await self._reveal()
            except (EvenkeelError, OSError) as error:
                self._on_news(str(error))
                await asyncio.sleep(_PAUSES_SECONDS[-1])
            else:
                return

    async def _reveal(self) -> None:
        """Another watch holds the lock for long. If it does not listen, nobody can speak to it: an agent before this
        one may have lost it in its end, or its socket was removed. It is killed."""
        if (found := existing(self._state)) is not None:
            found[0].close()  # it listens by now: it was just starting
            return
        pid = await kill_holder(self._state, LOCK_NAME)
        if pid is None:
            self._on_news("another watch over memory holds the lock, and cannot be found or killed")
            await asyncio.sleep(_PAUSES_SECONDS[-1])
        else:
            self._on_news(f"the watch over memory, process {pid}, does not listen and is replaced")
            self._on_lost()

    def _keep(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
