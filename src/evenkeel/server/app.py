"""The agent's socket, and the connections that are open at it."""

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from evenkeel.agent.front import Front
from evenkeel.server import listen
from evenkeel.server.http import DEFAULT_LIMITS, Connection, Doing, Limits, Refused, stop_accepting
from evenkeel.server.routes import FrontRoutes

if TYPE_CHECKING:
    from evenkeel.server.tcp import Door, Listener

_LAST_WORDS_SECONDS = 2.0  # that answers under way have when the agent ends


async def serve(
    front: Front, state_dir: str, limits: Limits = DEFAULT_LIMITS, door: "Door | None" = None
) -> "Server":
    """Answers at STATE/agent.sock, and at the `door` if there is one, until `close`. Raises EvenkeelError if it cannot
    listen there."""
    listening = listen.listen(state_dir)
    server = Server(front, state_dir, limits)
    try:
        if door is not None:
            server.open(door)
    except BaseException:
        listening.close()
        listen.remove(state_dir, listen.inode_at(state_dir))
        raise
    await server.start(listening)
    return server


class Server:
    def __init__(self, front: Front, state_dir: str, limits: Limits) -> None:
        self._routes = FrontRoutes(front)
        self._state_dir = state_dir
        self._limits = limits
        self._inode = listen.inode_at(state_dir)
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        self._open: dict[asyncio.Task[None], Connection] = {}  # the oldest first
        self._server: asyncio.Server | None = None
        self._is_ending = False
        self.listener: Listener | None = None

    def open(self, door: "Door") -> None:
        """Lets in over TCP, too."""
        from evenkeel.server.tcp import Guarded, Listener

        guarded = Guarded(self._routes, door)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await Connection(reader, writer, self._limits, self._large_bodies).converse(guarded)

        self.listener = Listener(door, connected)
        self.listener.start()

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._connected, sock=listening)

    async def close(self) -> None:
        """Takes no more requests, finishes those it is answering if that does not take long, ends every stream."""
        if self._server is None:
            return
        self._is_ending = True
        await stop_accepting(self._server)
        if self.listener is not None:
            await self.listener.close()
        listen.remove(self._state_dir, self._inode)
        answering = [task for task, connection in self._open.items() if connection.doing is Doing.ANSWERING]
        for task in answering:
            self._open[task].is_last = True
        if answering:
            await asyncio.wait(answering, timeout=_LAST_WORDS_SECONDS)
        for task in (ending := list(self._open)):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._routes.close()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_ending:  # it was accepted in that moment, and nobody would wait for its end
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(reader, writer, self._limits, self._large_bodies)
        self._open[task] = connection
        task.add_done_callback(self._open.pop)
        uid = listen.peer_uid(writer.get_extra_info("socket"))
        try:
            if uid not in (0, os.geteuid()):
                await connection.refuse(
                    Refused(403, f"user {uid} may not ask this agent", hint="ask as root")
                )
            elif len(self._open) > self._limits.connections and not self._make_room(task):
                await connection.refuse(
                    Refused(503, f"{len(self._open) - 1} connections are open", hint="try again")
                )
            else:
                await connection.converse(self._routes)
        except asyncio.CancelledError:
            pass  # the server ends, or needs the room

    def _make_room(self, newest: asyncio.Task[None]) -> bool:
        """Ends the oldest connection that only waits for a request, so that nobody can keep others out by waiting."""
        for task, connection in self._open.items():
            if connection.doing is Doing.WAITING and task is not newest and not task.cancelling():
                task.cancel()
                return True
        return False
