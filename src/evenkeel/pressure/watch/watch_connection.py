"""The agent's side of the watch's socket, on asyncio: a connection to a watch that runs, or to one that is started."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.helper_process import connected_to, is_gone, reap_later
from evenkeel.host.protection import small_command
from evenkeel.pressure.watch.messages import SOCKET_NAME, BadMessage, Frames, Message, frame

_READ_BYTES = 1 << 18
_END_SECONDS = 10.0


class WatchLost(EvenkeelError):
    def __init__(self) -> None:
        super().__init__("the watch over memory went away")


class WatchConnection:
    """One connection to a watch. `on_message` gets all messages after `ready`; before, they are kept in `backlog`.
    `on_lost` is called when the watch has closed it, from `attend` on. The watch's process may still run, and can be
    killed until `close`."""

    def __init__(
        self,
        client: socket.socket,
        pid: int,
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        client.setblocking(False)
        self.pid = pid
        self.backlog: list[Message] = []
        self.throttled: dict[str, int] = {}  # by UID: the pods that it throttled when it said hello
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_attended = False
        self._socket = client
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._waiting = bytearray()
        self._hello: asyncio.Future[Message] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._pong: asyncio.Future[None] | None = None
        self._pidfd = -1
        with suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
        self.is_open = True
        self._loop.add_reader(client.fileno(), self.receive)

    async def hello(self, seconds: float) -> Message:
        """The first message. Raises WatchLost."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            raise WatchLost from None

    def attend(self) -> None:
        """The watch is in use from now on. If it is gone already, `on_lost` is called at once."""
        self._is_attended = True
        if not self.is_open:
            self._on_lost()

    async def ready(self, seconds: float) -> None:
        """Waits until the watch has sent all earlier reports. Raises WatchLost."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise WatchLost from None

    async def ping(self, seconds: float) -> None:
        """Raises WatchLost if there is no answer."""
        if not self.is_open:
            raise WatchLost
        self._pong = self._loop.create_future()
        self.send({"do": "ping"})
        try:
            async with asyncio.timeout(seconds):
                await self._pong
        except TimeoutError:
            raise WatchLost from None

    def send(self, message: Message) -> None:
        """Never waits."""
        if self.is_open:
            self._waiting += frame(message)
            self._flush()

    async def end(self) -> None:
        """Asks the watch to end, and returns when it is gone. Kills it if it does not end."""
        self._is_attended = False
        self.send({"do": "end"})
        if not await self._is_gone(_END_SECONDS):
            await self.kill()
        self.close()

    async def kill(self) -> None:
        """Kills the watch, and returns when it is gone. `on_lost` is not called."""
        self._is_attended = False
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await self._is_gone(_END_SECONDS)
        self.close()

    def close(self) -> None:
        """Closes the connection. `on_lost` is not called."""
        self._disconnect()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _disconnect(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            for one in (self._hello, self._ready, self._pong):
                if one is not None and not one.done():
                    one.set_exception(WatchLost())
                    one.exception()  # the caller may have stopped waiting

    def receive(self) -> None:
        """Takes everything that has arrived."""
        while self.is_open:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            try:
                messages = self._frames.take(data) if data else []
            except BadMessage:
                data = b""
            if not data:
                self._disconnect()
                if self._is_attended:
                    self._on_lost()
                return
            for message in messages:
                self._take(message)

    def _take(self, message: Message) -> None:
        event = message.get("event")
        if event in ("hello", "busy"):
            if not self._hello.done():
                self.throttled = message.get("throttled") or {}
                self._hello.set_result(message)
        elif event == "ready":
            if not self._ready.done():
                self._ready.set_result(None)
        elif event == "pong":
            if self._pong is not None and not self._pong.done():
                self._pong.set_result(None)
        elif self._ready.done():
            self._on_message(message)
        else:
            self.backlog.append(message)

    def _flush(self) -> None:
        while self._waiting and self.is_open:
            try:
                sent = self._socket.send(self._waiting)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except OSError:
                return  # the next read reports the loss
            del self._waiting[:sent]
        if self.is_open:
            self._loop.remove_writer(self._socket.fileno())

    async def _is_gone(self, seconds: float) -> bool:
        return self._pidfd < 0 or await is_gone(self._pidfd, seconds)


def existing(state: str) -> tuple[socket.socket, int] | None:
    """Connects to the watch that runs. Returns the connection and its process number; None if none runs."""
    try:
        return connected_to(state, SOCKET_NAME, socket.SOCK_STREAM)
    except OSError:
        return None


def started(state: str, former: int) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    number = theirs.fileno()
    command = small_command("evenkeel.pressure.watch.process", state, str(number), str(former))
    try:
        process = subprocess.Popen(  # noqa: S603 no part of the command comes from outside
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=(number,),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise EvenkeelError(f"the watch over memory cannot be started: {reason(error)}") from None
    finally:
        theirs.close()
    process.returncode = 0  # it outlives us; its end is noticed below
    reap_later(process.pid)
    return ours, process.pid
