"""A proxy between a node and the API server that misbehaves: it cuts, delays, refuses and forgets, as networks, load
balancers and servers that are restarted do. It never invents content: all answers that it passes on are the API
server's own.

It ends the node's TLS and speaks to the API server with a certificate of that node.
"""

import asyncio
import json
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator

import h11

from tests.cluster.control_plane import ControlPlane
from tests.cluster.flags import ADDRESS, API_PORT
from tests.cluster.loop_server import LoopServer
from tests.cluster.namespaces import Namespace

PORT = 6443
READ_BYTES = 1 << 16
LONGEST_DELAY_SECONDS = 3.0
MOST_BYTES_BEFORE_CUT = 20_000
FAULTY, FAULTY_WATCH = 0.3, 0.6  # how many requests, and how many watches, go wrong while it is rough
# What may happen to a request: it never arrives; its answer is lost, or ends in the middle; it takes long; or it is
# refused.
REQUEST_FAULTS = ("cut", "answer lost", "answer torn", "slow", "409", "429", "500", "503")
# And to a watch: it is refused, ends after some bytes or some time, mostly in the middle of a line; or says that its
# version is too old.
WATCH_FAULTS = ("cut", "slow", "torn", "torn later", "stalled", "ended", "410", "410 later", "429", "500")
TOO_MANY = 429
_REASONS = {
    409: "Conflict",
    410: "Expired",
    TOO_MANY: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Cut(Exception):
    """The connection is to be cut."""


class RoughProxy(LoopServer):
    """On a loopback port of the node's namespace, in a thread of its own. While `is_rough`, what is asked goes wrong
    now and then; while `is_away`, nothing is passed on. `seen` counts what was done."""

    def __init__(self, plane: ControlPlane, node: str, network: Namespace, seed: int) -> None:
        authority = plane.authority
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(*authority.server(f"proxy-of-{node}", "IP:127.0.0.1"))
        listening = network.asked(lambda: socket.create_server(("127.0.0.1", PORT)))
        super().__init__(f"proxy of {node}", listening, plane.network, serving)
        self.is_rough = False
        self.is_away = False
        self.seen: Counter[str] = Counter()
        self._chosen = random.Random(seed)
        self._asking = ssl.create_default_context(cafile=str(authority.certificate))
        client = authority.client(f"through-{node}", f"system:node:{node}", "system:nodes")
        self._asking.load_cert_chain(*client)
        self.begin()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = _Side(h11.Connection(h11.SERVER), reader, writer)
        server: _Side | None = None
        try:
            while (request := await node.message()) is not None and not self.is_away:
                if server is None:
                    server = await self._to_server()
                await self._exchange(node, server, *request)
        except (Cut, h11.RemoteProtocolError):
            pass  # both sides learn it now
        finally:
            if server is not None:
                server.writer.transport.abort()

    async def _to_server(self) -> "_Side":
        reader, writer = await asyncio.open_connection(ADDRESS, API_PORT, ssl=self._asking)
        return _Side(h11.Connection(h11.CLIENT), reader, writer)

    async def _exchange(self, node: "_Side", server: "_Side", request: h11.Request, body: bytes) -> None:
        fault = self._fault(request)
        self.seen[fault or "passed"] += 1
        if fault == "cut":
            raise Cut
        if fault == "slow":
            await self._pause()
        if fault.isdecimal():
            await node.refuse(int(fault))
            node.http.start_next_cycle()
            return
        await server.send(h11.Request(method=request.method, target=request.target, headers=request.headers))
        if body:
            await server.send(h11.Data(data=body))
        await server.send(h11.EndOfMessage())
        await self._answer(node, server, fault)
        if node.http.our_state is not h11.DONE:
            raise Cut  # the server has gone in the middle
        node.http.start_next_cycle()
        server.http.start_next_cycle()

    async def _answer(self, node: "_Side", server: "_Side", fault: str) -> None:
        """What the server answers, up to the fault."""
        left = (
            self._chosen.randrange(MOST_BYTES_BEFORE_CUT) if "torn" in fault or fault == "410 later" else None
        )
        until = None
        if fault in ("torn later", "stalled", "ended", "410 later"):
            until = self.loop.time() + self._chosen.uniform(0.0, LONGEST_DELAY_SECONDS)
        line_ends = True
        try:
            async with asyncio.timeout_at(until):
                async for event in server.events():
                    if fault == "answer lost":
                        raise Cut
                    if isinstance(event, h11.Data) and left is not None:
                        if len(event.data) > left and "torn" in fault:
                            await node.send(h11.Data(data=bytes(event.data[:left])))
                            raise Cut
                        left = max(left - len(event.data), 0)
                    if isinstance(event, h11.Data):
                        line_ends = bytes(event.data).endswith(b"\n")
                    await node.send(event)
        except TimeoutError:
            await self._end(node, fault, line_ends=line_ends)

    async def _end(self, node: "_Side", fault: str, *, line_ends: bool) -> None:
        """A watch whose time is over."""
        if fault == "stalled":
            await self._pause()
        if fault == "ended" and line_ends and node.http.our_state is h11.SEND_BODY:
            await node.send(h11.EndOfMessage())
        elif fault == "410 later" and line_ends and node.http.our_state is h11.SEND_BODY:
            event = {"type": "ERROR", "object": _status(410)}
            await node.send(h11.Data(data=json.dumps(event).encode() + b"\n"))
            await node.send(h11.EndOfMessage())
        raise Cut

    def _fault(self, request: h11.Request) -> str:
        """Empty if all goes well."""
        is_watch = b"watch=true" in request.target
        if not self.is_rough or self._chosen.random() >= (FAULTY_WATCH if is_watch else FAULTY):
            return ""
        return self._chosen.choice(WATCH_FAULTS if is_watch else REQUEST_FAULTS)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chosen.uniform(0.0, LONGEST_DELAY_SECONDS))


class _Side:
    """A connection, with the state of HTTP on it."""

    def __init__(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = http
        self.writer = writer
        self._reader = reader

    async def message(self) -> tuple[h11.Request, bytes] | None:
        """A whole request; None if no more comes."""
        request: h11.Request | None = None
        body = b""
        async for event in self.events():
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
        return (request, body) if request is not None else None

    async def events(self) -> AsyncIterator[h11.Event]:
        """Yields the events of a message up to and including its end, or until the peer is gone."""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.ConnectionClosed):
                return
            else:
                assert not isinstance(event, type)
                yield event
                if isinstance(event, h11.EndOfMessage):
                    return

    async def send(self, event: h11.Event) -> None:
        self.writer.write(self.http.send(event) or b"")
        await self.writer.drain()

    async def refuse(self, code: int) -> None:
        body = json.dumps(_status(code)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if code == TOO_MANY:
            headers.append(("Retry-After", "1"))
        await self.send(h11.Response(status_code=code, headers=headers))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


def _status(code: int) -> dict[str, object]:
    """An error as a Status object of the API server."""
    message = "the proxy of the tests says so"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }
