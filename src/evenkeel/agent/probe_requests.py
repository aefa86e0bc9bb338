"""Sends one probe request to a container, over HTTP or TCP.

The container may be broken or hostile. So only the status line counts. Headers are read only for a redirect or an
interim answer, and only up to a limit. Of a body only the beginning is read, and only if a redirect is not followed.
One timeout covers the whole request.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from evenkeel.api.container import Container, ContainerPort, HTTPGetAction, TCPSocketAction
from evenkeel.errors import is_shortage
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:
    import ssl

DEFAULT_HOST = "127.0.0.1"  # of a pod with the host's network
_LONGEST_LINE_BYTES = 8192
_MOST_HEADERS = 100
_MOST_BODY_BYTES = 1024
_LONGEST_LENGTH = 18  # digits
_MOST_REDIRECTS = 10
_MOST_INTERIM = 5  # interim answers (1xx) before the final one
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"  # of TLS 1.2
_CURVE = "prime256v1"
_REDIRECTS = (301, 302, 303, 307, 308)


class Answer(NamedTuple):
    """The answer to a probe. `is_success` is None if the request itself failed: the container's health is unknown. A
    success with a message is one with a warning."""

    is_success: bool | None
    message: str = ""


async def ask_http(
    action: HTTPGetAction, container: Container, timeout_seconds: float, pod_host: str = DEFAULT_HOST
) -> Answer:
    """Sends a GET to the pod at `pod_host`, unless the action names another host. A status from 200 to 399 is a
    success. A redirect to the same host is followed. A redirect to another host counts as the answer, with a
    warning."""
    port = port_number(action.port, container.ports)
    if port is None:
        return _no_port(action.port)
    host = action.host or pod_host
    first = _Request(
        action.scheme.lower() == "https",
        host,
        port,
        action.path or "/",
        tuple((header.name, header.value) for header in action.http_headers),
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _follow(first)
    except TimeoutError:
        return Answer(False, f"GET {first.url}: no answer within {timeout_seconds:g}s")
    except (OSError, ValueError, EOFError) as error:
        return Answer(verdict(error), f"GET {first.url}: {reason_of(error)}")


async def ask_tcp(
    action: TCPSocketAction, container: Container, timeout_seconds: float, pod_host: str = DEFAULT_HOST
) -> Answer:
    """Opens a connection. It is a success if the connection is accepted."""
    port = port_number(action.port, container.ports)
    if port is None:
        return _no_port(action.port)
    host = action.host or pod_host
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port, limit=_LONGEST_LINE_BYTES)
    except TimeoutError:
        return Answer(False, f"connecting to {host}:{port}: no answer within {timeout_seconds:g}s")
    except (OSError, ValueError) as error:
        return Answer(verdict(error), f"connecting to {host}:{port}: {reason_of(error)}")
    writer.transport.abort()
    return Answer(True)


def verdict(error: Exception) -> bool | None:
    """What an error of a request says about the container: nothing, if the agent itself had no descriptor or memory for
    the request. Else containers would be restarted for it."""
    return None if is_shortage(error) else False


def port_number(port: int | str, ports: Sequence[ContainerPort]) -> int | None:
    """The number of a port. `port` is a number, or the name of one of the container's ports."""
    if isinstance(port, int):
        return port
    for each in ports:
        if each.name == port:
            return each.container_port
    return int(port) if port.isascii() and port.isdigit() and 0 < int(port) < 65536 else None


class _Request(NamedTuple):
    is_https: bool
    host: str
    port: int
    target: str  # path and query
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_https else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_https else 'http'}://{self.authority}{self.target}"

    def text(self) -> bytes:
        from urllib.parse import quote

        # Characters that are not allowed in a URL are escaped as in Go. So the target can never contain a line end.
        target = quote(self.target, safe="/?#[]@!$&'()*+,;=:%~-._")
        given = {name.lower() for name, _ in self.headers}
        lines = [f"GET {target if target.startswith('/') else '/' + target} HTTP/1.1"]
        for name, value in (("Host", self.authority), ("User-Agent", "evenkeel-probe"), ("Accept", "*/*")):
            if name.lower() not in given:
                lines.append(f"{name}: {value}")
        for name, value in self.headers:
            if any(ord(letter) < 32 and letter != "\t" for letter in name + value):
                raise ValueError(f"the header {name} holds a control character")
            if value or name.lower() not in ("accept", "user-agent"):  # an empty value omits these two
                lines.append(f"{name}: {value}")
        lines += ["Connection: close", "", ""]
        return "\r\n".join(lines).encode("utf-8", "replace")


