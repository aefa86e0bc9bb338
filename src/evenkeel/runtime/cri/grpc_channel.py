"""gRPC over a Unix socket: a request and one answer, or a request and answers without end.

h2 speaks HTTP/2. gRPC's own library takes 10 MiB of memory and brings threads; the agent has h2 for probes anyway. The
channel connects when a call needs it. A connection that is lost fails the calls on it, and the next call connects anew.
A call is repeated only if the server says that it has not processed it (REFUSED_STREAM, RFC 9113, 8.7)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from evenkeel.errors import reason
from evenkeel.runtime.cri.grpc_stream import (
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    CallRefused,
    GrpcError,
    GrpcStream,
)

Metadata = Sequence[tuple[str, str]]

_WINDOW_BYTES = 1 << 20  # what a server may send before we have read it
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_CONNECT_SECONDS = 10.0
_REFUSED_SECONDS = 0.01
_LONGEST_TIMEOUT = 10**8


class GrpcChannel:
    """Calls to the server at a socket. An answer of more than `most_bytes` fails its call."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._wire: _Wire | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, method: str, request: bytes, seconds: float, metadata: Metadata = ()) -> bytes:
        """Makes a call, and returns the answer. Raises GrpcError."""
        try:
            async with asyncio.timeout(seconds):
                wire = await self._connected()
                timeout = ("grpc-timeout", timeout_text(seconds))
                while True:
                    stream = await wire.request(method, request, (timeout, *metadata))
                    try:
                        return await stream.only_message()
                    except CallRefused:
                        await asyncio.sleep(_REFUSED_SECONDS)
                    finally:
                        wire.release(stream)
        except TimeoutError:
            raise GrpcError(DEADLINE_EXCEEDED) from None

    async def answers(self, method: str, request: bytes) -> AsyncGenerator[bytes, None]:
        """Makes a call, and yields answers until the server ends them. Raises GrpcError."""
        wire = await self._connected()
        stream = await wire.request(method, request)
        try:
            while (answer := await stream.next_message()) is not None:
                yield answer
        finally:
            wire.release(stream)

    async def keep_connected(self, on_change: Callable[[], None]) -> None:
        """Connects whenever there is no connection, with back-off, until cancelled. `on_change` is called when the
        connection is made, and when it is lost."""
        pause = _FIRST_PAUSE_SECONDS
        is_new = self._wire is None or not self._wire.is_open
        while True:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    wire = await self._connected()
            except (GrpcError, TimeoutError):
                is_server = False
            else:
                if is_new:
                    on_change()
                await wire.lost.wait()
                on_change()
                is_new, is_server = True, wire.has_settings
            pause = _FIRST_PAUSE_SECONDS if is_server else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.fail("the connection is closed")
            await self._wire.lost.wait()

    async def _connected(self) -> "_Wire":
        async with self._connecting:
            if self._wire is None or not self._wire.is_open:
                try:
                    _, self._wire = await asyncio.get_running_loop().create_unix_connection(
                        lambda: _Wire(self._most_bytes), self._path
                    )
                except OSError as error:
                    raise GrpcError(UNAVAILABLE, reason(error)) from None
            return self._wire


def timeout_text(seconds: float) -> str:
    """As the header `grpc-timeout` has it: a number of at most eight digits, and a unit."""
    for unit, length in (("m", 0.001), ("S", 1), ("M", 60), ("H", 3600)):
        number = max(int(seconds / length), 1)
        if number < _LONGEST_TIMEOUT:
            return f"{number}{unit}"
    return f"{_LONGEST_TIMEOUT - 1}H"


class _Http2(H2Connection):
    """h2 remembers how each of the last 65536 calls has ended, for frames that come after that: 7.5 MiB in the end."""

    MAX_CLOSED_STREAMS = 256


class _Wire(asyncio.Protocol):
    """A connection, and the calls on it."""

    def __init__(self, most_bytes: int) -> None:
        self.is_open = False
        self.has_settings = False  # the server's: it speaks HTTP/2
        self.lost = asyncio.Event()
        self._most_bytes = most_bytes
        self._h2 = _Http2(H2Configuration(header_encoding="utf-8"))
        self._streams: dict[int, GrpcStream] = {}
        self._released = asyncio.Event()

    async def request(self, method: str, message: bytes, metadata: Metadata = ()) -> GrpcStream:
        while self.is_open and self._is_full:
            self._released.clear()
            await self._released.wait()
        if not self.is_open:
            raise GrpcError(UNAVAILABLE, "the connection was lost")
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("user-agent", "evenkeel"),
            ("te", "trailers"),
            *metadata,
        ]
        try:
            stream = GrpcStream(self._h2.get_next_available_stream_id(), message, self._most_bytes)
            self._h2.send_headers(stream.number, headers)
            self._streams[stream.number] = stream
            self._send(stream)
        except ProtocolError as error:  # the numbers of streams are used up after years
            self.fail(f"the connection cannot be used any more: {error}")
            raise GrpcError(UNAVAILABLE, str(error)) from None
        self._flush()
        return stream

    @property
    def _is_full(self) -> bool:
        return self._h2.open_outbound_streams >= self._h2.remote_settings.max_concurrent_streams

    def release(self, stream: GrpcStream) -> None:
        """Forgets a call that no caller waits for. If the server has not ended the call, the stream is reset."""
        self._streams.pop(stream.number, None)
        self._released.set()
        if self.is_open and (stream.unsent or not stream.is_ended):
            with suppress(ProtocolError):  # the server has reset it
                self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)
            self._flush()

    def fail(self, why: str) -> None:
        """Fails all calls, and closes the connection."""
        self.is_open = False
        for stream in self._streams.values():
            stream.fail(UNAVAILABLE, why)
        self._released.set()
        self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        self._h2.initiate_connection()
        self._h2.update_settings(
            {SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES}
        )
        self._h2.increment_flow_control_window(_WINDOW_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except (ProtocolError, UnicodeDecodeError) as error:
            self.fail(f"the answer is not HTTP/2: {error}")
        else:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(reason(exc) if isinstance(exc, OSError) else "the connection was closed")
        self.lost.set()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.RemoteSettingsChanged | events.WindowUpdated):
            self.has_settings |= isinstance(event, events.RemoteSettingsChanged)
            for each in self._streams.values():
                self._send(each)
            self._released.set()  # more calls may be allowed now
        elif isinstance(event, events.ConnectionTerminated):
            self.fail("the server closes the connection")
        elif isinstance(event, events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if (stream := self._waiting(event.stream_id)) is not None:
                stream.take(event.data)
        elif isinstance(event, events.ResponseReceived | events.TrailersReceived):
            if (stream := self._waiting(event.stream_id)) is not None:
                stream.headers.update((str(name), str(value)) for name, value in event.headers)
        elif isinstance(event, events.StreamEnded):
            if (stream := self._waiting(event.stream_id)) is not None:
                stream.end()
        elif isinstance(event, events.StreamReset) and (stream := self._waiting(event.stream_id)) is not None:
            stream.reset(event.error_code)

    def _waiting(self, number: int) -> GrpcStream | None:
        """The call, if a caller still waits for it."""
        stream = self._streams.get(number)
        return None if stream is None or stream.is_failed else stream

    def _send(self, stream: GrpcStream) -> None:
        """Sends as much of the request as the server's flow control allows."""
        while stream.unsent and not stream.is_failed:
            room = min(self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            self._h2.send_data(stream.number, bytes(part), end_stream=not stream.unsent)

    def _flush(self) -> None:
        if self.is_open and (data := self._h2.data_to_send()):
            self._transport.write(data)
