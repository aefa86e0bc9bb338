"""HTTP on one connection, with a bound on everything that a client can make the agent hold or wait for.

A client may send its head slowly, announce a body and not send it, or not read the answer. Such a client costs one
small task and one buffer until its deadline, and it delays no other client.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import h11

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import Answer, Refused, Request, Route, Routes, Stream, Upgrade, close_source
from evenkeel.server.large_answers import LargeAnswers

_log = logging.getLogger(__name__)
READ_BYTES = 16 * 1024
_MOST_PARAMETERS = 16
# Parameters that may be repeated: one for each word of a command, and for each port.
_COMMAND, _PORT = "command", "port"
_STREAM_BYTES = 16 * 1024  # held for each client that does not read its stream: there may be many


class Limits(NamedTuple):
    connections: int = 1024
    head_bytes: int = 16 * 1024
    body_bytes: int = 4 * 1024 * 1024
    small_body_bytes: int = 16 * 1024
    large_bodies: int = 4  # bodies above small_body_bytes in memory at a time
    large_answer_bytes: int = 64 * 1024 * 1024  # of large answers that are being sent, together
    write_buffer_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    idle_seconds: float = 60.0  # between two requests on one connection
    body_seconds: float = 30.0
    write_seconds: float = 30.0  # for a client to empty a full buffer
    stream_seconds: float = 30.0  # the same, while an answer without end is sent


DEFAULT_LIMITS = Limits()


class Activity(Enum):
    WAITING = 1
    ANSWERING = 2
    STREAMING = 3


class Connection:
    """`activity` tells the server which connections it may close. One that waits for a request or its body is closed to
    make room, one that streams when the server ends."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: Limits,
        large_bodies: asyncio.Semaphore,
        large_answers: LargeAnswers,
        answer_of: Callable[[Refused], Answer] = Refused.answer,
    ) -> None:
        """`answer_of` turns a refusal into an answer."""
        self.activity = Activity.WAITING
        self.is_last = False  # the connection is closed after this answer
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._large_bodies = large_bodies
        self._large_answers = large_answers
        self._answer_of = answer_of
        self._has_no_body = False  # the answer to HEAD
        self._is_tls = writer.get_extra_info("sslcontext") is not None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        writer.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        # asyncio reads 256 KiB at once, and would hold them for each client whose body has to wait. TLS has a size of
        # its own.
        if not self._is_tls:
            writer.transport.max_size = READ_BYTES  # type: ignore[attr-defined] # no public name, and no other way

    async def serve(self, routes: Routes) -> None:
        """Answers one request after the other until either side ends, then closes the connection."""
        seconds = self._limits.head_seconds
        try:
            while await self._exchange(routes, seconds):
                seconds = self._limits.idle_seconds
            await self._flush()
            await self._close_tls()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # the client is gone, or has missed a deadline
        finally:
            self._writer.transport.abort()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def refuse(self, refusal: Refused) -> None:
        """Answers before a request was read, and closes the connection."""
        try:
            await self._answer(self._answer_of(refusal))
            await self._flush()
            await self._close_tls()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass
        finally:
            self._writer.transport.abort()

    async def _exchange(self, routes: Routes, seconds: float) -> bool:
        """One request and its answer. True if another request may follow."""
        try:
            head = await self._head(seconds)
            if head is None:
                return False
            self.activity = Activity.ANSWERING
            self._has_no_body = head.method == b"HEAD"
            request = _request(head)
            route = await routes.find(request)
            if route.protocols:
                await self._upgrade(head, request, route)
                return False
            answer = await self._answer_to(head, request, route)
        except Refused as refusal:
            answer = self._answer_of(refusal)
        except h11.RemoteProtocolError as error:
            answer = self._answer_of(self._malformed(error))
        if isinstance(answer, Stream):
            self.activity = Activity.STREAMING
            await self._stream(answer)
        else:
            await self._answer(answer)
        if self._http.their_state is h11.SEND_BODY:
            self._http.next_event()  # the end of a request without body; a body that no handler takes is not read
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.activity = Activity.WAITING
        return True

    def _malformed(self, error: h11.RemoteProtocolError) -> Refused:
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

    async def _upgrade(self, head: h11.Request, request: Request, route: Route) -> None:
        """Serves another protocol until its end. Raises Refused as long as the connection is HTTP."""
        from evenkeel.server.websocket import WebSocket  # only a few clients need it

        socket = (route.transport or WebSocket)(head, route.protocols)
        answer = await _handled(route, request)
        assert isinstance(answer, Upgrade)
        self.activity = Activity.STREAMING
        try:
            self._http.next_event()  # the end of the request, which has no body
            await socket.accept(self._reader, self._writer, self._http.trailing_data[0])
        except BaseException:
            await answer.close()
            raise
        await answer.serve(socket)

    async def _answer_to(self, head: h11.Request, request: Request, route: Route) -> Answer | Stream:
        if not route.takes_body:
            return await _plain(route, request)
        async with AsyncExitStack() as held:
            # Like the head: a client that announces a body and does not send it makes room for others.
            self.activity = Activity.WAITING
            body = await self._body(head, held)
            self.activity = Activity.ANSWERING
            return await _plain(route, request._replace(body=body))

    async def _body(self, head: h11.Request, held: AsyncExitStack) -> bytes:
        """The request's body. Only a few large bodies are in memory at a time."""
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
            self._http.receive_data(await self._reader.read(READ_BYTES))

    async def _answer(self, answer: Answer) -> None:
        texts = (answer.body, *answer.more)
        await self._begin(answer.status, answer.content_type, answer.headers, sum(map(len, texts)))
        if not self._has_no_body:
            with self._large_answers.held(len(answer.body), self.abort):
                for part in in_parts(texts, self._limits.write_buffer_bytes):
                    await self._send(h11.Data(data=part))
        await self._send(h11.EndOfMessage())

    async def _stream(self, stream: Stream) -> None:
        """Sends items until the source ends or the client leaves. A client that sends anything meanwhile ends the
        stream, too."""
        leaving = asyncio.ensure_future(self._reader.read(1))
        sending = asyncio.ensure_future(self._send_all(stream))
        self._writer.transport.set_write_buffer_limits(high=0)
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            _, outcome = await asyncio.gather(leaving, sending, return_exceptions=True)
            await close_source(stream.items)
        if isinstance(outcome, BaseException):
            raise ConnectionError from outcome

    async def _send_all(self, stream: Stream) -> None:
        await self._begin(200, stream.content_type)
        async for item in stream.items:
            # All clients share the bytes of an item: slices of a memoryview are no copies.
            for part in self._http.send_with_data_passthrough(h11.Data(data=item)) or ():
                view = memoryview(part)
                for start in range(0, len(view), _STREAM_BYTES):
                    self._writer.write(view[start : start + _STREAM_BYTES])
                    if self._writer.transport.get_write_buffer_size():
                        await self._drain(self._limits.stream_seconds)
        await self._send(h11.EndOfMessage())

    async def _begin(
        self, status: int, content_type: str, more: Sequence[tuple[str, str]] = (), length: int | None = None
    ) -> None:
        headers = [("Content-Type", content_type), ("Cache-Control", "no-store"), *more]
        if self.is_last:
            headers.append(("Connection", "close"))
        if length is not None:
            headers.append(("Content-Length", str(length)))
        await self._send(h11.Response(status_code=status, headers=headers, reason=_phrase(status)))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() >= self._limits.write_buffer_bytes:
            await self._drain()

    async def _flush(self) -> None:
        # With a limit of 0, asyncio's TLS takes an empty buffer for a full one and waits forever.
        self._writer.transport.set_write_buffer_limits(high=1 if self._is_tls else 0)
        await self._drain()

    async def _close_tls(self) -> None:
        """TLS has a buffer of its own below, which must be empty before the connection is closed."""
        if self._is_tls:
            self._writer.close()
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.wait_closed()

    async def _drain(self, seconds: float | None = None) -> None:
        async with asyncio.timeout(self._limits.write_seconds if seconds is None else seconds):
            await self._writer.drain()


