"""The same routes over TCP, for clients on other machines: with TLS and a bearer token, or not at all.

A client with the token of --token-file may read everything. Pods run as root, so applying and deleting them takes the
token of --admin-token-file. `tls_listener` keeps a place for them.
"""

import hmac
import ipaddress
import os
import ssl
import stat

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import Refused, Request, Route, Routes, no_secrets, shows_secrets

_SHORTEST_TOKEN = 16
_TOKEN_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="  # RFC 6750
_SELF_SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=$(hostname)"
    " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out cert.pem"
)
_NEW_TOKEN = "(umask 077 && openssl rand -hex 32 > token)"  # noqa: S105 - the command that makes one


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

    async def find(self, request: Request) -> Route:
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
        route = await self._routes.find(request)
        if route.protocols:
            raise Refused(
                403,
                "commands in pods and connections to them are not available over TCP",
                hint="ask at the Unix socket on the node: evenkeel exec, attach, cp, port-forward",
            )
        return route


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
