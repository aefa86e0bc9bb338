"""One connection of a port-forward: the bytes between a port of the pod and a pair of streams of the client."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from evenkeel.runtime.sessions import SessionRefused

OpenPort = Callable[[int], Awaitable[socket.socket]]
MOST_PAIRS = 128  # of one client's connection
LARGEST_PORT = 65535
_MOST_PARTS = 8  # that wait for the pod, each of 32 KiB at most
_CHUNK_BYTES = 32 * 1024


class PairStreams(Protocol):
    """The client's two streams. Each method raises OSError when the client is gone."""

    async def send(self, data: bytes) -> None: ...
    async def end(self) -> None:
        """The pod sends no more."""

    async def fail(self, problem: str) -> None:
        """There is no connection to the pod."""


class PortPair:
    def __init__(self, streams: PairStreams) -> None:
        self.cancel: Callable[[], object] = lambda: None
        self._streams = streams
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST_PARTS)  # an empty part is the end
        self._is_over = False

    async def receive(self, data: bytes, *, is_last: bool) -> None:
        """Takes a part for the pod; waits while too many do. After the last one nothing more comes."""
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
