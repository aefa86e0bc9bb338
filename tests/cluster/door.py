"""A port on loopback that leads into another network namespace, so that kubectl reaches the API server from here.

It passes bytes on and knows nothing of them: TLS is between kubectl and the API server.
"""

import asyncio
import contextlib
import socket
import threading

from tests.cluster.namespaces import Namespace

CHUNK_BYTES = 1 << 16


class Door:
    def __init__(self, namespace: Namespace, host: str, port: int) -> None:
        self._namespace = namespace
        self._inside = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._passing: set[asyncio.Task[None]] = set()  # the loop itself keeps none alive
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        """The socket that listens stays in the namespace where it was made; those that this thread makes do not."""
        self._namespace.enter()
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._pass_on, sock=self._listening))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._inside)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone; the other learns it now
        finally:
            writer.transport.abort()
            there_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
