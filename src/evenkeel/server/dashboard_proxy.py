"""The page for a browser on this machine, without certificates: a door on a loopback port to the agent's socket.

Only GET passes. Who comes must have the cookie, which whoever first brings the token of the printed address gets: other
users of the machine can reach the port, and the token is of no use a second time. The cookie is sent below a path that
nobody can guess, as browsers send cookies to every port of a host. A name other than the machine's own in `Host` is
refused: a site whose name is made to point here (DNS rebinding) has its own.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple
from urllib.parse import quote, urlencode

from evenkeel.errors import EvenkeelError
from evenkeel.server.http import (
    DEFAULT_LIMITS,
    Answer,
    Connection,
    Limits,
    Refused,
    Request,
    Route,
    Stream,
    stop_accepting,
)
from evenkeel.server.listen import connect

ADDRESS = "127.0.0.1"
_OWN_NAMES = (ADDRESS, "localhost")
_COOKIE = "evenkeel"
_PART_BYTES = 64 * 1024
_ANSWER_SECONDS = 60.0
_MOST_CONNECTIONS = 64
_PASSED_ON = frozenset(
    {
        "content-security-policy",
        "x-content-type-options",
        "referrer-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "allow",
    }
)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Head(NamedTuple):
    status: int
    headers: dict[str, str]


class Dashboard:
    """Serves until `close`. `address` is what to open, once."""

    def __init__(self, connect_to_agent: Connect, limits: Limits = DEFAULT_LIMITS) -> None:
        self._connect = connect_to_agent
        self._limits = limits
        self._path = secrets.token_urlsafe(12)
        self._token = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)
        self._large_bodies = asyncio.Semaphore(1)
        self._server: asyncio.Server | None = None
        self._is_ending = False
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, port: int = 0) -> None:
        try:
            self._server = await asyncio.start_server(self._connected, ADDRESS, port)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise EvenkeelError(
                f"--port: cannot listen at {ADDRESS}:{port}: {reason}", hint="0 takes a free one"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self._path}/?token={self._token}"

    async def close(self) -> None:
        self._is_ending = True
        if self._server is not None:
            await stop_accepting(self._server)
        for task in (ending := list(self._open)):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_ending:  # it was accepted in that moment, and nobody would wait for its end
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(reader, writer, self._limits, self._large_bodies)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            if len(self._open) > _MOST_CONNECTIONS:
                await connection.refuse(
                    Refused(503, f"{_MOST_CONNECTIONS} connections are open", hint="try again")
                )
            else:
                await connection.converse(self)
        except asyncio.CancelledError:
            pass  # the server ends

    def find(self, request: Request) -> Route:
        """Who may come in, and to what."""
        name = request.headers.get("host", "").partition(":")[0]
        if name.lower() not in _OWN_NAMES:
            raise Refused(421, "this is not the machine that was asked for", hint=f"ask {ADDRESS}")
        if request.method != "GET":
            raise Refused(405, f"{request.method} is not done here: one can look, and no more", allow="GET")
        if len(request.path) < 2 or not _same(request.path[0], self._path):
            raise _unknown()
        if self._has_cookie(request):
            return Route(self._go_on if "token" in request.parameters else self._pass_on)
        if self._token and _same(request.parameters.get("token", ""), self._token):
            return Route(self._let_in)
        raise _unknown()

    def _has_cookie(self, request: Request) -> bool:
        pairs = (pair.strip().partition("=") for pair in request.headers.get("cookie", "").split(";"))
        return any(name == _COOKIE and _same(value, self._cookie) for name, _, value in pairs)

    async def _let_in(self, request: Request) -> Answer:  # noqa: ARG002
        self._token = ""  # it is of no use to the next one who reads it
        cookie = f"{_COOKIE}={self._cookie}; Path=/{self._path}/; HttpOnly; SameSite=Strict"
        return self._moved((("Set-Cookie", cookie),))

    async def _go_on(self, request: Request) -> Answer:  # noqa: ARG002
        """To the address without the token, which is nothing to keep in a list of pages visited."""
        return self._moved(())

    def _moved(self, headers: tuple[tuple[str, str], ...]) -> Answer:
        to = (("Location", f"/{self._path}/"), ("Referrer-Policy", "no-referrer"))
        return Answer(b"", 303, "text/plain", (*to, *headers))

    async def _pass_on(self, request: Request) -> Answer | Stream:
        path = "/".join(quote(word, safe="") for word in request.path[1:])
        target = f"/{path}?{urlencode(request.parameters)}" if request.parameters else f"/{path}"
        try:
            reader, writer = await self._connect()
        except OSError:
            raise Refused(502, "the agent is not there", hint="start it with: evenkeel up") from None
        is_streaming = False
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                # HTTP 1.0: the answer has no chunks, and ends when the connection does.
                writer.write(f"GET {target} HTTP/1.0\r\nHost: evenkeel\r\n\r\n".encode())
                await writer.drain()
                head = await _head(reader)
                content_type = head.headers.get("content-type", "application/octet-stream")
                if "content-length" not in head.headers:
                    is_streaming = True
                    return Stream(_parts(reader, writer), content_type)
                body = await reader.readexactly(int(head.headers["content-length"]))
            passed_on = tuple((name, value) for name, value in head.headers.items() if name in _PASSED_ON)
            return Answer(body, head.status, content_type, passed_on)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Refused(502, "the agent broke off in the middle of its answer") from None
        finally:
            if not is_streaming:
                writer.transport.abort()


async def serve_dashboard(state_dir: str, port: int) -> Dashboard:
    """Raises EvenkeelError if the port is taken."""

    async def connect_to_agent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connected = connect(state_dir)
        connected.setblocking(False)
        return await asyncio.open_unix_connection(sock=connected)

    dashboard = Dashboard(connect_to_agent)
    await dashboard.start(port)
    return dashboard


async def _head(reader: asyncio.StreamReader) -> Head:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return Head(int(first[9:12]), {name.lower(): value.strip() for name, _, value in pairs})


async def _parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while part := await reader.read(_PART_BYTES):
            yield part
    finally:
        writer.transport.abort()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _unknown() -> Refused:
    return Refused(
        403, "this address was used up, or is not whole", hint="evenkeel dashboard prints a new one"
    )
