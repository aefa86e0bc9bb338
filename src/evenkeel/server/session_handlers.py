"""Handlers of the routes that reach into pods: each turns its connection into a WebSocket (`channels`).

The addresses and parameters are those of the Kubernetes API, so that its clients can use them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from evenkeel.agent.front import Front
from evenkeel.runtime.sessions import Session, SessionRefused, Streams
from evenkeel.server.http import Refused, Request, Upgrade
from evenkeel.server.session_relay import relay

if TYPE_CHECKING:
    from evenkeel.server.websocket import WebSocket

MOST_SESSIONS = 128
_LARGEST_PORT = 65535
_TRUE, _FALSE = ("1", "true"), ("", "0", "false")
FLAGS = (*_TRUE, *_FALSE)


class SessionPlaces:
    """The sessions of one server: a bounded number at a time."""

    def __init__(self) -> None:
        self._open = 0

    async def open(
        self,
        open_session: Callable[[], Awaitable[Session]],
        serve: Callable[[Any, Session], Awaitable[None]],
    ) -> Upgrade:
        """Opens a session before the connection becomes another one. `serve` gets both, and closes the session."""
        async with self.place() as place:
            try:
                session = await open_session()
            except SessionRefused as error:
                raise Refused(409, error.message, hint=error.hint) from None
            return place.upgrade(lambda socket: serve(socket, session), session.close)

    @asynccontextmanager
    async def place(self) -> AsyncIterator["_Place"]:
        """A place, which is kept if it becomes an `Upgrade`. Raises Refused if there is none."""
        if self._open >= MOST_SESSIONS:
            raise Refused(503, f"{MOST_SESSIONS} sessions are open", hint="close some of them")
        self._open += 1
        place = _Place(self._leave)
        try:
            yield place
        finally:
            if not place.is_kept:
                self._leave()

    def _leave(self) -> None:
        self._open -= 1


class _Place:
    def __init__(self, leave: Callable[[], None]) -> None:
        self.is_kept = False
        self._leave = leave

    def upgrade(
        self, serve: Callable[[Any], Awaitable[None]], close: Callable[[], Awaitable[None]]
    ) -> Upgrade:
        """An answer that gives the place back when its connection ends."""
        self.is_kept = True

        async def serve_and_leave(socket: object) -> None:
            try:
                await serve(socket)
            finally:
                self._leave()

        async def close_and_leave() -> None:
            self._leave()
            await close()

        return Upgrade(serve_and_leave, close_and_leave)


class SessionHandlers:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._sessions = SessionPlaces()

    async def exec(self, request: Request) -> Upgrade:
        key = self._key(request)
        container = request.parameters.get("container", "")
        wanted = _streams(request)
        return await self._sessions.open(
            lambda: self._front.open_exec(key, container, request.command, wanted), relay
        )

    async def attach(self, request: Request) -> Upgrade:
        key = self._key(request)
        container = request.parameters.get("container", "")
        wanted = _streams(request)
        return await self._sessions.open(lambda: self._front.open_attach(key, container, wanted), relay)

    async def port_forward(self, request: Request) -> Upgrade:
        key = self._key(request)
        text = request.parameters.get("ports", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= _LARGEST_PORT):
            raise Refused(400, f'ports: "{text[:40]}" is not a port from 1 to {_LARGEST_PORT}')
        port = int(text)
        async with self._sessions.place() as place:
            connection, problem = None, ""
            try:
                connection = await self._front.open_port(key, port)
            except SessionRefused as error:
                problem = error.message

            async def serve(socket: "WebSocket") -> None:
                from evenkeel.server.session_relay import relay_port

                await relay_port(socket, connection, port, problem)

            async def close() -> None:
                if connection is not None:
                    connection.close()

            return place.upgrade(serve, close)

    def _key(self, request: Request) -> str:
        namespace, name = request.path[3], request.path[5]
        key = f"{namespace}/{name}"
        if self._front.pod(key) is None:
            raise Refused(404, f'there is no pod "{name[:253]}" in namespace {namespace[:63]}')
        return key


def _streams(request: Request) -> Streams:
    wanted = Streams(
        _flag(request, "stdin", is_default=False),
        _flag(request, "stdout", is_default=True),
        _flag(request, "stderr", is_default=True),
        _flag(request, "tty", is_default=False),
    )
    if not (wanted.stdin or wanted.stdout or wanted.stderr):
        raise Refused(400, "one of stdin, stdout and stderr must be true")
    return wanted


def _flag(request: Request, name: str, *, is_default: bool) -> bool:
    text = request.parameters.get(name)
    if text is None:
        return is_default
    if text not in FLAGS:
        raise Refused(400, f'{name}: "{text[:40]}" is not one of true or false')
    return text in _TRUE
