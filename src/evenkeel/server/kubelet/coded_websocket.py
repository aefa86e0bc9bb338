"""kubelet's WebSocket protocols before version 5, and sessions over them. Old clients of the API server use them, and
the API server passes them on to the node.

A message belongs to one channel. It is bytes, or text: the channel as a digit, then the data in base64. In version 4 a
session ends with a `Status`. Before, it ends with the text of a failure, or with nothing.
"""

import base64
import binascii
from collections.abc import AsyncIterator

import h11

from evenkeel.runtime.sessions import Part, Streams
from evenkeel.server.channels import ERROR, RESIZE, STDERR, STDIN, STDOUT, V4, end_of
from evenkeel.server.http import Transport
from evenkeel.server.kubelet.spdy import Spdy
from evenkeel.server.websocket import WebSocket

V4_BASE64, BASE64, PLAIN, NONE = "v4.base64.channel.k8s.io", "base64.channel.k8s.io", "channel.k8s.io", ""
_OF_SESSIONS = (V4, V4_BASE64, PLAIN, BASE64, NONE)
_OF_PORTS = (V4, V4_BASE64, NONE)
_WEBSOCKET = "websocket"
_DIGITS = b"0123456789"
MOST_CHANNELS, MOST_TEXT_CHANNELS = 256, len(_DIGITS)


def asks_for_websocket(upgrade: str) -> bool:
    """`upgrade` is that header of a request."""
    return upgrade.strip().lower() == _WEBSOCKET


def session_transport(head: h11.Request, protocols: tuple[str, ...]) -> Transport:
    """What the client of a session asks for: a WebSocket, or SPDY with one of these protocols. Raises Refused."""
    return _transport(head, protocols, _OF_SESSIONS)


def port_transport(head: h11.Request, protocols: tuple[str, ...]) -> Transport:
    """The same of a port-forward."""
    return _transport(head, protocols, _OF_PORTS)


def _transport(head: h11.Request, protocols: tuple[str, ...], of_websocket: tuple[str, ...]) -> Transport:
    upgrades = [bytes(value).decode("latin-1") for name, value in head.headers if name == b"upgrade"]
    if any(map(asks_for_websocket, upgrades)):
        return WebSocket(head, of_websocket)
    return Spdy(head, protocols)


def is_text(websocket: WebSocket) -> bool:
    return websocket.protocol in (BASE64, V4_BASE64)


class CodedWebSocket:
    """The channels of a WebSocket, in the form that was agreed on."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._is_text = is_text(websocket)

    async def send(self, channel: int, data: bytes) -> None:
        """Returns when the client has taken it. Raises OSError when the client is gone."""
        if self._is_text:
            await self._websocket.send_text(f"{channel}{base64.b64encode(data).decode()}")
        else:
            await self._websocket.send(channel, data)

    async def parts(self) -> AsyncIterator[Part]:
        """The client's messages, until it closes the WebSocket, is gone, or sends what is not base64. The channel of
        text that begins with no digit is -1."""
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
            yield Part(channel, data, part.is_last)


class WebSocketSession:
    """The channels of a session (`session_relay.Channels`)."""

    def __init__(self, websocket: WebSocket, wanted: Streams) -> None:
        self._websocket = websocket
        self._coded = CodedWebSocket(websocket)
        self._has_status = websocket.protocol in (V4, V4_BASE64)
        self._wanted = wanted

    async def begin(self) -> None:
        """Says that the session is open, as kubelet does: a message without data on the first channel for output."""
        channel = STDOUT if self._wanted.stdout else STDERR if self._wanted.stderr else ERROR
        await self._coded.send(channel, b"")

    async def send(self, channel: int, data: bytes = b"") -> None:
        if channel == ERROR and not self._has_status:
            end = end_of(data)
            if not end.exit_code and not end.problem:
                return
            data = end.problem.encode()
        await self._coded.send(channel, data)

    async def parts(self) -> AsyncIterator[Part]:
        """Input and sizes. Messages on other channels are ignored."""
        async for part in self._coded.parts():
            if part.channel == RESIZE or (part.channel == STDIN and self._wanted.stdin):
                yield part

    async def client_gone(self) -> None:
        await self._websocket.client_gone()

    async def close(self, *, is_orderly: bool = True) -> None:
        await self._websocket.close(is_orderly=is_orderly)
