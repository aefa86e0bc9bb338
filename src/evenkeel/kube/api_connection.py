"""One HTTP/1.1 connection over TLS to the API server: asyncio's streams, ssl and h11, and no more.

A generated client costs more memory than the agent. Every wait has an end: connecting, sending and the head of an
answer by a timeout, a silent peer by TCP keepalive.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping

import h11

from evenkeel.errors import EvenkeelError, reason
from evenkeel.kube.api_credentials import Identity
from evenkeel.kube.kubeconfig import Kubeconfig
from evenkeel.named_tuples import NamedTuple

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_READ_BYTES = 1 << 16
_LARGEST_BYTES = 64 << 20  # of an answer: a list of all pods of a node is below 2 MiB
_LONGEST_LINE_BYTES = 8 << 20  # of an event: an object has 1.5 MiB at most, and escapes make it longer
# A peer that is gone without a word is noticed after 15 + 3 × 5 seconds.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_OPTIONS = (*KEEPALIVE, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000))


class Unreachable(EvenkeelError):
    """The API server gave no answer, or only a part of one."""


class Head(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in small letters


class Connection:
    """One request at a time. After an error it is of no use any more: close it."""

    def __init__(
        self, identity: Identity, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.identity = identity
        # A request on it has got an answer, so that the next one may find it closed.
        self.has_answered = False
        self._host = host
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def open(cls, config: Kubeconfig, identity: Identity) -> "Connection":
        """Raises Unreachable."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    config.host, config.port, ssl=identity.context, server_hostname=_name(config.server_name)
                )
        except TimeoutError:
            raise Unreachable(f"{config.server} does not answer within {_CONNECT_SECONDS:.0f} s") from None
        except OSError as error:  # an SSLError is an OSError
            raise Unreachable(f"{config.server} cannot be reached: {reason(error)}") from None
        connected = writer.get_extra_info("socket")
        for level, option, value in _OPTIONS:
            connected.setsockopt(level, option, value)
        return cls(identity, f"{config.host}:{config.port}", reader, writer)

    @property
    def is_reusable(self) -> bool:
        """Whether the last answer was read to its end, and the peer has not closed the connection."""
        return (
            self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()
        )

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> Head:
        """Sends a request. Returns the head of its answer. Raises Unreachable."""
        sent = [("Host", self._host), *headers.items()]
        if body:
            sent.append(("Content-Length", str(len(body))))
        try:
            async with asyncio.timeout(timeout_seconds):
                parts = [self._http.send(h11.Request(method=method, target=target, headers=sent))]
                if body:
                    parts.append(self._http.send(h11.Data(data=body)))
                parts.append(self._http.send(h11.EndOfMessage()))
                self._writer.write(b"".join(part for part in parts if part))
                await self._writer.drain()
                event = await self._next()
        except TimeoutError:
            raise Unreachable(f"the API server has not answered within {timeout_seconds:.0f} s") from None
        if not isinstance(event, h11.Response):
            raise Unreachable("the API server closed the connection")
        self.has_answered = True
        return Head(
            event.status_code, {name.decode(): value.decode("latin-1") for name, value in event.headers}
        )

    async def body(self, timeout_seconds: float) -> bytes:
        """The whole body of the answer. Raises Unreachable."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_seconds):
                async for part in self._parts():
                    parts.append(part)
                    size += len(part)
                    if size > _LARGEST_BYTES:
                        raise Unreachable(
                            f"the API server's answer is longer than {_LARGEST_BYTES >> 20} MiB"
                        )
        except TimeoutError:
            raise Unreachable(f"the API server has not answered within {timeout_seconds:.0f} s") from None
        return b"".join(parts)

    async def lines(self, timeout_seconds: float) -> AsyncIterator[bytes]:
        """The lines of the answer as they arrive, until the peer ends it. `timeout_seconds` is for all of them."""
        rest = bytearray()
        try:
            async with asyncio.timeout(timeout_seconds):
                async for part in self._parts():
                    rest += part
                    if b"\n" in part:
                        *whole, last = bytes(rest).split(b"\n")
                        rest = bytearray(last)
                        for line in whole:
                            yield line
                    if len(rest) > _LONGEST_LINE_BYTES:
                        raise Unreachable(f"an event is longer than {_LONGEST_LINE_BYTES >> 20} MiB")
        except TimeoutError:
            raise Unreachable("the API server has not ended a watch in time") from None

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                return
            else:
                raise Unreachable("the API server closed the connection in the middle of an answer")

    async def _next(self) -> object:
        try:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.InformationalResponse):
                    continue
                if event is not h11.NEED_DATA:
                    return event
                self._http.receive_data(await self._reader.read(_READ_BYTES))
        except OSError as error:
            raise Unreachable(f"the connection to the API server broke: {reason(error)}") from None
        except h11.RemoteProtocolError:
            raise Unreachable("the API server's answer is no HTTP, or ends in the middle") from None


def _name(server_name: str) -> str | bytes:
    """The server's name for `ssl`. It encodes a text by IDNA, whose tables take a MiB, and bytes not at all."""
    return server_name.encode() if server_name.isascii() else server_name
