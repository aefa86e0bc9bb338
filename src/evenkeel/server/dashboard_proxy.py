"""The dashboard for a browser on this machine: a loopback port in front of the agent's socket, without certificates.

Every process of the machine can reach the port, and one with CAP_NET_RAW can read every packet. So the port is plain
HTTP, but what goes over it is sealed. The printed address has a key behind the `#`. A browser never sends that part.
The page seals each request with the key, and the dashboard seals each answer. A sniffed packet is of no use, because it
holds no cookie, token or figure in the clear. Only the page's own files are open: they are the same on every machine.

The key serves one browser. The first valid request fixes its session, and requests of other sessions are refused: the
address may be seen in a process list after the browser was started with it.

The cipher is made of what both Python and browsers have. Python has no AES. The keystream is HMAC-SHA256 in counter
mode (PBKDF2 with one iteration is exactly that), and HMAC-SHA256 over name and ciphertext is the tag (encrypt, then
MAC). The name of a message has its direction, a random number of either side and its place in the answer, so no
keystream is used twice and no message can take the place of another.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import quote

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.agent_socket import connect
from evenkeel.server.connection import DEFAULT_LIMITS, Connection, Limits
from evenkeel.server.http import JSON, VIA, Answer, Refused, Request, Route, Stream
from evenkeel.server.large_answers import LargeAnswers
from evenkeel.server.open_connections import OpenConnections

ADDRESS = "127.0.0.1"
_OWN_NAMES = (ADDRESS, "localhost")
_PART_BYTES = 64 * 1024
_ANSWER_SECONDS = 60.0
_LIMITS = DEFAULT_LIMITS._replace(connections=64, body_bytes=8 * 1024)
_MOST_REMEMBERED = 10_000  # requests, so that none is answered twice
_PASSED_ON = frozenset(
    {
        "content-security-policy",
        "x-content-type-options",
        "referrer-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "allow",
    }
)
_KEY_BYTES, _SESSION_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 16, 16, 32
_CHUNK_BYTES = 256  # of keystream: Firefox derives no more at a time
_ASK, _ANSWER = b"q", b"a"  # the direction of a message

ConnectToAgent = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Seal:
    """Seals and opens messages between the dashboard and the page of one session."""

    def __init__(self, key: bytes, session: bytes) -> None:
        self._cipher_key = hmac.digest(key, b"cipher" + session, "sha256")
        self._tag_key = hmac.digest(key, b"tag" + session, "sha256")

    def seal(self, name: bytes, text: bytes) -> bytes:
        """Tag and ciphertext. A name must never be used for two texts."""
        hidden = self._xor(name, text)
        return hmac.digest(self._tag_key, name + hidden, "sha256") + hidden

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """None if the message was not sealed with this key under this name."""
        tag, hidden = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
        if not hmac.compare_digest(tag, hmac.digest(self._tag_key, name + hidden, "sha256")):
            return None
        return self._xor(name, hidden)

    def _xor(self, name: bytes, text: bytes) -> bytes:
        count = -(-len(text) // _CHUNK_BYTES)
        stream = b"".join(
            hashlib.pbkdf2_hmac("sha256", self._cipher_key, name + index.to_bytes(4), 1, _CHUNK_BYTES)
            for index in range(count)
        )[: len(text)]
        return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


def message_name(direction: bytes, asked: bytes, answered: bytes = b"", number: int = 0) -> bytes:
    """`asked` and `answered` are the random numbers of request and answer; `number` is the place in the answer."""
    return direction + asked + answered.rjust(_NONCE_BYTES, b"\0") + number.to_bytes(4)


class Dashboard:
    """Serves until `close`. `address` is what to open in a browser."""

    def __init__(self, connect_to_agent: ConnectToAgent, limits: Limits = _LIMITS) -> None:
        self._connect = connect_to_agent
        self._limits = limits
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._session = b""  # the session of the browser that came first
        self._seal: Seal | None = None
        self._asked: dict[bytes, None] = {}  # the oldest first
        self._large_bodies = asyncio.Semaphore(1)
        self._large_answers = LargeAnswers(self._limits.large_answer_bytes)
        self._connections = OpenConnections(limits.connections)
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        try:
            self._server = await asyncio.start_server(self._connected, ADDRESS, port)
        except OSError as error:
            raise EvenkeelError(
                f"--port: cannot listen at {ADDRESS}:{port}: {reason(error)}", hint="0 takes a free port"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        key = base64.urlsafe_b64encode(self._key).decode().rstrip("=")
        return f"http://{ADDRESS}:{self.port}/#key={key}"

    async def close(self) -> None:
        await self._connections.close_with(self._server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._limits, self._large_bodies, self._large_answers)
        await self._connections.serve(connection, self)

    async def find(self, request: Request) -> Route:
        # A site can make its own name point to this machine (DNS rebinding). Its requests have that name.
        if request.headers.get("host", "").partition(":")[0].lower() not in _OWN_NAMES:
            raise Refused(421, "this is not the machine that was asked for", hint=f"ask {ADDRESS}")
        if request.path == ("ask",):
            if request.method != "POST":
                raise Refused(405, f"{request.method} is not allowed here", allow="POST")
            return Route(self._ask, takes_body=True)
        if request.method != "GET":
            raise Refused(405, f"{request.method} is not allowed: the dashboard only reads", allow="GET")
        if request.path == ("",) or (len(request.path) == 2 and request.path[0] == "page"):
            return Route(self._page)
        raise _refused()

    async def _page(self, request: Request) -> Answer:
        """A file of the page, in the clear."""
        answer = await self._from_agent("/" + "/".join(quote(word, safe="") for word in request.path))
        try:
            body = b"".join([part async for part in answer.parts()])
        except OSError:
            raise _broken_off() from None
        finally:
            answer.close()
        passed_on = tuple((name, value) for name, value in answer.headers.items() if name in _PASSED_ON)
        return Answer(body, answer.status, answer.content_type, passed_on)

    async def _ask(self, request: Request) -> Stream:
        """A sealed request for a path of the agent. The answer is sealed, too, its status included."""
        session, rest = request.body[:_SESSION_BYTES], request.body[_SESSION_BYTES:]
        asked, sealed = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
        seal = self._seal_of(session)
        path = seal.open(message_name(_ASK, asked), sealed) if len(asked) == _NONCE_BYTES else None
        if path is None or asked in self._asked:
            raise _refused()
        self._session, self._seal = session, seal
        self._asked[asked] = None
        if len(self._asked) > _MOST_REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return Stream(self._sealed_answer(seal, asked, path.decode()), "application/octet-stream")

    def _seal_of(self, session: bytes) -> Seal:
        if self._seal is None:
            return Seal(self._key, session)
        if not hmac.compare_digest(session, self._session):
            raise _refused()
        return self._seal

    async def _sealed_answer(self, seal: Seal, asked: bytes, path: str) -> AsyncIterator[bytes]:
        """A random number, then frames: the length in four bytes, the tag, the ciphertext. The first frame has the
        status and the type, the last one is empty."""
        answered = secrets.token_bytes(_NONCE_BYTES)
        number = 0

        def frame(text: bytes) -> bytes:
            nonlocal number
            sealed = seal.seal(message_name(_ANSWER, asked, answered, number), text)
            number += 1
            return len(text).to_bytes(4) + sealed

        yield answered
        try:
            answer = await self._from_agent(f"/{path}")
        except Refused as refusal:
            yield frame(json.dumps({"status": refusal.status, "type": JSON}).encode())
            yield frame(refusal.answer().body) + frame(b"")
            return
        try:
            yield frame(json.dumps({"status": answer.status, "type": answer.content_type}).encode())
            async for part in answer.parts():
                yield frame(part)
            yield frame(b"")
        finally:
            answer.close()

    async def _from_agent(self, target: str) -> "_AgentAnswer":
        if not target.isascii() or not target.isprintable() or " " in target:
            raise Refused(400, "the path must be percent-encoded")
        try:
            reader, writer = await self._connect()
        except OSError:
            raise Refused(502, "the agent does not answer", hint="start it with: evenkeel up") from None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                # HTTP 1.0: the answer has no chunks, and ends when the connection does.
                writer.write(f"GET {target} HTTP/1.0\r\nHost: evenkeel\r\n{VIA}: dashboard\r\n\r\n".encode())
                await writer.drain()
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = (line.partition(":") for line in lines if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                return _AgentAnswer(int(first[9:12]), headers, reader, writer)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(
                error, OSError | ValueError | asyncio.IncompleteReadError | asyncio.LimitOverrunError
            ):
                raise _broken_off() from None
            raise


class _AgentAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "application/octet-stream")

    async def parts(self) -> AsyncIterator[bytes]:
        """The body. Raises ConnectionError if the agent sends less than it has announced."""
        read = 0
        while part := await self.reader.read(_PART_BYTES):
            read += len(part)
            yield part
        if "content-length" in self.headers and read != int(self.headers["content-length"]):
            raise ConnectionError

    def close(self) -> None:
        self.writer.transport.abort()


async def serve_dashboard(state_dir: str, port: int) -> Dashboard:
    """Raises EvenkeelError if the port is taken."""

    async def connect_to_agent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connected = connect(state_dir)
        connected.setblocking(False)
        return await asyncio.open_unix_connection(sock=connected)

    dashboard = Dashboard(connect_to_agent)
    await dashboard.start(port)
    return dashboard


def _broken_off() -> Refused:
    return Refused(502, "the agent broke off in the middle of its answer")


def _refused() -> Refused:
    return Refused(
        403,
        "this address is not whole, or another browser has opened it",
        hint="evenkeel dashboard prints a new one",
    )
