"""A session over a WebSocket, in the forms of kubelet before version 5 (`coded_websocket`).

Before version 4 the end of a session is the words of a failure, or nothing; with it, it is a `Status`.
"""

from collections.abc import AsyncIterator

from evenkeel.runtime.sessions import Part, Streams
from evenkeel.server.channels import ERROR, RESIZE, STDERR, STDIN, STDOUT, V4, end_of
from evenkeel.server.kubelet.coded_websocket import V4_BASE64, CodedWebSocket
from evenkeel.server.websocket import WebSocket


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
        """Input and sizes. What comes on other channels is for nobody."""
        async for part in self._coded.parts():
            if part.channel == RESIZE or (part.channel == STDIN and self._wanted.stdin):
                yield part

    async def client_gone(self) -> None:
        await self._websocket.client_gone()

    async def close(self, *, is_orderly: bool = True) -> None:
        await self._websocket.close(is_orderly=is_orderly)
