"""A port on loopback that leads into another network namespace, so that kubectl reaches the API server from here.

It passes bytes on and knows nothing of them: TLS is between kubectl and the API server.
"""

import asyncio
import contextlib
import socket

from tests.cluster.loop_server import LoopServer
from tests.cluster.namespaces import Namespace

CHUNK_BYTES = 1 << 16


class Door(LoopServer):
    def __init__(self, namespace: Namespace, host: str, port: int) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        super().__init__("door", listening, namespace)
        self.port: int = listening.getsockname()[1]
        self._there = (host, port)
        self.begin()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._there)
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        finally:
            there_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
