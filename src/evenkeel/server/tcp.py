"""The same addresses over TCP, for who asks from elsewhere: with TLS and a bearer token, or not at all.

Whoever has the token may look. To apply and delete pods, which run as root, takes the other token, and without one
nobody can do it here: who collects figures is given no more than that.
"""

import asyncio
import hmac
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.server.http import Refused, Request, Route, Routes

_BACKLOG = 64
_HANDSHAKE_SECONDS = 5.0
_MOST_OPEN = 128  # connections, handshakes included: others can be had at the Unix socket
_SHORTEST_TOKEN = 16
_TOKEN_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="  # RFC 6750
_SELF_SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=$(hostname)"
    " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out cert.pem"
)
_NEW_TOKEN = "(umask 077 && openssl rand -hex 32 > token)"  # noqa: S105 - the command that makes one

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]]


class Asked(NamedTuple):
    """As it was typed."""

    listen: str
    tls_cert_file: str = ""
    tls_key_file: str = ""
    token_file: str = ""
    admin_token_file: str = ""
    is_beyond_loopback: bool = False


class Door(NamedTuple):
    """What is needed to let somebody in."""

    host: str
    port: int
    context: ssl.SSLContext
    token: bytes
    admin_token: bytes = b""


def door_of(asked: Asked) -> Door:
    """Raises EvenkeelError with what is missing, and how to have it."""
    host, port = _address(asked)
    if not asked.tls_cert_file or not asked.tls_key_file:
        raise EvenkeelError(
            f"--listen {asked.listen} needs --tls-cert-file and --tls-private-key-file: tokens go over it",
            hint=f"a certificate of your own, or one made so: {_SELF_SIGNED}",
        )
    if not asked.token_file:
        raise EvenkeelError(
            f"--listen {asked.listen} needs --token-file: whoever reaches the port could ask otherwise",
            hint=_NEW_TOKEN,
        )
    token = _token("--token-file", asked.token_file)
    admin = _token("--admin-token-file", asked.admin_token_file) if asked.admin_token_file else b""
    if hmac.compare_digest(token, admin):
        raise EvenkeelError("--token-file and --admin-token-file hold the same token", hint=_NEW_TOKEN)
    return Door(host, port, _context(asked), token, admin)


class Guarded:
    """Lets those in who bring the token, and those who bring the other one change something."""

    def __init__(self, routes: Routes, door: Door) -> None:
        self._routes = routes
        self._door = door

    def find(self, request: Request) -> Route:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1")
        is_admin = bool(self._door.admin_token) and hmac.compare_digest(token, self._door.admin_token)
        may_look = hmac.compare_digest(token, self._door.token)
        if scheme.lower() != "bearer" or not (is_admin or may_look):
            raise Refused(
                401,
                "this needs the agent's token",
                hint="send it as Authorization: Bearer TOKEN; it is in the file that --token-file names",
                headers=(("WWW-Authenticate", "Bearer"),),
            )
        if request.method not in ("GET", "HEAD") and not is_admin:
            raise Refused(
                403,
                f"{request.method} is not done with this token",
                hint="ask at the Unix socket on the node, or bring the token of --admin-token-file",
            )
        return self._routes.find(request)


class Listener:
    """Accepts connections while there are not too many, and never waits for one to shake hands."""

    def __init__(self, door: Door, connected: Connected) -> None:
        self._door = door
        self._connected = connected
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        host, port = self._door.host, self._door.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            reason = (error.strerror or str(error)).lower()
            raise EvenkeelError(f"--listen: cannot listen at {host} port {port}: {reason}") from None
        self._socket = listening
        self._accepting = asyncio.create_task(self._accept(listening))

    async def close(self) -> None:
        ending = [task for task in (self._accepting, *self._open) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(1)  # too many files are open: those who wait go on waiting
                continue
            if len(self._open) >= _MOST_OPEN:
                accepted.close()
                continue
            task = asyncio.create_task(self._converse(accepted))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _converse(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._door.context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError):  # an SSLError is an OSError
            accepted.close()
            return
        await self._connected(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def _address(asked: Asked) -> tuple[str, int]:
    host, colon, port = asked.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise EvenkeelError(f'--listen "{asked.listen[:80]}" is not an address and a port: 127.0.0.1:10250')
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise EvenkeelError(
            f'--listen: "{host[:60]}" is not an address of this machine: write 127.0.0.1:{port}'
        ) from None
    if not address.is_loopback and not asked.is_beyond_loopback:
        raise EvenkeelError(
            f"--listen {asked.listen} can be reached from other machines",
            hint=f"write 127.0.0.1:{port}, or add --listen-beyond-loopback if that is meant",
        )
    return str(address), int(port)


def _token(flag: str, path: str) -> bytes:
    """What the file holds, if nobody else can read it."""
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
        raise EvenkeelError(f"{flag} {path}: {(error.strerror or str(error)).lower()}") from None
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


def _context(asked: Asked) -> ssl.SSLContext:
    _private("--tls-private-key-file", asked.tls_key_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(asked.tls_cert_file, asked.tls_key_file, password=_no_password)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EvenkeelError(
            f"--tls-cert-file {asked.tls_cert_file} and --tls-private-key-file {asked.tls_key_file}"
            f" cannot be used: {why.lower()}",
            hint=f"both in PEM, the key without a password; one pair is made so: {_SELF_SIGNED}",
        ) from None
    return context


def _no_password() -> str:
    """Nobody is there to be asked."""
    raise ValueError("the key has a password")
