"""Port-forward of the node's server, over SPDY and over kubelet's older WebSockets: a pair of streams of the client for
each connection to a port of the pod.

With SPDY a client opens a pair of streams for each connection. The stream `data` has the bytes of both directions, the
stream `error` what went wrong. Both streams of a pair name the same request. Each pair has a task and a few buffers
of its own.

With a WebSocket, in the form of kubelet before SPDY was tunnelled, the ports are in the address. The nth port has the
channels 2n, for the bytes of both directions, and 2n+1, for what went wrong. The first message of each has the port.
Neither side can end one direction or one port: the end of a connection to the pod, or that there is none, ends the
WebSocket.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from wsproto.utilities import ProtocolError

from evenkeel.runtime.sessions import SessionRefused
from evenkeel.server.http import Refused
from evenkeel.server.kubelet.coded_websocket import (
    MOST_CHANNELS,
    MOST_TEXT_CHANNELS,
    CodedWebSocket,
    is_text,
)
from evenkeel.server.kubelet.spdy import STREAM_TYPE, Spdy
from evenkeel.server.kubelet.spdy_frames import CANCEL, Data, Opened, Reset
from evenkeel.server.websocket import WebSocket

OpenPort = Callable[[int], Awaitable[socket.socket]]
MOST_PAIRS = 128  # of one client's connection
LARGEST_PORT = 65535
_MOST_PARTS = 8  # that wait for the pod, each of 32 KiB at most
_CHUNK_BYTES = 32 * 1024
_DATA, _ERROR = "data", "error"


class PairStreams(Protocol):
    """The client's two streams. Each method raises OSError when the client is gone."""

    async def send(self, data: bytes) -> None: ...
    async def end(self) -> None:
        """The pod sends no more."""

    async def fail(self, problem: str) -> None:
        """There is no connection to the pod."""


class PortPair:
    def __init__(self, streams: PairStreams) -> None:
        self._streams = streams
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST_PARTS)  # an empty part is the end
        self._is_over = False

    async def receive(self, data: bytes, *, is_last: bool) -> None:
        """Takes a part for the pod. Waits while too many parts wait. Nothing follows after the last part."""
        if data and not self._is_over:
            await self._waiting.put(data)
        if is_last and not self._is_over:
            await self._waiting.put(b"")

    def end(self) -> None:
        """The pod takes no more data. A caller that waits in `receive` continues."""
        self._is_over = True
        while not self._waiting.empty():
            self._waiting.get_nowait()

    async def serve(self, open_port: OpenPort, port: int) -> None:
        """Returns when both directions have ended. Raises OSError when the client is gone."""
        try:
            connection = await open_port(port)
        except SessionRefused as error:
            await self._streams.fail(error.message)
            return
        inward = asyncio.ensure_future(self._to_pod(connection))
        try:
            await self._from_pod(connection)
            await self._streams.end()
            await inward
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)
            connection.close()

    async def _from_pod(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                chunk = await loop.sock_recv(connection, _CHUNK_BYTES)
            except OSError:
                return  # the pod has reset the connection
            if not chunk:
                return
            await self._streams.send(chunk)

    async def _to_pod(self, connection: socket.socket) -> None:
        """Returns when the client sends no more."""
        loop = asyncio.get_running_loop()
        while part := await self._waiting.get():
            try:
                await loop.sock_sendall(connection, part)
            except OSError:
                self.end()  # the pod takes no more; it may still send
                return
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def port_number(text: str) -> int:
    """0 if it is none."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if is_number and 1 <= int(text) <= LARGEST_PORT else 0


async def forward_ports(spdy: Spdy, open_port: OpenPort) -> None:
    """Serves all pairs of streams until the client is gone."""
    pairs = _Pairs(spdy, open_port)
    serving = asyncio.ensure_future(pairs.serve())
    gone = asyncio.ensure_future(spdy.client_gone())
    try:
        await asyncio.wait((serving, gone), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    except OSError:
        pass  # the client is gone
    finally:
        serving.cancel()
        gone.cancel()
        await asyncio.gather(serving, gone, return_exceptions=True)
        await pairs.close()


class _Pairs:
    def __init__(self, spdy: Spdy, open_port: OpenPort) -> None:
        self._spdy = spdy
        self._open_port = open_port
        self._half: dict[str, Opened] = {}  # by request: a stream whose other one has not come yet
        # By the number of the stream `data`: the pair, and the task that serves it.
        self._pairs: dict[int, tuple[PortPair, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises OSError when the client is gone."""
        async for frame in self._spdy.frames():
            if isinstance(frame, Opened):
                await self._take(frame)
            elif isinstance(frame, Data):
                if frame.stream in self._pairs:
                    pair, _ = self._pairs[frame.stream]
                    await pair.receive(frame.data, is_last=frame.is_last)
            elif isinstance(frame, Reset) and frame.stream in self._pairs:
                _, task = self._pairs.pop(frame.stream)
                task.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, opened: Opened) -> None:
        kind, port = opened.headers.get(STREAM_TYPE, ""), port_number(opened.headers.get("port", ""))
        # Clients that number no requests open the two streams of a pair one after the other, first `error`.
        number = opened.stream - 2 * (kind == _DATA)
        request = opened.headers.get("requestid") or f"stream {number}"
        other = self._half.get(request)
        is_known = kind in (_DATA, _ERROR) and port > 0 and len(self._half) + len(self._pairs) < MOST_PAIRS
        if not is_known or (other is not None and other.headers.get(STREAM_TYPE) == kind):
            await self._spdy.reset(opened.stream)
            return
        await self._spdy.answer(opened.stream)
        if other is None:
            self._half[request] = opened
            return
        del self._half[request]
        data, error = (opened, other) if kind == _DATA else (other, opened)
        pair = PortPair(_SpdyPair(self._spdy, data.stream, error.stream))
        task = asyncio.create_task(self._serve(pair, data.stream, port))
        self._pairs[data.stream] = pair, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, pair: PortPair, stream: int, port: int) -> None:
        try:
            with suppress(OSError):  # the client is gone
                await pair.serve(self._open_port, port)
        finally:
            self._pairs.pop(stream, None)
            pair.end()


