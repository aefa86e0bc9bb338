"""A WebSocket on a connection that began as HTTP. wsproto speaks the protocol; this module moves the bytes.

A client that does not read is waited for: `send` returns when the client has taken what came before. A client that
sends faster than its messages are taken is not read. While nobody reads, the client's end is still noticed.
"""

import asyncio
from collections.abc import AsyncIterator

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from evenkeel.runtime.sessions import hung_up
from evenkeel.server.channels import Part
from evenkeel.server.http import Refused

_READ_BYTES = 32 * 1024
_CLOSE_SECONDS = 5.0
_NORMAL, _PROTOCOL_ERROR = 1000, 1002


class WebSocket:
    """`protocol` is the one that was agreed on."""

    def __init__(self, head: h11.Request, protocols: tuple[str, ...]) -> None:
        """Reads the request. Raises Refused if it does not ask for a WebSocket with one of these protocols."""
        self._wire = WSConnection(ConnectionType.SERVER)
        try:
            headers = [(bytes(name), bytes(value)) for name, value in head.headers]
            self._wire.initiate_upgrade_connection(headers, head.target.decode("ascii"))
            offered = [
                name
                for event in self._wire.events()
                if isinstance(event, Request)
                for name in event.subprotocols
            ]
        except (RemoteProtocolError, LocalProtocolError, h11.ProtocolError, UnicodeDecodeError):
            raise Refused(
                400, "this takes a WebSocket", hint=f"upgrade the connection, with {protocols[0]}"
            ) from None
        chosen = next((name for name in protocols if name in offered), None)
        if chosen is None:
            raise Refused(
                400,
                f"Sec-WebSocket-Protocol: {', '.join(offered)[:80] or 'none'} is not spoken here",
                hint=f"there are {', '.join(protocols)}",
            )
        self.protocol = chosen
        self._sending = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes
    ) -> None:
        """Takes over the connection. `received` was read after the request."""
        self._reader, self._writer = reader, writer
        # Everything is with the client before `drain` returns: nothing piles up here.
        writer.transport.set_write_buffer_limits(high=0)
        await self._write(self._wire.send(AcceptConnection(subprotocol=self.protocol)))
        if received:
            self._wire.receive_data(received)

    async def send(self, channel: int, data: bytes = b"") -> None:
        """Returns when the client has taken it. Raises OSError when the client is gone."""
        async with self._sending:
            try:
                frame = self._wire.send(BytesMessage(data=bytes((channel,)) + data))
            except LocalProtocolError:
                raise ConnectionResetError from None  # the client has closed the WebSocket
            await self._write(frame)

    async def parts(self) -> AsyncIterator[Part]:
        """The client's messages, until it closes the WebSocket or is gone."""
        assert self._reader is not None
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
                    async with self._sending:
                        await self._write(self._wire.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return
            try:
                received = await self._reader.read(_READ_BYTES)
            except OSError:
                return
            if not received:
                return
            self._wire.receive_data(received)

    async def client_gone(self) -> None:
        """Returns when the client's end of the connection is closed, read or unread."""
        assert self._writer is not None
        await hung_up(self._writer.get_extra_info("socket").fileno())

    async def close(self, *, is_orderly: bool = True) -> None:
        """Says that this was the end, if the client still listens."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS), self._sending:
                frame = self._wire.send(CloseConnection(code=_NORMAL if is_orderly else _PROTOCOL_ERROR))
                await self._write(frame)
        except (LocalProtocolError, OSError, TimeoutError):
            pass

    async def _write(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()
