"""Connects clients to the streams of a container itself, with a container runtime: CRI's Attach.

Attach answers with the address of the runtime's streaming server. The connection to it is a WebSocket with Kubernetes'
protocol `v4.channel.k8s.io`. That protocol cannot end the standard input. So the input has a connection of its own: it
is closed when the client has no more input, and the output goes on. containerd ends a connection without input at once.
So the connection of the output has an input too, and sends nothing on it. The relay of the agent needs descriptors, so
there are pipes between it and the connections.
"""

import asyncio
import json
import os
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.utilities import ProtocolError

from evenkeel.api.container import Container
from evenkeel.errors import reason
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection
from evenkeel.runtime.sessions import (
    BaseSession,
    Session,
    SessionEnd,
    SessionRefused,
    Streams,
    readable,
    writable,
)
from evenkeel.runtime.websocket_channels import READ_BYTES, WebSocketChannels

_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)
_MOST_STATUS_BYTES = 64 * 1024
_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_LOST = SessionEnd(1, "the container runtime went away; the container runs on", "attach to it again")


async def attached(connection: Connection, id_: str, container: Container, wanted: Streams) -> Session:
    """Opens the streams of the container with this ID. Raises SessionRefused."""
    if container.stdin and container.stdin_once and not container.tty and not wanted.stdin:
        raise SessionRefused(
            f'a container runtime would end the standard input of container "{container.name}" (stdinOnce) with '
            "this client",
            hint="read its output with evenkeel logs -f, or attach with -i",
        )
    session = CriAttachedSession(wanted)
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            await session.open(connection, id_)
    except BaseException as error:
        await session.close()
        if isinstance(error, CallFailed):
            raise SessionRefused(error.message, hint=error.hint) from None
        if isinstance(error, TimeoutError):
            raise SessionRefused("the container runtime's streaming server does not answer") from None
        if isinstance(error, OSError | ProtocolError):
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise SessionRefused(
                f"the container runtime's streaming server cannot be reached: {why}"
            ) from None
        raise
    return session


class CriAttachedSession(BaseSession):
    """Two connections, and a task for each."""

    def __init__(self, wanted: Streams) -> None:
        super().__init__()
        self._wanted = wanted
        self._output: _Channels | None = None
        self._input: _Channels | None = None
        self._ends: dict[int, int] = {}  # by channel: the ends of the pipes that the tasks have
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, connection: Connection, container: str) -> None:
        """The output is opened in any case: it ends when the container ends."""
        wanted, has_stderr = self._wanted, self._wanted.stderr and not self._wanted.terminal
        self._output = await _Channels.open(
            connection,
            pb.AttachRequest(
                container_id=container, stdin=True, stdout=True, stderr=has_stderr, tty=wanted.terminal
            ),
        )
        if wanted.stdin:
            self._input = await _Channels.open(
                connection, pb.AttachRequest(container_id=container, stdin=True, tty=wanted.terminal)
            )
            self._ends[_STDIN], self.stdin = _pipe()
            self._tasks.append(asyncio.ensure_future(self._send_input(self._input)))
        if wanted.stdout:
            self.stdout, self._ends[_STDOUT] = _pipe()
        if has_stderr:
            self.stderr, self._ends[_STDERR] = _pipe()
        self._tasks.append(asyncio.ensure_future(self._take_output(self._output)))

    # Session

    def close_stdin(self) -> None:
        if self.stdin >= 0 and not self._wanted.terminal:
            os.close(self.stdin)
            self.stdin = -1

    async def resize(self, columns: int, rows: int) -> None:
        if self._wanted.terminal and self._output is not None:
            with suppress(OSError):
                await self._output.send(_RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in list(self._ends):
            self._close_end(channel)
        for one in (self._input, self._output):
            if one is not None:
                await one.close()

    # Tasks

    async def _send_input(self, channels: "_Channels") -> None:
        """Sends everything that the client sends. Its end closes the connection."""
        source = self._ends[_STDIN]
        with suppress(OSError):  # the runtime takes no more
            while True:
                try:
                    chunk = os.read(source, READ_BYTES)
                except BlockingIOError:
                    await readable(source)
                    continue
                if not chunk:
                    break
                await channels.send(_STDIN, chunk)
        self._close_end(_STDIN)
        await channels.close()

    async def _take_output(self, channels: "_Channels") -> None:
        status = b""
        try:
            async for channel, data, _ in channels.parts():
                if channel == _ERROR:
                    status = (status + data)[:_MOST_STATUS_BYTES]
                elif channel in self._ends:
                    await self._write(channel, data)
        except (OSError, ProtocolError):
            pass
        for channel in (_STDOUT, _STDERR):
            self._close_end(channel)
        self.finished(_end_of(status))

    async def _write(self, channel: int, data: bytes) -> None:
        view = memoryview(data)
        while view and channel in self._ends:
            try:
                view = view[os.write(self._ends[channel], view) :]
            except BlockingIOError:
                await writable(self._ends[channel])
            except OSError:
                self._close_end(channel)

    def _close_end(self, channel: int) -> None:
        end = self._ends.pop(channel, -1)
        if end >= 0:
            os.close(end)


class _Channels(WebSocketChannels):
    """One WebSocket to the streaming server."""

    @classmethod
    async def open(cls, connection: Connection, request: pb.AttachRequest) -> Self:
        answer = await connection.ask(request, pb.AttachResponse)
        url = urlsplit(answer.url)
        if url.scheme != "http" or not url.hostname or not url.port:
            raise SessionRefused(
                f"the container runtime's streaming server has an address that is not taken: {url.scheme}://"
                f"{url.netloc}",
                hint="let it serve plain HTTP at the loopback, which is its default",
            )
        streams = await asyncio.open_connection(url.hostname, url.port)
        opened = cls(WSConnection(ConnectionType.CLIENT), *streams)
        try:
            await opened._shake_hands(url.netloc, url.path + (f"?{url.query}" if url.query else ""))
        except BaseException:
            opened._writer.transport.abort()
            raise
        return opened

    async def close(self) -> None:
        await self.say_end()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def _shake_hands(self, host: str, target: str) -> None:
        await self.send_event(Request(host=host, target=target, subprotocols=[_PROTOCOL]))
        while True:
            received = await self._reader.read(READ_BYTES)
            self._wire.receive_data(received or None)
            for event in self._wire.events():
                if isinstance(event, AcceptConnection):
                    return
                if isinstance(event, RejectConnection):
                    raise SessionRefused(
                        f"the container runtime's streaming server refuses with status {event.status_code}"
                    )
            if not received:
                raise ConnectionResetError


def _pipe() -> tuple[int, int]:
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def _end_of(status: bytes) -> SessionEnd:
    """Reads the last message of the server, a Kubernetes `Status`; without one the server is gone."""
    try:
        value = json.loads(status)
        if value.get("status") == "Success":
            return SessionEnd()
        return SessionEnd(1, str(value.get("message", "")) or "the container runtime ended the session")
    except (ValueError, AttributeError):
        return _LOST
