"""A SPDY connection that began as HTTP, and a session's streams on it (`v4.channel.k8s.io`).

Sending waits for a client that does not read. A client that sends faster than its data is taken is not read for a
while. Even then it is noticed when the client closes the connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress

import h11

from evenkeel.runtime.sessions import Part, Streams, hung_up
from evenkeel.server.channels import CLOSE, ERROR, RESIZE, STDERR, STDIN, STDOUT
from evenkeel.server.http import Refused
from evenkeel.server.kubelet.spdy_frames import (
    LARGEST_DATA_BYTES,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    BadFrame,
    Data,
    Frame,
    FrameReader,
    FrameWriter,
    GoAway,
    Opened,
    Ping,
    Reset,
)

SPDY = "SPDY/3.1"
STREAM_TYPE = "streamtype"
_VERSION_HEADER = "x-stream-protocol-version"
_READ_BYTES = 32 * 1024
_OPEN_SECONDS = 30.0  # for the client to open all streams
_CLOSE_SECONDS = 5.0
_CHANNELS: Mapping[str, int] = {
    "error": ERROR,
    "stdin": STDIN,
    "stdout": STDOUT,
    "stderr": STDERR,
    "resize": RESIZE,
}
_LONGEST_SIZE_BYTES = 1024


class Spdy:
    """The connection. `protocol` is the one that was agreed on."""

    def __init__(self, head: h11.Request, protocols: tuple[str, ...]) -> None:
        """Reads the request. Raises Refused if it does not ask for SPDY with one of these protocols."""
        headers = [(bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in head.headers]
        upgrades = [value.strip().lower() for name, value in headers if name == "upgrade"]
        offered = [
            word.strip() for name, value in headers if name == _VERSION_HEADER for word in value.split(",")
        ]
        if SPDY.lower() not in upgrades:
            raise Refused(400, f"this takes an upgrade of the connection to {SPDY}")
        chosen = next((one for one in protocols if one in offered), None)
        if chosen is None:
            raise Refused(
                403,
                f"X-Stream-Protocol-Version: {', '.join(offered)[:80] or 'none'} is not spoken here",
                hint=f"there is {', '.join(protocols)}",
            )
        self.protocol = chosen
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._received = b""
        self._frames = FrameReader()
        self._out = FrameWriter()
        self._sending = asyncio.Lock()
        self._last_stream = 0

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes
    ) -> None:
        """Takes over the connection. `received` was read after the request."""
        self._reader, self._writer, self._received = reader, writer, received
        # Nearly everything is with the client before `drain` returns. With 0, asyncio's TLS would wait forever.
        writer.transport.set_write_buffer_limits(high=1)
        head = (
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {SPDY}\r\n"
            f"X-Stream-Protocol-Version: {self.protocol}\r\n\r\n"
        )
        await self._write(head.encode())

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """What the client sends, until it ends the connection, is gone, or sends what is no SPDY. Pings are
        answered."""
        assert self._reader is not None
        received, self._received = self._received, b""
        while True:
            try:
                for frame in self._frames.feed(received):
                    if isinstance(frame, Ping):
                        if frame.number % 2:  # one of the client's
                            await self._write(self._out.ping(frame.number))
                    elif isinstance(frame, GoAway):
                        return
                    elif isinstance(frame, Opened) and frame.stream <= self._last_stream:
                        await self._write(self._out.reset(frame.stream, PROTOCOL_ERROR))
                    else:
                        if isinstance(frame, Opened):
                            self._last_stream = frame.stream
                        yield frame
                received = await self._reader.read(_READ_BYTES)
            except (OSError, BadFrame):
                return
            if not received:
                return

    async def answer(self, stream: int) -> None:
        """Says that the stream is taken."""
        async with self._sending:
            await self._write(self._out.answered(stream))

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        """Returns when the client has taken most of it. Raises OSError when the client is gone."""
        assert len(data) <= LARGEST_DATA_BYTES
        async with self._sending:
            await self._write(self._out.data(stream, data, is_last=is_last))

    async def reset(self, stream: int, status: int = REFUSED_STREAM) -> None:
        async with self._sending:
            await self._write(self._out.reset(stream, status))

    async def client_gone(self) -> None:
        """Returns when the client has closed its end of the connection, even if data from before is unread."""
        assert self._writer is not None
        await hung_up(self._writer.get_extra_info("socket").fileno())

    async def close(self) -> None:
        """Says that this is the end, and waits a short time until the client has taken everything and closes the
        connection: closed from here, what it has not read yet could be lost."""
        assert self._reader is not None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                async with self._sending:
                    await self._write(self._out.go_away(self._last_stream))
                while await self._reader.read(_READ_BYTES):
                    pass

    async def _write(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()


class SessionChannels:
    """The streams of a session as channels (`session_relay.Channels`). The client has opened one for each."""

    def __init__(self, spdy: Spdy, streams: Mapping[int, int]) -> None:
        """`streams` are the numbers of the streams, by channel."""
        self._spdy = spdy
        self._streams = dict(streams)
        self._channels = {number: channel for channel, number in streams.items()}
        self._sizes = b""

    @classmethod
    async def opened(cls, spdy: Spdy, wanted: Streams) -> "SessionChannels | None":
        """Waits for the client's streams. None if they do not come."""
        missing = {ERROR}
        missing |= {
            channel for channel, is_wanted in zip((STDIN, STDOUT, STDERR), wanted, strict=False) if is_wanted
        }
        if wanted.terminal:
            missing.add(RESIZE)
        streams: dict[int, int] = {}
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_OPEN_SECONDS), aclosing(spdy.frames()) as frames:
                async for frame in frames:
                    if not isinstance(frame, Opened):
                        return None  # nothing can be sent before all are there
                    channel = _CHANNELS.get(frame.headers.get(STREAM_TYPE, ""), -1)
                    if channel not in missing:
                        await spdy.reset(frame.stream)
                        continue
                    missing.discard(channel)
                    streams[channel] = frame.stream
                    await spdy.answer(frame.stream)
                    if not missing:
                        return cls(spdy, streams)
        return None

    async def send(self, channel: int, data: bytes = b"") -> None:
        if channel in self._streams:
            await self._spdy.send(self._streams[channel], data)

    async def parts(self) -> AsyncIterator[Part]:
        """Input and sizes, until the client ends the connection. A stream that ends is a message of channel CLOSE."""
        async for frame in self._spdy.frames():
            if isinstance(frame, Opened):
                await self._spdy.reset(frame.stream)
            elif isinstance(frame, Data):
                channel = self._channels.get(frame.stream, -1)
                if channel == STDIN and frame.data:
                    yield Part(STDIN, frame.data, is_last=True)
                elif channel == RESIZE:
                    for size in self._sizes_of(frame.data):
                        yield Part(RESIZE, size, is_last=True)
                if channel == STDIN and frame.is_last:
                    yield Part(CLOSE, bytes((STDIN,)), is_last=True)
            elif isinstance(frame, Reset) and self._channels.get(frame.stream) == STDIN:
                yield Part(CLOSE, bytes((STDIN,)), is_last=True)

    async def client_gone(self) -> None:
        await self._spdy.client_gone()

    async def close(self, *, is_orderly: bool = True) -> None:
        """Ends all streams, so that the client knows that it has everything."""
        if is_orderly:
            with suppress(OSError):
                for channel in (STDOUT, STDERR, ERROR, STDIN, RESIZE):
                    if channel in self._streams:
                        await self._spdy.send(self._streams[channel], b"", is_last=True)
        await self._spdy.close()

    def _sizes_of(self, data: bytes) -> list[bytes]:
        """The sizes that are complete: each is a line."""
        *whole, self._sizes = (self._sizes + data).split(b"\n")
        self._sizes = self._sizes[-_LONGEST_SIZE_BYTES:]
        return [line for line in whole if line]
