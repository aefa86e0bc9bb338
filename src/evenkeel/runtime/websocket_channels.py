"""The channels of a WebSocket, at either of its ends. wsproto speaks the protocol; this module moves the bytes.

`send` waits for a peer that does not read: it returns when the peer has taken what came before. While messages of the
peer wait to be taken, nothing more is read from it."""

import asyncio
from collections.abc import AsyncIterator

from wsproto import WSConnection
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from evenkeel.runtime.sessions import Part

READ_BYTES = 32 * 1024
NORMAL, PROTOCOL_ERROR = 1000, 1002
_CLOSE_SECONDS = 5.0


class WebSocketChannels:
    """The first byte of a message is its channel."""

    def __init__(
        self, wire: WSConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._wire = wire
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        # Everything is with the peer before `drain` returns: nothing piles up here. With 0, asyncio's TLS would wait
        # forever.
        is_tls = writer.get_extra_info("ssl_object") is not None
        writer.transport.set_write_buffer_limits(high=1 if is_tls else 0)

    async def send(self, channel: int, data: bytes = b"") -> None:
        """Returns when the peer has taken it. Raises OSError when the peer is gone."""
        await self._send_message(BytesMessage(data=bytes((channel,)) + data))

    async def send_text(self, message: str) -> None:
        """Otherwise as `send`."""
        await self._send_message(TextMessage(data=message))

    async def _send_message(self, message: Event) -> None:
        try:
            await self.send_event(message)
        except LocalProtocolError:
            raise ConnectionResetError from None  # the peer has closed the WebSocket

    async def parts(self) -> AsyncIterator[Part]:
        """The peer's messages, until it closes the WebSocket or is gone. Raises OSError and wsproto's
        ProtocolError."""
        channel = -1  # of the message that has begun
        while True:
            for event in self._wire.events():
                if isinstance(event, BytesMessage | TextMessage):
                    data = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                    if channel < 0 and data:
                        channel, data = data[0], data[1:]
                    is_last = event.message_finished
                    if channel >= 0:
                        yield Part(channel, data, is_last)
                    if is_last:
                        channel = -1
                elif isinstance(event, Ping):
                    await self.send_event(event.response())
                elif isinstance(event, CloseConnection):
                    return
            received = await self._reader.read(READ_BYTES)
            if not received:
                return
            self._wire.receive_data(received)

    async def say_end(self, code: int = NORMAL) -> None:
        """Closes the WebSocket with a close frame, if the peer is still there."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.send_event(CloseConnection(code=code))
        except (LocalProtocolError, OSError, TimeoutError):
            pass

    async def send_event(self, event: Event) -> None:
        """Raises OSError, and LocalProtocolError where the event is not due."""
        async with self._sending:
            self._writer.write(self._wire.send(event))
            await self._writer.drain()
