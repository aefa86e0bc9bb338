"""A server of TCP connections in a thread and an event loop of its own. It listens in one network namespace, and asks
in another."""

import asyncio
import socket
import ssl
import threading
from abc import ABC, abstractmethod

from tests.cluster.namespaces import Namespace


class LoopServer(ABC):
    """`serve` has each connection, and ends it. It runs from `begin` on, until `close`."""

    def __init__(
        self, name: str, listening: socket.socket, inside: Namespace, context: ssl.SSLContext | None = None
    ) -> None:
        """`listening` stays in the namespace where it was made; what `serve` opens is `inside`."""
        self.loop = asyncio.new_event_loop()
        self._listening = listening
        self._inside = inside
        self._context = context
        self._connections: set[asyncio.Task[None]] = set()  # the loop itself keeps none alive
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    def begin(self) -> None:
        self._thread.start()

    def cut_all(self) -> None:
        """Ends every connection at once."""

        def cut() -> None:
            for task in self._connections:
                task.cancel()

        self.loop.call_soon_threadsafe(cut)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._inside.enter()
        asyncio.set_event_loop(self.loop)
        starting = asyncio.start_server(self._accepted, sock=self._listening, ssl=self._context)
        server = self.loop.run_until_complete(starting)
        self.loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone; the other learns it now
        finally:
            self._connections.discard(task)
            writer.transport.abort()
