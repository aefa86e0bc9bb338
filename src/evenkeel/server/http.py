"""HTTP as values: a request, its answer or stream or refusal, and the routes that give it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import h11

from evenkeel.named_tuples import NamedTuple

JSON = "application/json"
LINES = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
VIA = "x-evenkeel-via"  # a request with this header came through a proxy to the Unix socket
_Item = TypeVar("_Item")


class Request(NamedTuple):
    method: str
    path: tuple[str, ...]
    parameters: Mapping[str, str]
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})  # names are in lower case
    # The values of the parameters that may be repeated.
    command: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


class Answer(NamedTuple):
    """`more` follows the body. All clients share these texts, so that one that does not read its answer holds no copy
    of them."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    more: tuple[bytes, ...] = ()


class Stream(NamedTuple):
    """An answer without end. The next item is taken from the source when the client has read the last one. The source
    is closed when the client leaves."""

    items: AsyncIterator[bytes]
    content_type: str = LINES


class Upgrade(NamedTuple):
    """An answer that turns the connection into another one (`websocket.WebSocket`, `kubelet.spdy.Spdy`), which `serve`
    gets. `close` is called instead of `serve` if the client is gone by then."""

    serve: Callable[[Any], Awaitable[None]]  # those modules import this one
    close: Callable[[], Awaitable[None]]


class Refused(Exception):
    """A request that is answered with an error. `more` is added to the answer beside message and hint."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str = "",
        more: Mapping[str, object] | None = None,
        allow: str = "",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.more = more or {}
        self.headers = (("Allow", allow), *headers) if allow else headers

    def answer(self) -> Answer:
        body = {"message": self.message, "hint": self.hint, **self.more}
        return Answer(to_json(body), self.status, headers=self.headers)


class Transport(Protocol):
    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes
    ) -> None:
        """Takes over the connection. `received` was read after the request."""
        ...


class Route(NamedTuple):
    """`protocols` are those of a route that answers with an `Upgrade`. Such a route reaches into pods as root. They are
    spoken over a WebSocket, or over the connection that `transport` makes of the request. It raises Refused."""

    handle: Callable[[Request], Awaitable["Answer | Stream | Upgrade"]]
    takes_body: bool = False
    protocols: tuple[str, ...] = ()
    transport: Callable[[h11.Request, tuple[str, ...]], Transport] | None = None


class Routes(Protocol):
    async def find(self, request: Request) -> Route:
        """The route of a request whose body has not been read yet. Raises Refused."""
        ...


def server_sent_event(name: str, data: bytes, number: int = 0) -> bytes:
    """`data` has no line ends."""
    identifier = b"id: %d\n" % number if number else b""
    return b"%bevent: %b\ndata: %b\n\n" % (identifier, name.encode(), data)


def shows_secrets(path: tuple[str, ...]) -> bool:
    """Whether values of Secrets are at the address: /secrets…, /api/v1/secrets, /api/v1/namespaces/NS/secrets…."""
    of_all, of_namespace = path[:3] == ("api", "v1", "secrets"), path[:3] == ("api", "v1", "namespaces")
    return path[0] == "secrets" or of_all or (of_namespace and path[4:5] == ("secrets",))


def no_secrets() -> Refused:
    return Refused(
        403,
        "Secrets are shown at the agent's Unix socket only",
        hint="ask on the node: evenkeel get secret NAME -o yaml",
    )


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


async def next_item(source: AsyncIterator[_Item]) -> _Item | None:
    """None at the end of the source."""
    async for item in source:
        return item
    return None


async def close_source(source: AsyncIterator[object]) -> None:
    """Ends the subscription behind the source, if there is one."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
