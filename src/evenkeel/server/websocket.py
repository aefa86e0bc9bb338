"""A WebSocket on a connection that began as HTTP. It is noticed when the client closes the connection, even while
nothing is read."""

import asyncio
from collections.abc import AsyncIterator

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from evenkeel.runtime.sessions import Part, hung_up
from evenkeel.runtime.websocket_channels import NORMAL, PROTOCOL_ERROR, WebSocketChannels
from evenkeel.server.http import Refused


class WebSocket:
    """`protocol` is the one that was agreed on; empty if the client may name none and did so."""

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
        chosen = next((name for name in protocols if name in (offered or [""])), None)
        if chosen is None:
            raise Refused(
                400,
                f"Sec-WebSocket-Protocol: {', '.join(offered)[:80] or 'none'} is not spoken here",
                hint=f"there are {', '.join(filter(None, protocols))}",
            )
        self.protocol = chosen
        self._channels: WebSocketChannels | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes
    ) -> None:
        """Takes over the connection. `received` was read after the request."""
        self._channels = WebSocketChannels(self._wire, reader, writer)
        self._writer = writer
        await self._channels.send_event(AcceptConnection(subprotocol=self.protocol or None))
        if received:
            self._wire.receive_data(received)

    async def send(self, channel: int, data: bytes = b"") -> None:
        """Returns when the client has taken it. Raises OSError when the client is gone."""
        assert self._channels is not None
        await self._channels.send(channel, data)

    async def send_text(self, message: str) -> None:
        """A message with its channel, as a protocol of text has it. Otherwise as `send`."""
        assert self._channels is not None
        await self._channels.send_text(message)

    async def parts(self) -> AsyncIterator[Part]:
        """The client's messages, until it closes the WebSocket or is gone."""
        assert self._channels is not None
        try:
            async for part in self._channels.parts():
                yield part
        except OSError:
            return

    async def client_gone(self) -> None:
        """Returns when the client has closed its end of the connection, even if data from before is unread."""
        assert self._writer is not None
        await hung_up(self._writer.get_extra_info("socket").fileno())

    async def close(self, *, is_orderly: bool = True) -> None:
        """Says that this was the end, if the client still listens."""
        assert self._channels is not None
        await self._channels.say_end(NORMAL if is_orderly else PROTOCOL_ERROR)
