"""Port-forward over SPDY: a client opens a pair of streams for each connection to a port of the pod.

The stream `data` has the bytes of both directions, the stream `error` what went wrong. A pair has the number of its
request in common. Each pair has a task and a few buffers of its own.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from evenkeel.runtime.sessions import SessionRefused
from evenkeel.server.kubelet.spdy import STREAM_TYPE, Spdy
from evenkeel.server.kubelet.spdy_frames import CANCEL, Data, Opened, Reset

OpenPort = Callable[[int], Awaitable[socket.socket]]
_MOST_PAIRS = 128  # of one connection
_MOST_PARTS = 8  # that wait for the pod, each of 32 KiB at most
_CHUNK_BYTES = 32 * 1024
_LARGEST_PORT = 65535
_DATA, _ERROR = "data", "error"


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
        self._pairs: dict[int, _Pair] = {}  # by the number of the stream `data`
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises OSError when the client is gone."""
        async for frame in self._spdy.frames():
            if isinstance(frame, Opened):
                await self._take(frame)
            elif isinstance(frame, Data):
                pair = self._pairs.get(frame.stream)
                if pair is not None:
                    await pair.receive(frame.data, is_last=frame.is_last)
            elif isinstance(frame, Reset):
                pair = self._pairs.pop(frame.stream, None)
                if pair is not None:
                    pair.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, opened: Opened) -> None:
        kind, port = opened.headers.get(STREAM_TYPE, ""), _port(opened.headers)
        # Clients that number no requests open the two streams of a pair one after the other, first `error`.
        number = opened.stream - 2 * (kind == _DATA)
        request = opened.headers.get("requestid") or f"stream {number}"
        other = self._half.get(request)
        is_known = kind in (_DATA, _ERROR) and port > 0 and len(self._half) + len(self._pairs) < _MOST_PAIRS
        if not is_known or (other is not None and other.headers.get(STREAM_TYPE) == kind):
            await self._spdy.reset(opened.stream)
            return
        await self._spdy.answer(opened.stream)
        if other is None:
            self._half[request] = opened
            return
        del self._half[request]
        data, error = (opened, other) if kind == _DATA else (other, opened)
        pair = _Pair(self._spdy, data.stream, error.stream)
        self._pairs[data.stream] = pair
        task = asyncio.create_task(self._serve(pair, port))
        pair.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, pair: "_Pair", port: int) -> None:
        try:
            with suppress(OSError):  # the client is gone
                await pair.serve(self._open_port, port)
        finally:
            self._pairs.pop(pair.data, None)
            pair.end()


class _Pair:
    """One connection to the pod, with its two streams."""

    def __init__(self, spdy: Spdy, data: int, error: int) -> None:
        self.data = data
        self.cancel: Callable[[], object] = lambda: None
        self._spdy = spdy
        self._error = error
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST_PARTS)  # an empty part is the end
        self._is_over = False

    async def receive(self, data: bytes, *, is_last: bool) -> None:
        """Takes a part for the pod; waits while too many do."""
        if data and not self._is_over:
            await self._waiting.put(data)
        if is_last and not self._is_over:
            await self._waiting.put(b"")

    def end(self) -> None:
        """Nothing more is for the pod: who waits in `receive` goes on."""
        self._is_over = True
        while not self._waiting.empty():
            self._waiting.get_nowait()

    async def serve(self, open_port: OpenPort, port: int) -> None:
        """Returns when both directions have ended. Raises OSError when the client is gone."""
        try:
            connection = await open_port(port)
        except SessionRefused as error:
            await self._spdy.send(self._error, error.message.encode(), is_last=True)
            await self._spdy.reset(self.data, CANCEL)
            return
        inward = asyncio.ensure_future(self._to_pod(connection))
        try:
            await self._from_pod(connection)
            await self._spdy.send(self.data, b"", is_last=True)
            await self._spdy.send(self._error, b"", is_last=True)
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
            await self._spdy.send(self.data, chunk)

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


def _port(headers: Mapping[str, str]) -> int:
    """0 if it is none."""
    text = headers.get("port", "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 5
    return int(text) if is_number and 1 <= int(text) <= _LARGEST_PORT else 0
