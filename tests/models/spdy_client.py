"""A client that speaks SPDY to a node's server, as an API server does; and one that does not keep to anything."""

import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Self

from evenkeel.server.kubelet.spdy_frames import Answered, Data, FrameReader, FrameWriter, Reset

SESSION, PORTS = "v4.channel.k8s.io", "portforward.k8s.io"


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    try:
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


def head_of(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    """The status of an answer, and what has come after its head."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(1 << 16)
        if not part:
            break
        received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0), rest


class SpdyClient:
    """`status` is HTTP's: 101 if the connection has become SPDY."""

    def __init__(
        self,
        port: int,
        context: ssl.SSLContext,
        target: str,
        *,
        protocol: str = SESSION,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.connection = connected(port, context)
        sent = {
            "Host": "node",
            "Connection": "Upgrade",
            "Upgrade": "SPDY/3.1",
            "X-Stream-Protocol-Version": protocol,
            "Content-Length": "0",
            **(headers or {}),
        }
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        self.connection.sendall("\r\n".join(lines).encode())
        self.status, self.rest = head_of(self.connection)
        self._reader, self._writer = FrameReader(), FrameWriter()
        self._frames = self._received()
        self._next = 1
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def open(self, **headers: str) -> int:
        """A stream that the server has answered; its number."""
        number, self._next = self._next, self._next + 2
        self.connection.sendall(self._writer.opened(number, headers))
        for frame in self._frames:
            if isinstance(frame, Answered | Reset) and frame.stream == number:
                assert isinstance(frame, Answered), "the stream is refused"
                self.data[number] = b""
                return number
        raise AssertionError("the server has ended the connection")

    def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        self.connection.sendall(self._writer.data(stream, data, is_last=is_last))

    def reset(self, stream: int) -> None:
        self.connection.sendall(self._writer.reset(stream))

    def ping(self, number: int) -> None:
        self.connection.sendall(self._writer.ping(number))

    def next_frame(self) -> Any:
        return next(self._frames, None)

    def until_ended(self, *streams: int) -> list[bytes]:
        """All that the server sends on these, when it has ended them."""
        while not self.ended.issuperset(streams):
            assert self.next_frame() is not None, f"the connection ended: {self.data}, {self.ended}"
        return [self.data[stream] for stream in streams]

    def _received(self) -> Iterator[Any]:
        received = self.rest
        while True:
            for frame in self._reader.feed(received):
                if isinstance(frame, Data):
                    self.data[frame.stream] = self.data.get(frame.stream, b"") + frame.data
                    if frame.is_last:
                        self.ended.add(frame.stream)
                elif isinstance(frame, Reset):
                    self.ended.add(frame.stream)
                yield frame
            received = self.connection.recv(1 << 16)
            if not received:
                return
