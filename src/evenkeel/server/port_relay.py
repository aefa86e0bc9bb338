"""Relays between a client's WebSocket and a connection to a port of a pod, with back-pressure in both directions.

The form is that of Kubernetes' port-forward over WebSockets, with one port: channel 0 has the bytes of both directions,
channel 1 an error, and the first message of each has the port. With version 5 of the protocol, either side may close
its direction and still receive.
"""

import asyncio
import socket
from typing import TYPE_CHECKING

from evenkeel.server.channels import CLOSE, DATA, DATA_ERROR, V5

if TYPE_CHECKING:
    from evenkeel.server.websocket import WebSocket

_CHUNK_BYTES = 32 * 1024


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
        is_closed.set()  # it could not say so
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