def in_parts(texts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes, in parts of at most so many. Texts that are smaller are joined."""
    waiting: list[bytes] = []
    waiting_bytes = 0
    for text in texts:
        if waiting_bytes + len(text) > size:
            yield b"".join(waiting)
            waiting, waiting_bytes = [], 0
        if len(text) < size:
            waiting.append(text)
            waiting_bytes += len(text)
            continue
        for start in range(0, len(text), size):
            yield text[start : start + size]
    if waiting:
        yield b"".join(waiting)


async def _plain(route: Route, request: Request) -> Answer | Stream:
    answer = await _handled(route, request)
    assert not isinstance(answer, Upgrade)
    return answer


async def _handled(route: Route, request: Request) -> Answer | Stream | Upgrade:
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
    given = parse_qsl(query, keep_blank_values=True)  # the length of the head is bounded
    # The arguments of a command may be any bytes.
    words_given = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    command = tuple(value for name, value in words_given if name == _COMMAND)
    ports = tuple(value for name, value in given if name == _PORT)
    if len(given) - len(command) - len(ports) > _MOST_PARAMETERS:
        raise Refused(400, f"there are more than {_MOST_PARAMETERS} parameters")
    parameters = dict(given)
    words = tuple(unquote(word) for word in path.split("/")[1:])
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    return Request(
        head.method.decode("ascii"), words, parameters, headers=headers, command=command, ports=ports
    )


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
