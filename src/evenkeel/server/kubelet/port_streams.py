"""Port-forward over SPDY: a client opens a pair of streams for each connection to a port of the pod.

The stream `data` has the bytes of both directions, the stream `error` what went wrong. A pair has the number of its
request in common. Each pair has a task and a few buffers of its own.
"""

import asyncio
from contextlib import suppress

from evenkeel.server.kubelet.port_pair import MOST_PAIRS, OpenPort, PortPair, port_number
from evenkeel.server.kubelet.spdy import STREAM_TYPE, Spdy
from evenkeel.server.kubelet.spdy_frames import CANCEL, Data, Opened, Reset

_DATA, _ERROR = "data", "error"


async def forward_ports(spdy: Spdy, open_port: OpenPort) -> None:
    """Serves all pairs of streams until the client is gone."""
    pairs = _Pairs(spdy, open_port)
    serving = asyncio.ensure_future(pairs.serve())
    gone = asyncio.ensure_future(spdy.client_gone())
    try:
        await asyncio.wait((serving, gone), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    except OSError:
        pass  # the client is gone
    finally:
        serving.cancel()
        gone.cancel()
        await asyncio.gather(serving, gone, return_exceptions=True)
        await pairs.close()


class _Pairs:
    def __init__(self, spdy: Spdy, open_port: OpenPort) -> None:
        self._spdy = spdy
        self._open_port = open_port
        self._half: dict[str, Opened] = {}  # by request: a stream whose other one has not come yet
        self._pairs: dict[int, PortPair] = {}  # by the number of the stream `data`
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Raises OSError when the client is gone."""
        async for frame in self._spdy.frames():
            if isinstance(frame, Opened):
                await self._take(frame)
            elif isinstance(frame, Data):
                pair = self._pairs.get(frame.stream)
                if pair is not None:
                    await pair.receive(frame.data, is_last=frame.is_last)
            elif isinstance(frame, Reset):
                pair = self._pairs.pop(frame.stream, None)
                if pair is not None:
                    pair.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, opened: Opened) -> None:
        kind, port = opened.headers.get(STREAM_TYPE, ""), port_number(opened.headers.get("port", ""))
        # Clients that number no requests open the two streams of a pair one after the other, first `error`.
        number = opened.stream - 2 * (kind == _DATA)
        request = opened.headers.get("requestid") or f"stream {number}"
        other = self._half.get(request)
        is_known = kind in (_DATA, _ERROR) and port > 0 and len(self._half) + len(self._pairs) < MOST_PAIRS
        if not is_known or (other is not None and other.headers.get(STREAM_TYPE) == kind):
            await self._spdy.reset(opened.stream)
            return
        await self._spdy.answer(opened.stream)
        if other is None:
            self._half[request] = opened
            return
        del self._half[request]
        data, error = (opened, other) if kind == _DATA else (other, opened)
        pair = PortPair(_SpdyPair(self._spdy, data.stream, error.stream))
        self._pairs[data.stream] = pair
        task = asyncio.create_task(self._serve(pair, data.stream, port))
        pair.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, pair: PortPair, stream: int, port: int) -> None:
        try:
            with suppress(OSError):  # the client is gone
                await pair.serve(self._open_port, port)
        finally:
            self._pairs.pop(stream, None)
            pair.end()


class _SpdyPair:
    """The two streams of a pair (`port_pair.PairStreams`)."""

    def __init__(self, spdy: Spdy, data: int, error: int) -> None:
        self._spdy = spdy
        self._data = data
        self._error = error

    async def send(self, data: bytes) -> None:
        await self._spdy.send(self._data, data)

    async def end(self) -> None:
        await self._spdy.send(self._data, b"", is_last=True)
        await self._spdy.send(self._error, b"", is_last=True)

    async def fail(self, problem: str) -> None:
        await self._spdy.send(self._error, problem.encode(), is_last=True)
        await self._spdy.reset(self._data, CANCEL)
