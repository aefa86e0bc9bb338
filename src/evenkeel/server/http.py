"""One HTTP connection, with bounds on everything that a client could make us hold or wait for.

A client that sends its head slowly, announces a body and keeps it, reads nothing of what it asked for or goes away in
the middle costs one small task and one buffer until its time is up, and nobody else waits for it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

import h11

from evenkeel.errors import EvenkeelError

JSON = "application/json"
LINES = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"

_log = logging.getLogger(__name__)
_READ_BYTES = 16 * 1024
_MOST_PARAMETERS = 16
_STREAM_BYTES = 16 * 1024  # of a stream are held for a client that does not take them: there may be many such


class Limits(NamedTuple):
    connections: int = 1024
    head_bytes: int = 16 * 1024
    body_bytes: int = 4 * 1024 * 1024
    small_body_bytes: int = 16 * 1024
    large_bodies: int = 4  # of those larger than small, at a time
    write_buffer_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    idle_seconds: float = 60.0  # between two requests on one connection
    body_seconds: float = 30.0
    write_seconds: float = 30.0  # for a client to take what a full buffer holds


DEFAULT_LIMITS = Limits()


class Request(NamedTuple):
    method: str
    path: tuple[str, ...]
    parameters: Mapping[str, str]
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})  # by their names in small letters


class Answer(NamedTuple):
    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """An answer without end: each item is sent when it comes. The source is asked for the next one only when the client
    has taken the last, and closed when the client leaves."""

    items: AsyncIterator[bytes]
    content_type: str = LINES


class Refused(Exception):
    """A request that is answered with an error; `more` goes into the answer beside message and hint."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str = "",
        more: Mapping[str, object] | None = None,
        allow: str = "",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.more = more or {}
        self.headers = (("Allow", allow), *headers) if allow else headers

    def answer(self) -> Answer:
        body = {"message": self.message, "hint": self.hint, **self.more}
        return Answer(to_json(body), self.status, headers=self.headers)


class Route(NamedTuple):
    handle: Callable[[Request], Awaitable[Answer | Stream]]
    takes_body: bool = False


class Routes(Protocol):
    def find(self, request: Request) -> Route:
        """What answers the request, of which the body is not there yet. Raises Refused."""
        ...


def event(name: str, data: bytes, number: int = 0) -> bytes:
    """One of a server-sent stream; `data` has no line ends."""
    mark = b"id: %d\n" % number if number else b""
    return b"%bevent: %b\ndata: %b\n\n" % (mark, name.encode(), data)


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


