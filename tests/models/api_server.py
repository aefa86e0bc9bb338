"""A stand-in for an API server whose answers a test writes, for errors that a real one cannot be made to give."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from evenkeel.kube.api_client import Client
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.kubeconfig import read_kubeconfig
from tests.certificates import make_certificate


class Asked:
    """A request, and the way to answer it."""

    def __init__(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.line, *fields = head.split("\r\n")
        self.method, self.target, _ = self.line.split(" ")
        self.headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        self.body = json.loads(body) if body else None
        self._writer = writer

    async def answer(self, status: int, value: Any, *headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers]
        self._writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await self._writer.drain()

    async def stream(self, *events: Any, is_whole: bool = True) -> None:
        """Answers a watch with these events; not whole: the connection breaks after them."""
        self._writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self._writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        if is_whole:
            self._writer.write(b"0\r\n\r\n")
        else:
            self._writer.close()
        await self._writer.drain()

    def hang_up(self) -> None:
        self._writer.close()


Answer = Callable[[Asked], Awaitable[None]]


class ApiServer:
    """`answer` gets every request; a test may replace it at any time."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().strip()
                lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length")]
                size = int(lengths[0].partition(":")[2]) if lengths else 0
                asked = Asked(head, await reader.readexactly(size), writer)
                self.asked.append(asked)
                await self.answer(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def kubeconfig(directory: Path, port: int, ca_file: str, user: dict[str, object]) -> Path:
    ca = base64.b64encode(Path(ca_file).read_bytes()).decode()
    path = directory / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": ca},
                    }
                ],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


@asynccontextmanager
async def api_server(directory: Path, answer: Answer) -> AsyncIterator[tuple[ApiServer, Client]]:
    """The server, and a client of it."""
    cert, key = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    one = ApiServer(answer)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=context)
    one.port = server.sockets[0].getsockname()[1]
    path = kubeconfig(directory, one.port, cert, {"token": "from-the-test"})
    client = Client(Credentials(read_kubeconfig(str(path))))
    try:
        yield one, client
    finally:
        await client.close()
        server.close()
