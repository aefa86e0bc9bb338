"""All connections of one server: which are served, which make room for others, and how they end."""

import asyncio

from evenkeel.server.connection import Activity, Connection
from evenkeel.server.http import Refused, Routes


class OpenConnections:
    """The connections of one server, at most `most`. When all places are taken, the oldest connection that waits for a
    request, or for the rest of one, is closed: idle and slow connections keep no client out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[asyncio.Task[None], Connection] = {}  # the oldest first
        self._is_ending = False

    async def serve(self, connection: Connection, routes: Routes, refusal: Refused | None = None) -> None:
        """Serves the connection in the current task until its end. A `refusal` is the only answer, if there is one."""
        if self._is_ending:  # accepted in the moment of the end: `close` does not wait for it
            connection.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = connection
        task.add_done_callback(self._open.pop)
        try:
            if refusal is None and len(self._open) > self._most and not self._make_room(task):
                refusal = Refused(503, f"{self._most} connections are open", hint="try again")
            if refusal is not None:
                await connection.refuse(refusal)
            else:
                await connection.serve(routes)
        except asyncio.CancelledError:
            pass  # the server ends, or another connection needs the place

    def end(self) -> None:
        """From now on no connection is served."""
        self._is_ending = True

    async def close(self, finish_seconds: float = 0.0) -> None:
        """Waits a short time for answers under way, and ends everything else."""
        self.end()
        answering = [
            task for task, connection in self._open.items() if connection.activity is Activity.ANSWERING
        ]
        for task in answering:
            self._open[task].is_last = True
        if answering and finish_seconds:
            await asyncio.wait(answering, timeout=finish_seconds)
        for task in (ending := list(self._open)):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def close_with(self, server: asyncio.Server | None) -> None:
        """Closes the server that accepts these connections, and ends them all."""
        self.end()
        if server is not None:
            await stop_accepting(server)
        await self.close()

    def _make_room(self, newest: asyncio.Task[None]) -> bool:
        for task, connection in self._open.items():
            if connection.activity is Activity.WAITING and task is not newest and not task.cancelling():
                task.cancel()
                return True
        return False


async def stop_accepting(server: asyncio.Server) -> None:
    """Closes the server. A connection that was accepted just before is handled first: Python 3.11 would forget it
    without closing it."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)
    server.close()
