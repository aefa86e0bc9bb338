"""The same routes over TCP, for clients on other machines: with TLS and a bearer token, or not at all.

A client with the token of --token-file may read everything. Pods run as root, so applying and deleting them takes the
token of --admin-token-file. A client without a token can hold a place only until another client needs it.
"""

import asyncio
import hmac
import ipaddress
import os
import socket
import ssl
import stat
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import NamedTuple

from evenkeel.errors import EvenkeelError, reason
from evenkeel.server.http import Refused, Request, Route, Routes, no_secrets, shows_secrets

_BACKLOG = 1024  # the kernel keeps these for us, without a descriptor of ours
_HANDSHAKE_SECONDS = 5.0
_MOST_OPEN = 128  # connections, handshakes included
_MOST_UNAUTHENTICATED = 64  # so that clients with the token always find a place
# A client has this long to show its token before it may lose its place. Otherwise a crowd that connects again and again
# would end the handshake of each client that has a token.
_LEAST_SECONDS = 1.0
FIRST_REQUEST_SECONDS = 5.0  # from the handshake to the first request
_SHORTEST_TOKEN = 16
_TOKEN_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="  # RFC 6750
_SELF_SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=$(hostname)"
    " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out cert.pem"
)
_NEW_TOKEN = "(umask 077 && openssl rand -hex 32 > token)"  # noqa: S105 - the command that makes one

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Routes], Coroutine[object, object, None]]


class TcpFlags(NamedTuple):
    """The flags as they were typed."""

    listen: str
    tls_cert_file: str = ""
    tls_key_file: str = ""
    token_file: str = ""
    admin_token_file: str = ""
    is_beyond_loopback: bool = False


class TcpEndpoint(NamedTuple):
    """Where the agent listens, with its certificate and tokens."""

    host: str
    port: int
    context: ssl.SSLContext
    token: bytes
    admin_token: bytes = b""


def endpoint_from(flags: TcpFlags) -> TcpEndpoint:
    """Raises EvenkeelError with what is missing, and how to make it."""
    host, port = _address(flags)
    if not flags.tls_cert_file or not flags.tls_key_file:
        raise EvenkeelError(
            f"--listen {flags.listen} needs --tls-cert-file and --tls-private-key-file: clients send tokens over it",
            hint=f"take a certificate of your own, or make one: {_SELF_SIGNED}",
        )
    if not flags.token_file:
        raise EvenkeelError(
            f"--listen {flags.listen} needs --token-file: without it every client that reaches the port could ask",
            hint=_NEW_TOKEN,
        )
    token = _token("--token-file", flags.token_file)
    admin = _token("--admin-token-file", flags.admin_token_file) if flags.admin_token_file else b""
    if hmac.compare_digest(token, admin):
        raise EvenkeelError("--token-file and --admin-token-file hold the same token", hint=_NEW_TOKEN)
    return TcpEndpoint(host, port, _context(flags), token, admin)


class TokenCheck:
    """The routes as one connection sees them: GET with the token, everything with the admin token."""

    def __init__(self, routes: Routes, endpoint: TcpEndpoint) -> None:
        self._routes = routes
        self._endpoint = endpoint
        self.is_passed = False  # the client has shown a token on this connection

    def find(self, request: Request) -> Route:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1")
        is_admin = bool(self._endpoint.admin_token) and hmac.compare_digest(token, self._endpoint.admin_token)
        may_read = hmac.compare_digest(token, self._endpoint.token)
        if scheme.lower() != "bearer" or not (is_admin or may_read):
            raise Refused(
                401,
                "this needs the agent's token",
                hint="send it as Authorization: Bearer TOKEN; it is in the file of --token-file",
                headers=(("WWW-Authenticate", "Bearer"), ("Connection", "close")),
            )
        self.is_passed = True
        if request.method not in ("GET", "HEAD") and not is_admin:
            raise Refused(
                403,
                f"{request.method} is not allowed with this token",
                hint="ask at the Unix socket on the node, or send the token of --admin-token-file",
            )
        if shows_secrets(request.path) and request.method in ("GET", "HEAD"):
            raise no_secrets()
        route = self._routes.find(request)
        if route.protocols:
            raise Refused(
                403,
                "commands in pods and connections to them are not to be had over TCP",
                hint="ask at the Unix socket on the node: evenkeel exec, attach, cp, port-forward",
            )
        return route