async def stop_accepting(server: asyncio.Server) -> None:
    """Closes the server. Whoever it has accepted before is handed on first: in the midst of that, Python 3.11 would
    drop him without closing his connection."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)
    server.close()


class Doing(Enum):
    WAITING = 1
    ANSWERING = 2
    STREAMING = 3


class Connection:
    """`doing` tells the server which connections it may end: those that wait for a request, if it needs the room, and
    those that stream, when it ends itself."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: Limits,
        large_bodies: asyncio.Semaphore,
    ) -> None:
        self.doing = Doing.WAITING
        self.is_last = False  # this answer, whatever the client would like
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._large_bodies = large_bodies
        self._has_no_body = False  # the answer to HEAD
        self._is_tls = writer.get_extra_info("sslcontext") is not None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        writer.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)

    async def converse(self, routes: Routes) -> None:
        """Answers one request after the other until either side has enough, and closes the connection."""
        seconds = self._limits.head_seconds
        try:
            while await self._exchange(routes, seconds):
                seconds = self._limits.idle_seconds
            await self._flush()
            await self._part()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # the client is gone, or as good as gone
        finally:
            self._writer.transport.abort()

    async def refuse(self, refusal: Refused) -> None:
        """Says no before anything was read, and closes the connection."""
        try:
            await self._answer(refusal.answer())
            await self._flush()
            await self._part()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass
        finally:
            self._writer.transport.abort()

    async def _exchange(self, routes: Routes, seconds: float) -> bool:
        """One request and its answer; whether another may follow."""
        try:
            head = await self._head(seconds)
            if head is None:
                return False
            self.doing = Doing.ANSWERING
            self._has_no_body = head.method == b"HEAD"
            answer = await self._answer_to(head, routes)
        except Refused as refusal:
            answer = refusal.answer()
        except h11.RemoteProtocolError as error:
            answer = self._no_http(error).answer()
        if isinstance(answer, Stream):
            self.doing = Doing.STREAMING
            await self._stream(answer)
        else:
            await self._answer(answer)
        if self._http.their_state is h11.SEND_BODY:
            self._http.next_event()  # the end of a request without body; a body that nobody wanted is left unread
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.doing = Doing.WAITING
        return True

    def _no_http(self, error: h11.RemoteProtocolError) -> Refused:
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return Refused(
                error.error_status_hint, f"the request's head is larger than {self._limits.head_bytes} bytes"
            )
        return Refused(error.error_status_hint, f"this is not HTTP: {str(error)[:200]}")

    async def _head(self, seconds: float) -> h11.Request | None:
        try:
            async with asyncio.timeout(seconds):
                event = await self._event()
        except TimeoutError:
            if self._http.trailing_data[0]:
                raise Refused(408, f"the request did not come within {seconds:g} seconds") from None
            return None
        return event if isinstance(event, h11.Request) else None

    async def _answer_to(self, head: h11.Request, routes: Routes) -> Answer | Stream:
        request = _request(head)
        route = routes.find(request)
        if not route.takes_body:
            return await _handled(route, request)
        async with AsyncExitStack() as held:
            body = await self._body(head, held)
            return await _handled(route, request._replace(body=body))

    async def _body(self, head: h11.Request, held: AsyncExitStack) -> bytes:
        """The request's body. Of those that are not small only a few are held in memory at a time."""
        most = self._limits.body_bytes
        too_large = Refused(413, f"the body is larger than {most >> 10} KiB", hint="send it in parts")
        announced = next((value for name, value in head.headers if name == b"content-length"), b"0")
        if int(announced) > most:
            raise too_large
        parts: list[bytes] = []
        size, is_large = 0, False
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                if self._http.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                while isinstance(event := await self._event(), h11.Data):
                    parts.append(bytes(event.data))
                    size += len(event.data)
                    if size > most:
                        raise too_large
                    if size > self._limits.small_body_bytes and not is_large:
                        is_large = True
                        await held.enter_async_context(self._large_bodies)
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise Refused(408, f"the body did not come within {seconds:g} seconds") from None
        return b"".join(parts)

    async def _event(self) -> h11.Event:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Event):
                return event
            self._http.receive_data(await self._reader.read(_READ_BYTES))

    async def _answer(self, answer: Answer) -> None:
        await self._begin(answer.status, answer.content_type, answer.headers, len(answer.body))
        body = b"" if self._has_no_body else answer.body
        for start in range(0, len(body), self._limits.write_buffer_bytes):
            part = body[start : start + self._limits.write_buffer_bytes]
            await self._send(h11.Data(data=part))
        await self._send(h11.EndOfMessage())

    async def _stream(self, stream: Stream) -> None:
        """Sends items until the source ends or the client leaves. A client has nothing more to say meanwhile: whatever
        comes from it ends the stream too."""
        leaving = asyncio.ensure_future(self._reader.read(1))
        sending = asyncio.ensure_future(self._send_all(stream))
        self._writer.transport.set_write_buffer_limits(high=0)
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            _, outcome = await asyncio.gather(leaving, sending, return_exceptions=True)
            close = getattr(stream.items, "aclose", None)
            if close is not None:
                await close()
        if isinstance(outcome, BaseException):
            raise ConnectionError from outcome

    async def _send_all(self, stream: Stream) -> None:
        await self._begin(200, stream.content_type)
        async for item in stream.items:
            # The item itself is shared by all who are sent it: slices of it are no copies.
            for part in self._http.send_with_data_passthrough(h11.Data(data=item)) or ():
                view = memoryview(part)
                for start in range(0, len(view), _STREAM_BYTES):
                    self._writer.write(view[start : start + _STREAM_BYTES])
                    if self._writer.transport.get_write_buffer_size():
                        await self._drain()
        await self._send(h11.EndOfMessage())

    async def _begin(
        self, status: int, content_type: str, more: Sequence[tuple[str, str]] = (), length: int | None = None
    ) -> None:
        headers = [("Content-Type", content_type), ("Cache-Control", "no-store"), *more]
        if self.is_last:
            headers.append(("Connection", "close"))
        if length is not None:
            headers.append(("Content-Length", str(length)))
        await self._send(h11.Response(status_code=status, headers=headers, reason=_reason(status)))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() >= self._limits.write_buffer_bytes:
            await self._drain()

    async def _flush(self) -> None:
        # With a limit of 0 asyncio's TLS takes an empty buffer for a full one, and nothing would ever empty it.
        self._writer.transport.set_write_buffer_limits(high=1 if self._is_tls else 0)
        await self._drain()

    async def _part(self) -> None:
        """Below TLS there is another buffer, which its end must find empty."""
        if self._is_tls:
            self._writer.close()
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.wait_closed()

    async def _drain(self) -> None:
        async with asyncio.timeout(self._limits.write_seconds):
            await self._writer.drain()


async def _handled(route: Route, request: Request) -> Answer | Stream:
    try:
        return await route.handle(request)
    except Refused:
        raise
    except EvenkeelError as error:
        raise Refused(500, error.message, hint=error.hint) from None
    except Exception:  # noqa: BLE001 - one request fails, the agent does not
        _log.exception("%s /%s failed", request.method, "/".join(request.path))
        raise Refused(500, "the agent failed to answer", hint="its log has the reason") from None


def _request(head: h11.Request) -> Request:
    path, _, query = head.target.decode("ascii").partition("?")
    try:
        parameters = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS))
    except ValueError:
        raise Refused(400, f"there are more than {_MOST_PARAMETERS} parameters") from None
    words = tuple(unquote(word) for word in path.split("/")[1:])
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii"), words, parameters, headers=headers)


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