async def _follow(request: _Request) -> Answer:
    first_host = request.host
    for _ in range(_MOST_REDIRECTS + 1):
        reply = await _asked(request, first_host)
        if reply.following is None:
            return _answer(reply)
        request = reply.following
    return Answer(False, f"stopped after {_MOST_REDIRECTS} redirects")


class _Reply(NamedTuple):
    """`following` is the next request if a redirect is followed. `body` is the beginning of the body of a redirect that
    is not followed."""

    status: int
    following: _Request | None = None
    body: str = ""


def _answer(reply: _Reply) -> Answer:
    if not 200 <= reply.status < 400:
        return Answer(False, f"HTTP status {reply.status}")
    if reply.status < 300:
        return Answer(True)
    return Answer(True, f"Probe terminated redirects, Response body: {reply.body}".rstrip())


def _redirected(request: _Request, location: str) -> _Request | None:
    """The request for the redirect to `location`; None if `location` is not HTTP."""
    from urllib.parse import urljoin, urlsplit

    parts = urlsplit(urljoin(request.url, location))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    is_https = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = parts.port or (443 if is_https else 80)
    return request._replace(is_https=is_https, host=parts.hostname, port=port, target=target)


async def _asked(request: _Request, first_host: str) -> _Reply:
    text = request.text()
    reader, writer = await asyncio.open_connection(
        request.host,
        request.port,
        limit=_LONGEST_LINE_BYTES,
        ssl=_unverified() if request.is_https else None,
        server_hostname=request.host if request.is_https else None,
    )
    try:
        writer.write(text)
        for _ in range(_MOST_INTERIM + 1):
            status = _status_code(await reader.readline())
            if status in _REDIRECTS:
                headers = await _headers(reader)
                location = headers.get("location")
                following = _redirected(request, location) if location else None
                if following is not None and following.host == first_host:
                    return _Reply(status, following)
                return _Reply(status, body=await _body(reader, headers))
            if status >= 200:
                return _Reply(status)
            await _headers(reader)  # of an interim answer
        raise ValueError("too many interim answers")
    finally:
        writer.transport.abort()  # the rest of the answer is not needed


def _status_code(line: bytes) -> int:
    if not line:
        raise EOFError("the connection was closed without an answer")
    version, _, rest = line.partition(b" ")
    code = rest.strip()[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit() or code < b"100":
        raise ValueError("the answer is not HTTP")
    return int(code)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    """The headers by name in lower case. Of several with the same name, the last counts."""
    found: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = (await reader.readline()).rstrip(b"\r\n")
        if not line:
            return found
        name, _, value = line.partition(b":")
        found[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    raise ValueError(f"the answer has more than {_MOST_HEADERS} headers")


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> str:
    """The beginning of a body as text; empty if no header gives its length."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= _LONGEST_LENGTH):
        return ""
    try:
        content = await reader.readexactly(min(int(length), _MOST_BODY_BYTES))
    except asyncio.IncompleteReadError as error:
        content = error.partial
    return printable(content.decode(errors="replace"))


@cache
def _unverified() -> "ssl.SSLContext":
    """A TLS context that verifies no certificate. As in kubelet, a probe only checks whether the container answers.

    The server chooses the method of key exchange. With Diffie-Hellman in a prime field it also chooses the size of the
    numbers. A handshake with 10000 bits takes a second, and the agent does nothing else in that second. So the client
    offers only the curve that every server of TLS 1.3 must have."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers(_CIPHERS)
    context.set_ecdh_curve(_CURVE)
    return context


def _no_port(port: int | str) -> Answer:
    return Answer(None, f'the container has no port called "{port}"')


def reason_of(error: Exception) -> str:
    """The error in words. asyncio has `Connect call failed` and the address in place of the kernel's words."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno and str(text).startswith("Connect call failed"):
        text = os.strerror(error.errno)
    return printable(str(text))


def printable(text: str, most: int = 1024) -> str:
    """The beginning of untrusted text, on one line."""
    return "".join(_shown(text[:most])).strip()


def _shown(text: str) -> Iterator[str]:
    return (letter if letter.isprintable() else " " for letter in text)
