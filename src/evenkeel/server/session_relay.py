"""Relays between the channels of a client and the streams of a session, or a connection to a port of a pod, with
back-pressure in both directions.

Nothing is kept here but the chunk under way: output is read when the client has taken the chunk before, and input is
taken from the client when the command has room for it. The relay ends when the command has ended and its output is
sent, or when the client is gone. Then the session is closed, which ends a command that still runs.

The form of a port's relay is that of Kubernetes' port-forward over WebSockets, with one port: channel 0 has the bytes
of both directions, channel 1 an error, and the first message of each has the port. With version 5 of the protocol,
either side may close its direction and still receive.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from evenkeel.runtime.sessions import Part, Session, SessionEnd, readable, writable
from evenkeel.server.channels import (
    CLOSE,
    DATA,
    DATA_ERROR,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    V5,
    size_of,
    status_of,
)

if TYPE_CHECKING:
    from evenkeel.server.websocket import WebSocket

_CHUNK_BYTES = 32 * 1024
_LONGEST_CONTROL_BYTES = 1024


class Channels(Protocol):
    """The client: a WebSocket, or the streams of a SPDY connection."""

    async def send(self, channel: int, data: bytes = b"") -> None:
        """Returns when the client has taken it. Raises OSError when the client is gone."""
        ...

    def parts(self) -> AsyncIterator[Part]:
        """What the client sends, until it ends the connection or is gone."""
        ...

    async def client_gone(self) -> None:
        """Returns when the client has closed its end of the connection, even if data from before is unread."""
        ...

    async def close(self, *, is_orderly: bool = True) -> None:
        """Says that this was the end, if the client still listens."""
        ...


class _NotUnderstood(Exception):
    """The client does not keep to the protocol."""


async def relay(channels: Channels, session: Session) -> None:
    """Serves the session until its end, and closes it."""
    is_orderly = True
    try:
        try:
            end = await _served(channels, session)
            if end is not None:
                await channels.send(ERROR, status_of(end))
        except _NotUnderstood:
            is_orderly = False
        await channels.close(is_orderly=is_orderly)
    except OSError:
        pass  # the client is gone
    finally:
        await session.close()


async def _served(channels: Channels, session: Session) -> SessionEnd | None:
    """Returns the end of the session; None if the client is gone before."""
    ended = asyncio.ensure_future(session.ended())
    outputs: list[asyncio.Future[None]] = [
        asyncio.ensure_future(_pump(channels, channel, descriptor, ended, session.lag_seconds))
        for channel, descriptor in ((STDOUT, session.stdout), (STDERR, session.stderr))
        if descriptor >= 0
    ]
    taking: list[asyncio.Future[None]] = [
        asyncio.ensure_future(_take(channels, session)),
        asyncio.ensure_future(channels.client_gone()),
    ]
    finishing = asyncio.ensure_future(_all_done(outputs, ended))
    everything: list[asyncio.Future[None]] = [finishing, *outputs, *taking]
    try:
        await asyncio.wait((finishing, *taking), return_when=asyncio.FIRST_COMPLETED)
        if finishing.done():
            finishing.result()
            return ended.result()
        for task in taking:
            if task.done():
                task.result()
        return None
    finally:
        for task in everything:
            task.cancel()
        ended.cancel()
        await asyncio.gather(*everything, ended, return_exceptions=True)


async def _all_done(outputs: list["asyncio.Future[None]"], ended: "asyncio.Future[SessionEnd]") -> None:
    await asyncio.gather(*outputs)
    await asyncio.shield(ended)


async def _pump(
    channels: Channels,
    channel: int,
    descriptor: int,
    ended: "asyncio.Future[SessionEnd]",
    lag_seconds: float,
) -> None:
    """Sends everything that the command writes. Other processes may hold the stream open when the command has ended;
    what they write later is not waited for."""
    while True:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            if ended.done():
                if not lag_seconds or not await _is_readable(descriptor, lag_seconds):
                    return
            else:
                await _first_of(readable(descriptor), ended)
            continue
        except OSError:
            return  # a terminal that no process has open
        if not chunk:
            return
        await channels.send(channel, chunk)


async def _is_readable(descriptor: int, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await readable(descriptor)
    except TimeoutError:
        return False
    return True


async def _first_of(work: Coroutine[None, None, None], other: "asyncio.Future[SessionEnd]") -> None:
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _take(channels: Channels, session: Session) -> None:
    """Takes the client's messages until it closes the WebSocket."""
    async for channel, data in _messages(channels):
        if channel == STDIN:
            await _write(session, data)
        elif channel == RESIZE:
            size = size_of(data)
            if size is None:
                raise _NotUnderstood
            await session.resize(*size)
        elif channel == CLOSE:
            if data == bytes((STDIN,)):
                session.close_stdin()
        else:
            raise _NotUnderstood