class _SpdyPair:
    """The two streams of a pair (`PairStreams`)."""

    def __init__(self, spdy: Spdy, data: int, error: int) -> None:
        self._spdy = spdy
        self._data = data
        self._error = error

    async def send(self, data: bytes) -> None:
        await self._spdy.send(self._data, data)

    async def end(self) -> None:
        await self._spdy.send(self._data, b"", is_last=True)
        await self._spdy.send(self._error, b"", is_last=True)

    async def fail(self, problem: str) -> None:
        await self._spdy.send(self._error, problem.encode(), is_last=True)
        await self._spdy.reset(self._data, CANCEL)


def asked_ports(given: Iterable[str]) -> tuple[int, ...]:
    """The ports of a request: each value is one, or several with commas between them. Raises Refused."""
    texts = [text for value in given for text in value.split(",")]
    if not texts:
        raise Refused(400, "port: missing", hint="name the ports of the pod, as in ?port=80&port=443")
    ports = tuple(map(port_number, texts))
    for text, port in zip(texts, ports, strict=True):
        if not port:
            raise Refused(400, f'port: "{text[:40]}" is no number from 1 to {LARGEST_PORT}')
    if 2 * len(ports) > MOST_CHANNELS:
        raise Refused(400, f"port: {len(ports)} are more than the {MOST_CHANNELS // 2} of one connection")
    return ports


async def forward_asked_ports(websocket: WebSocket, ports: Sequence[int], open_port: OpenPort) -> None:
    """Serves until a port has ended or the client is gone."""
    if is_text(websocket) and 2 * len(ports) > MOST_TEXT_CHANNELS:
        await websocket.close(is_orderly=False)  # a channel is one digit
        return
    coded = CodedWebSocket(websocket)
    pairs = [PortPair(_WebSocketPair(coded, 2 * number)) for number in range(len(ports))]
    serving = asyncio.ensure_future(_serve(coded, pairs, ports, open_port))
    reading = asyncio.ensure_future(_read(coded, pairs))
    gone = asyncio.ensure_future(websocket.client_gone())
    tasks = (serving, reading, gone)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await websocket.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    coded: CodedWebSocket, pairs: Sequence[PortPair], ports: Sequence[int], open_port: OpenPort
) -> None:
    for channel in range(2 * len(ports)):
        await coded.send(channel, ports[channel // 2].to_bytes(2, "little"))
    served = [
        asyncio.ensure_future(_pair(one, open_port, port)) for one, port in zip(pairs, ports, strict=True)
    ]
    try:
        await asyncio.wait(served, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def _pair(pair: PortPair, open_port: OpenPort, port: int) -> None:
    try:
        await pair.serve(open_port, port)
    finally:
        pair.end()


async def _read(coded: CodedWebSocket, pairs: Sequence[PortPair]) -> None:
    """Returns when the client sends no more at all."""
    with suppress(ProtocolError):
        async for part in coded.parts():
            number, is_error = divmod(part.channel, 2)
            if not is_error and 0 <= number < len(pairs):
                await pairs[number].receive(part.data, is_last=False)


class _WebSocketPair:
    """The channels of a port (`PairStreams`)."""

    def __init__(self, coded: CodedWebSocket, channel: int) -> None:
        self._coded = coded
        self._channel = channel

    async def send(self, data: bytes) -> None:
        await self._coded.send(self._channel, data)

    async def end(self) -> None:
        raise ConnectionResetError  # it is over

    async def fail(self, problem: str) -> None:
        await self._coded.send(self._channel + 1, problem.encode())
