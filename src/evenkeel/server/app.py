"""The agent's HTTP server: its Unix socket, its TCP port if there is one, and the connections that are open."""

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING

from evenkeel.agent.front import Front
from evenkeel.errors import EvenkeelError
from evenkeel.host.ticks import next_tick
from evenkeel.runtime.paths import names_in, state_paths
from evenkeel.server.agent_socket import SocketFile, listen, peer_uid
from evenkeel.server.connection import DEFAULT_LIMITS, READ_BYTES, Connection, Limits
from evenkeel.server.handlers import Handlers
from evenkeel.server.http import Refused, Routes
from evenkeel.server.large_answers import LargeAnswers
from evenkeel.server.object_handlers import ObjectHandlers, WorkloadHandlers
from evenkeel.server.open_connections import OpenConnections, stop_accepting
from evenkeel.server.routes import RouteTable
from evenkeel.server.session_handlers import SessionHandlers

if TYPE_CHECKING:
    from evenkeel.server.tcp import TcpEndpoint, TokenCheck
    from evenkeel.server.tls_listener import Listener

_log = logging.getLogger(__name__)
_FINISH_SECONDS = 2.0  # for answers under way when the agent ends
_SOCKET_CHECK_SECONDS = 1.0


async def serve(
    front: Front, state_dir: str, limits: Limits = DEFAULT_LIMITS, endpoint: "TcpEndpoint | None" = None
) -> "Server":
    """Answers at STATE/agent.sock, and at the `endpoint` if there is one, until `close`. Raises EvenkeelError if it
    cannot listen there. An agent that already has pods starts even if its port is taken. A pod with the host's network
    may have taken the port while no agent ran, and must not be able to keep the agent from starting."""
    listening = listen(state_dir)
    server = Server(front, state_dir, limits)
    try:
        if endpoint is not None:
            server.open(endpoint, must_open=not names_in(state_paths(state_dir).pods))
    except BaseException:
        listening.close()
        server.remove_socket()
        raise
    await server.start(listening)
    return server


class Server:
    def __init__(self, front: Front, state_dir: str, limits: Limits) -> None:
        self.handlers = Handlers(front)
        self._routes = RouteTable(
            self.handlers, SessionHandlers(front), WorkloadHandlers(front), ObjectHandlers(front)
        )
        self._state_dir = state_dir
        self._limits = limits
        self._socket_file = SocketFile(state_dir)
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        self._large_answers = LargeAnswers(limits.large_answer_bytes)
        self._connections = OpenConnections(limits.connections)
        self._server: asyncio.Server | None = None
        self._socket_check: asyncio.Task[None] | None = None
        self._endpoint: TcpEndpoint | None = None  # as long as its port is taken
        self._port_failure = ""
        self.listener: Listener[TokenCheck] | None = None

    def open(self, endpoint: "TcpEndpoint", *, must_open: bool = True) -> None:
        """Answers over TCP, too. If it cannot listen, it raises EvenkeelError with `must_open`, and else tries again
        later."""
        try:
            self._open(endpoint)
        except EvenkeelError as error:
            if must_open:
                raise
            if error.message != self._port_failure:
                _log.error("%s; it is tried again", error.message)
            self._endpoint, self._port_failure = endpoint, error.message
            self.handlers.report_failure(error.message)
        else:
            self._endpoint, self._port_failure = None, ""

    def _open(self, endpoint: "TcpEndpoint") -> None:
        from evenkeel.server.tcp import TokenCheck
        from evenkeel.server.tls_listener import FIRST_REQUEST_SECONDS, Listener, Place

        limits = self._limits._replace(head_seconds=FIRST_REQUEST_SECONDS)

        async def serve_connection(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, routes: Routes
        ) -> None:
            await Connection(reader, writer, limits, self._large_bodies, self._large_answers).serve(routes)

        listener = Listener(
            Place(endpoint.host, endpoint.port, "--listen"),
            lambda: endpoint.context,
            lambda: TokenCheck(self._routes, endpoint),
            serve_connection,
        )
        listener.start()
        self.listener = listener

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=READ_BYTES)
        self._socket_check = asyncio.create_task(self._check_socket())

    def remove_socket(self) -> None:
        self._socket_file.remove()

    async def close(self) -> None:
        """Takes no more requests, waits a short time for answers under way, and ends every stream."""
        if self._server is None:
            return
        self._connections.end()
        if self._socket_check is not None:
            self._socket_check.cancel()
            await asyncio.gather(self._socket_check, return_exceptions=True)
        await stop_accepting(self._server)
        if self.listener is not None:
            await self.listener.close()
        self.remove_socket()
        await self._connections.close(_FINISH_SECONDS)
        await self.handlers.close()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_uid(writer.get_extra_info("socket"))
        refusal = None
        if uid not in (0, os.geteuid()):
            refusal = Refused(403, f"user {uid} may not ask this agent", hint="ask as root")
        connection = Connection(reader, writer, self._limits, self._large_bodies, self._large_answers)
        await self._connections.serve(connection, self._routes, refusal)

    async def _check_socket(self) -> None:
        """Puts agent.sock back if it is deleted. Reports once that the state directory is deleted: what the agent
        writes there is lost, and only a restart helps. Tries again to listen at a port that was taken."""
        while True:
            await next_tick(_SOCKET_CHECK_SECONDS)
            if self._endpoint is not None:
                self.open(self._endpoint, must_open=False)
            failure = self._socket_file.directory_failure()
            if failure and failure != self.handlers.failure:
                _log.error("%s: the journal and the files of pods are lost; start the agent again", failure)
            self.handlers.report_failure(failure or self._port_failure)
            if not failure and self._socket_file.is_missing():
                await self._listen_again()

    async def _listen_again(self) -> None:
        assert self._server is not None
        try:
            listening = listen(self._state_dir)
            self._socket_file.note()
        except (EvenkeelError, OSError) as error:
            _log.error("agent.sock was deleted, and cannot be made again: %s", error)
            return
        _log.warning("agent.sock was deleted; the agent listens at a new one")
        await stop_accepting(self._server)
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=READ_BYTES)