async def _messages(channels: Channels) -> AsyncIterator[tuple[int, bytes]]:
    """The parts of input as they come, and other messages as a whole."""
    held = b""
    async for part in channels.parts():
        if part.channel == STDIN:
            if part.data:
                yield part.channel, part.data
            continue
        held += part.data
        if len(held) > _LONGEST_CONTROL_BYTES:
            raise _NotUnderstood
        if part.is_last:
            yield part.channel, held
            held = b""


async def _write(session: Session, data: bytes) -> None:
    """Returns when the command's stream has room for all of it. A command that reads no more loses it."""
    view = memoryview(data)
    while view and session.stdin >= 0:
        try:
            view = view[os.write(session.stdin, view) :]
        except BlockingIOError:
            await writable(session.stdin)
        except OSError:
            with suppress(OSError):
                session.close_stdin()
            return


async def relay_port(
    websocket: "WebSocket", connection: socket.socket | None, port: int, problem: str
) -> None:
    """Serves until both directions have ended, or the client is gone. Without a connection it sends the problem."""
    number = port.to_bytes(2, "little")
    try:
        await websocket.send(DATA, number)
        await websocket.send(DATA_ERROR, number)
        if connection is None:
            await websocket.send(DATA_ERROR, problem.encode())
        else:
            await _both(websocket, connection)
        await websocket.close()
    except OSError:
        pass  # the client is gone
    finally:
        if connection is not None:
            connection.close()


async def _both(websocket: "WebSocket", connection: socket.socket) -> None:
    is_closed = asyncio.Event()  # the client sends no more
    if websocket.protocol != V5:
        is_closed.set()  # its protocol cannot report that
    outward = asyncio.ensure_future(_from_pod(websocket, connection, is_closed))
    inward = asyncio.ensure_future(_to_pod(websocket, connection, is_closed))
    gone = asyncio.ensure_future(websocket.client_gone())
    tasks = (outward, inward, gone)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if outward.done():
            outward.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _from_pod(websocket: "WebSocket", connection: socket.socket, is_closed: asyncio.Event) -> None:
    """Returns when both directions have ended."""
    loop = asyncio.get_running_loop()
    try:
        while chunk := await loop.sock_recv(connection, _CHUNK_BYTES):
            await websocket.send(DATA, chunk)
    except ConnectionResetError:
        return  # by the pod, or the client is gone
    if websocket.protocol == V5:
        await websocket.send(CLOSE, bytes((DATA,)))
    await is_closed.wait()


async def _to_pod(websocket: "WebSocket", connection: socket.socket, is_closed: asyncio.Event) -> None:
    """Returns when the client closes the WebSocket."""
    loop = asyncio.get_running_loop()
    async for part in websocket.parts():
        try:
            if part.channel == DATA:
                await loop.sock_sendall(connection, part.data)
            elif part.channel == CLOSE and part.data == bytes((DATA,)):
                connection.shutdown(socket.SHUT_WR)
                is_closed.set()
        except OSError:
            is_closed.set()  # the pod takes no more; it may still send
