"""A client of a session over a WebSocket, in the forms of Kubernetes before version 5."""

import base64
import ssl
from collections.abc import Iterator, Mapping
from typing import Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    RejectConnection,
    Request,
    TextMessage,
)

PLAIN, BASE64 = "channel.k8s.io", "base64.channel.k8s.io"
V4, V4_BASE64 = f"v4.{PLAIN}", f"v4.{BASE64}"
IS_TEXT = (BASE64, V4_BASE64)


class WebSocketClient:
    """`protocol` is what the server has agreed on; None if it has refused the WebSocket."""

    def __init__(
        self, connection: ssl.SSLSocket, target: str, *offered: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._connection = connection
        self._wire = WSConnection(ConnectionType.CLIENT)
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        request = Request(host="server", target=target, subprotocols=list(offered), extra_headers=more)
        self._connection.sendall(self._wire.send(request))
        self._events = self._received()
        answer = next(self._events)
        assert isinstance(answer, AcceptConnection | RejectConnection)
        self.protocol = (answer.subprotocol or "") if isinstance(answer, AcceptConnection) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _received(self) -> Iterator[object]:
        while True:
            yield from self._wire.events()
            received = self._connection.recv(1 << 16)
            self._wire.receive_data(received or None)

    def send(self, channel: int, data: bytes) -> None:
        is_text = self.protocol in IS_TEXT
        coded = f"{channel}{base64.b64encode(data).decode()}"
        message: Message = TextMessage(coded) if is_text else BytesMessage(bytes((channel,)) + data)
        self._connection.sendall(self._wire.send(message))

    def send_text(self, message: str) -> None:
        self._connection.sendall(self._wire.send(TextMessage(message)))

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """The messages until the server closes the WebSocket."""
        held: list[bytes] = []
        for event in self._events:
            if isinstance(event, CloseConnection):
                return
            assert isinstance(event, TextMessage if self.protocol in IS_TEXT else BytesMessage)
            held.append(event.data.encode() if isinstance(event.data, str) else bytes(event.data))
            if event.message_finished:
                whole, held = b"".join(held), []
                if self.protocol in IS_TEXT:
                    yield int(whole[:1]), base64.b64decode(whole[1:], validate=True)
                else:
                    yield whole[0], whole[1:]
