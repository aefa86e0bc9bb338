"""Port-forward over a WebSocket, in the form of kubelet before SPDY was tunnelled: the ports are in the address.

The nth port has the channels 2n, for the bytes of both directions, and 2n+1, for what went wrong. The first message of
each has the port. Neither side can end one direction or one port: the end of a connection to the pod, or that there is
none, ends the WebSocket.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from wsproto.utilities import ProtocolError

from evenkeel.server.http import Refused
from evenkeel.server.kubelet.coded_websocket import (
    MOST_CHANNELS,
    MOST_TEXT_CHANNELS,
    CodedWebSocket,
    is_text,
)
from evenkeel.server.kubelet.port_pair import LARGEST_PORT, OpenPort, PortPair, port_number
from evenkeel.server.websocket import WebSocket


def asked_ports(given: Iterable[str]) -> tuple[int, ...]:
    """The ports of a request: each value is one, or several with commas between them. Raises Refused."""
    texts = [text for value in given for text in value.split(",")]
    if not texts:
        raise Refused(400, "port: missing", hint="name the ports of the pod, as in ?port=80&port=443")
    ports = tuple(map(port_number, texts))
    for text, port in zip(texts, ports, strict=True):
        if not port:
            raise Refused(400, f'port: "{text[:40]}" is no number from 1 to {LARGEST_PORT}')
    if 2 * len(ports) > MOST_CHANNELS:
        raise Refused(400, f"port: {len(ports)} are more than the {MOST_CHANNELS // 2} of one connection")
    return ports


async def forward_asked_ports(websocket: WebSocket, ports: Sequence[int], open_port: OpenPort) -> None:
    """Serves until a port has ended or the client is gone."""
    if is_text(websocket) and 2 * len(ports) > MOST_TEXT_CHANNELS:
        await websocket.close(is_orderly=False)  # a channel is one digit
        return
    coded = CodedWebSocket(websocket)
    pairs = [PortPair(_WebSocketPair(coded, 2 * number)) for number in range(len(ports))]
    serving = asyncio.ensure_future(_serve(coded, pairs, ports, open_port))
    reading = asyncio.ensure_future(_read(coded, pairs))
    gone = asyncio.ensure_future(websocket.client_gone())
    tasks = (serving, reading, gone)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await websocket.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    coded: CodedWebSocket, pairs: Sequence[PortPair], ports: Sequence[int], open_port: OpenPort
) -> None:
    for channel in range(2 * len(ports)):
        await coded.send(channel, ports[channel // 2].to_bytes(2, "little"))
    served = [
        asyncio.ensure_future(_pair(one, open_port, port)) for one, port in zip(pairs, ports, strict=True)
    ]
    try:
        await asyncio.wait(served, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def _pair(pair: PortPair, open_port: OpenPort, port: int) -> None:
    try:
        await pair.serve(open_port, port)
    finally:
        pair.end()


async def _read(coded: CodedWebSocket, pairs: Sequence[PortPair]) -> None:
    """Returns when the client sends no more at all."""
    with suppress(ProtocolError):
        async for part in coded.parts():
            number, is_error = divmod(part.channel, 2)
            if not is_error and 0 <= number < len(pairs):
                await pairs[number].receive(part.data, is_last=False)


class _WebSocketPair:
    """The channels of a port (`port_pair.PairStreams`)."""

    def __init__(self, coded: CodedWebSocket, channel: int) -> None:
        self._coded = coded
        self._channel = channel

    async def send(self, data: bytes) -> None:
        await self._coded.send(self._channel, data)

    async def end(self) -> None:
        raise ConnectionResetError  # it is over

    async def fail(self, problem: str) -> None:
        await self._coded.send(self._channel + 1, problem.encode())