class _Guest:
    """One connection. A connection that ends during its handshake must not be cancelled, as asyncio would forget its
    socket: its socket is shut down, and the handshake fails."""

    def __init__(self, accepted: socket.socket, address: str, check: TokenCheck) -> None:
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


class Listener:
    """Accepts connections, and waits for no handshake. When all places are taken, a connection without a token loses
    its place to the next one after a second; a connection with a token keeps it. A connection on which the client says
    nothing takes no place at all."""

    def __init__(self, endpoint: TcpEndpoint, routes: Routes, serve: Serve) -> None:
        self._endpoint = endpoint
        self._routes = routes
        self._serve = serve
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], _Guest] = {}  # the oldest first

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._open)

    def start(self) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(_HANDSHAKE_SECONDS))
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise EvenkeelError(f"--listen: cannot listen at {host} port {port}: {reason(error)}") from None
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
            guest = _Guest(accepted, peer[0], TokenCheck(self._routes, self._endpoint))
            task = asyncio.create_task(self._converse(guest))
            self._open[task] = guest
            task.add_done_callback(self._open.pop)
            await asyncio.sleep(0)  # while many clients connect, the others have their turn

    def _make_room(self) -> float:
        """Drops a connection that has shown no token, if places are short: the oldest one of the address that has most
        of them. So one address keeps no other address out, and an idle connection keeps no newer one out.

        Returns 0 if there is room, the seconds until there may be some, or -1 if all places are taken for good."""
        unauthenticated = [
            guest for guest in self._open.values() if not guest.check.is_passed and not guest.is_dropped
        ]
        authenticated = sum(guest.check.is_passed for guest in self._open.values())
        room = min(_MOST_OPEN - authenticated, _MOST_UNAUTHENTICATED)
        if len(unauthenticated) < room:
            return 0.0
        if not unauthenticated:
            return -1.0
        counts = Counter(guest.address for guest in unauthenticated)
        busiest = counts.most_common(1)[0][0]
        oldest = next(guest for guest in unauthenticated if guest.address == busiest)
        left = oldest.since + _LEAST_SECONDS - asyncio.get_running_loop().time()
        if left <= 0:
            oldest.drop()
        return max(left, 0.0)

    async def _converse(self, guest: _Guest) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                guest.socket,
                ssl=self._endpoint.context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError):  # an SSLError is an OSError
            guest.socket.close()
            return
        guest.has_shaken_hands = True
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), guest.check)


def _address(flags: TcpFlags) -> tuple[str, int]:
    host, colon, port = flags.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise EvenkeelError(f'--listen "{flags.listen[:80]}" is not an address and a port: 127.0.0.1:10250')
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise EvenkeelError(
            f'--listen: "{host[:60]}" is not an address of this machine: write 127.0.0.1:{port}'
        ) from None
    if not address.is_loopback and not flags.is_beyond_loopback:
        raise EvenkeelError(
            f"--listen {flags.listen} can be reached from other machines",
            hint=f"write 127.0.0.1:{port}, or add --listen-beyond-loopback if you mean that",
        )
    return str(address), int(port)


def _token(flag: str, path: str) -> bytes:
    """The token in the file, if no other user can read the file."""
    content = _private(flag, path).strip()
    if len(content) < _SHORTEST_TOKEN or content.strip(_TOKEN_LETTERS):
        raise EvenkeelError(
            f"{flag} {path} must hold a token: letters, digits and -._~+/=, at least {_SHORTEST_TOKEN} of them",
            hint=_NEW_TOKEN,
        )
    return content


def _private(flag: str, path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EvenkeelError(f"{flag} {path}: {reason(error)}") from None
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise EvenkeelError(f"{flag} {path} is not a file")
        if seen.st_mode & 0o077 or seen.st_uid not in (0, os.geteuid()):
            raise EvenkeelError(
                f"{flag} {path} can be read or changed by others", hint=f"chown root {path}; chmod 600 {path}"
            )
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _context(flags: TcpFlags) -> ssl.SSLContext:
    _private("--tls-private-key-file", flags.tls_key_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(flags.tls_cert_file, flags.tls_key_file, password=_no_password)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error).lower()
        raise EvenkeelError(
            f"--tls-cert-file {flags.tls_cert_file} and --tls-private-key-file {flags.tls_key_file}"
            f" cannot be used: {why}",
            hint=f"both must be PEM, and the key without a password; to make a pair: {_SELF_SIGNED}",
        ) from None
    return context


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")
