"""A TCP port with TLS, on which no client can keep other clients out.

A client that has not authenticated can hold a place only until another client needs it."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import Routes

_BACKLOG = 1024  # the kernel keeps these for us, without a descriptor of ours
_HANDSHAKE_SECONDS = 5.0
# A client has this long to authenticate before it may lose its place. Otherwise many clients that connect again and
# again would end the handshakes of clients that may ask.
_LEAST_SECONDS = 1.0
FIRST_REQUEST_SECONDS = 5.0  # from the handshake to the first request


class Check(Routes, Protocol):
    """The routes as one connection sees them."""

    is_passed: bool  # the client has authenticated on this connection


OneCheck = TypeVar("OneCheck", bound=Check)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, OneCheck], Coroutine[object, object, None]]


class Place(NamedTuple):
    """Where to listen. `flag` says so in an error."""

    host: str
    port: int
    flag: str
    most_open: int = 128  # connections, handshakes included
    most_unchecked: int = 64  # so that clients that may ask always find a place


class _Guest(Generic[OneCheck]):
    """One connection. A connection that ends during its handshake must not be cancelled, as asyncio would forget its
    socket: its socket is shut down, and the handshake fails."""

    def __init__(self, accepted: socket.socket, address: str, check: OneCheck) -> None:
        self.socket = accepted
        self.address = address
        self.check = check
        self.since = asyncio.get_running_loop().time()
        self.has_shaken_hands = False
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True
        with suppress(OSError):  # the client is gone
            self.socket.shutdown(socket.SHUT_RDWR)


class Listener(Generic[OneCheck]):
    """Accepts connections, and waits for no handshake. When all places are taken, a connection that has not passed its
    check loses its place to the next one after a second; one that has keeps it. A connection on which the client sends
    nothing takes no place at all."""

    def __init__(
        self,
        place: Place,
        context: Callable[[], ssl.SSLContext],
        make_check: Callable[[], OneCheck],
        serve: Serve[OneCheck],
    ) -> None:
        """`context` is asked for each connection, so that certificates can change."""
        self._place = place
        self._context = context
        self._make_check = make_check
        self._serve = serve
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], _Guest[OneCheck]] = {}  # the oldest first

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._open)

    def start(self) -> None:
        host, port, flag, *_ = self._place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(_HANDSHAKE_SECONDS))
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise EvenkeelError(f"{flag}: cannot listen at {host} port {port}: {reason(error)}") from None
        self._socket = listening
        self._accepting = asyncio.create_task(self._accept(listening))

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        for task, guest in self._open.items():
            if guest.has_shaken_hands:
                task.cancel()
            else:
                guest.drop()
        ending = [task for task in (self._accepting, *self._open) if task is not None]
        await asyncio.gather(*ending, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(1)  # too many files are open: clients wait in the backlog
                continue
            try:
                while (wait := self._make_room()) > 0:
                    await asyncio.sleep(wait)  # others wait in the backlog
            except asyncio.CancelledError:
                accepted.close()
                raise
            if wait < 0:
                accepted.close()
                continue
            guest = _Guest(accepted, peer[0], self._make_check())
            task = asyncio.create_task(self._converse(guest))
            self._open[task] = guest
            task.add_done_callback(self._open.pop)
            await asyncio.sleep(0)  # while many clients connect, the others have their turn

    def _make_room(self) -> float:
        """Drops a connection that has not passed its check, if places are short: the oldest one of the address that has
        most of them. So one address keeps no other address out, and an idle connection keeps no newer one out.

        Returns 0 if there is room, the seconds until there may be some, or -1 if all places are taken for good."""
        unchecked = [
            guest for guest in self._open.values() if not guest.check.is_passed and not guest.is_dropped
        ]
        checked = sum(guest.check.is_passed for guest in self._open.values())
        room = min(self._place.most_open - checked, self._place.most_unchecked)
        if len(unchecked) < room:
            return 0.0
        if not unchecked:
            return -1.0
        counts = Counter(guest.address for guest in unchecked)
        busiest = counts.most_common(1)[0][0]
        oldest = next(guest for guest in unchecked if guest.address == busiest)
        left = oldest.since + _LEAST_SECONDS - asyncio.get_running_loop().time()
        if left <= 0:
            oldest.drop()
        return max(left, 0.0)

    async def _converse(self, guest: _Guest[OneCheck]) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                guest.socket,
                ssl=self._context(),
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError):  # an SSLError is an OSError
            guest.socket.close()
            return
        guest.has_shaken_hands = True
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), guest.check)
