"""Handlers of the routes that reach into pods: each turns its connection into a WebSocket (`channels`).

The addresses and parameters are those of the Kubernetes API, so that its clients can use them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

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


class SessionHandlers:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._open = 0

    async def exec(self, request: Request) -> Upgrade:
        key = self._key(request)
        container = request.parameters.get("container", "")
        wanted = _streams(request)
        return await self._session(lambda: self._front.open_exec(key, container, request.command, wanted))

    async def attach(self, request: Request) -> Upgrade:
        key = self._key(request)
        container = request.parameters.get("container", "")
        wanted = _streams(request)
        return await self._session(lambda: self._front.open_attach(key, container, wanted))

    async def port_forward(self, request: Request) -> Upgrade:
        key = self._key(request)
        text = request.parameters.get("ports", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= _LARGEST_PORT):
            raise Refused(400, f'ports: "{text[:40]}" is not a port from 1 to {_LARGEST_PORT}')
        port = int(text)
        self._take_place()
        connection, problem = None, ""
        try:
            connection = await self._front.open_port(key, port)
        except SessionRefused as error:
            problem = error.message
        except BaseException:
            self._open -= 1
            raise

        async def serve(socket: "WebSocket") -> None:
            from evenkeel.server.port_relay import relay_port

            try:
                await relay_port(socket, connection, port, problem)
            finally:
                self._open -= 1

        async def close() -> None:
            self._open -= 1
            if connection is not None:
                connection.close()

        return Upgrade(serve, close)

    async def _session(self, open_session: Callable[[], Awaitable[Session]]) -> Upgrade:
        self._take_place()
        try:
            session = await open_session()
        except SessionRefused as error:
            self._open -= 1
            raise Refused(409, error.message, hint=error.hint) from None
        except BaseException:
            self._open -= 1
            raise

        async def serve(socket: "WebSocket") -> None:
            try:
                await relay(socket, session)
            finally:
                self._open -= 1

        async def close() -> None:
            self._open -= 1
            await session.close()

        return Upgrade(serve, close)

    def _take_place(self) -> None:
        if self._open >= MOST_SESSIONS:
            raise Refused(503, f"{MOST_SESSIONS} sessions are open", hint="close some of them")
        self._open += 1

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
