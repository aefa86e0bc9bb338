"""A session over a WebSocket, in the forms of kubelet before version 5: clients of the API server that speak these are
handed on to the node as they are.

A message is one of a channel. With base64 it is text: the channel as a digit, and the data encoded. Before version 4
the end of a session is the words of a failure, or nothing; with it, it is a `Status`.
"""

import base64
import binascii
from collections.abc import AsyncIterator

import h11

from evenkeel.runtime.sessions import Part, Streams
from evenkeel.server.channels import ERROR, RESIZE, STDERR, STDIN, STDOUT, V4, end_of
from evenkeel.server.http import Transport
from evenkeel.server.kubelet.spdy import SESSION_PROTOCOLS, Spdy
from evenkeel.server.websocket import WebSocket

_V4_BASE64, _BASE64, _PLAIN, _NONE = "v4.base64.channel.k8s.io", "base64.channel.k8s.io", "channel.k8s.io", ""
WEBSOCKET_PROTOCOLS = (V4, _V4_BASE64, _PLAIN, _BASE64, _NONE)
_WEBSOCKET = b"websocket"
_DIGITS = b"0123456789"


def session_transport(head: h11.Request, protocols: tuple[str, ...] = SESSION_PROTOCOLS) -> Transport:
    """What the client asks for: a WebSocket, or SPDY. Raises Refused."""
    upgrades = [bytes(value).strip().lower() for name, value in head.headers if name == b"upgrade"]
    return WebSocket(head, WEBSOCKET_PROTOCOLS) if _WEBSOCKET in upgrades else Spdy(head, protocols)


class WebSocketSession:
    """The channels of a session (`session_relay.Channels`)."""

    def __init__(self, websocket: WebSocket, wanted: Streams) -> None:
        self._websocket = websocket
        self._is_text = websocket.protocol in (_BASE64, _V4_BASE64)
        self._has_status = websocket.protocol in (V4, _V4_BASE64)
        self._wanted = wanted

    async def begin(self) -> None:
        """Says that the session is open, as kubelet does: a message without data on the first channel for output."""
        channel = STDOUT if self._wanted.stdout else STDERR if self._wanted.stderr else ERROR
        await self._send(channel, b"")

    async def send(self, channel: int, data: bytes = b"") -> None:
        if channel == ERROR and not self._has_status:
            end = end_of(data)
            if not end.exit_code and not end.problem:
                return
            data = end.problem.encode()
        await self._send(channel, data)

    async def _send(self, channel: int, data: bytes) -> None:
        if self._is_text:
            await self._websocket.send_text(f"{channel}{base64.b64encode(data).decode()}")
        else:
            await self._websocket.send(channel, data)

    async def parts(self) -> AsyncIterator[Part]:
        """Input and sizes. What comes on other channels is for nobody."""
        held = b""
        async for part in self._websocket.parts():
            channel, data = part.channel, part.data
            if self._is_text:
                channel = _DIGITS.find(part.channel)
                held += data
                whole = len(held) if part.is_last else len(held) & ~3
                try:
                    data, held = base64.b64decode(held[:whole], validate=True), held[whole:]
                except binascii.Error:
                    return
            if channel == RESIZE or (channel == STDIN and self._wanted.stdin):
                yield Part(channel, data, part.is_last)

    async def client_gone(self) -> None:
        await self._websocket.client_gone()

    async def close(self, *, is_orderly: bool = True) -> None:
        await self._websocket.close(is_orderly=is_orderly)
