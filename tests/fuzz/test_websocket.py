"""Frames of a WebSocket: whatever a client sends is read or ends its session, and says nothing that was not sent."""

import asyncio
import struct
from typing import Any

import h11

from evenkeel.runtime.sessions import Part
from evenkeel.server.channels import PROTOCOLS
from evenkeel.server.websocket import WebSocket
from tests.fuzz.mutation import mutated, seeds

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x11\x22\x33\x44"


def frame(opcode: int, payload: bytes = b"", *, is_last: bool = True, is_masked: bool = True) -> bytes:
    first = (0x80 if is_last else 0) | opcode
    mask = 0x80 if is_masked else 0
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, mask | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, mask | 126, size)
    else:
        head = struct.pack(">BBQ", first, mask | 127, size)
    if not is_masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))


SAMPLES = [
    frame(BINARY, b"\x00hello")
    + frame(BINARY, b'\x04{"Width":80,"Height":24}')
    + frame(CLOSE, b"\x03\xe8bye"),
    frame(BINARY, b"\x00be", is_last=False) + frame(PING, b"x" * 125) + frame(CONTINUATION, b"gun"),
    frame(TEXT, b"\x00" + "žluťoučký".encode()) + frame(PONG) + frame(BINARY, b"\xff\x00"),
    frame(BINARY, b"\x00" + b"y" * 300) + frame(BINARY) + frame(CLOSE),
    frame(BINARY, b"\x00" + b"z" * 70_000),
    frame(BINARY, b"\x00unmasked", is_masked=False) + frame(CLOSE, b"\x00"),
    struct.pack(">BBQ", 0x82, 0xFF, (1 << 63) - 1) + MASK + b"\x00endless",
    struct.pack(">BBQ", 0x89, 0xFF, 1 << 40) + MASK + b"a ping of a tebibyte",
    b"\xff" * 64,
]


class Sink:
    """What a WebSocket writes to."""

    transport: Any = None

    def __init__(self) -> None:
        self.transport = self
        self.written = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None:
        """Returns nothing for any name: it is no TLS connection."""

    def write(self, data: bytes) -> None:
        self.written += len(data)

    async def drain(self) -> None: ...


async def heard(data: bytes) -> tuple[list[Part], int]:
    head = h11.Request(
        method="GET",
        target="/api/v1/namespaces/default/pods/web/exec?command=true",
        headers=[
            ("Host", "x"),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Protocol", PROTOCOLS[0]),
        ],
    )
    socket, reader, sink = WebSocket(head, PROTOCOLS), asyncio.StreamReader(), Sink()
    writer: Any = sink
    await socket.accept(reader, writer, data[:7])
    reader.feed_data(data[7:])
    reader.feed_eof()
    parts = [part async for part in socket.parts()]
    await socket.close()
    return parts, sink.written


def test_frames_of_any_kind_are_read_or_end_the_session():
    whole, _ = asyncio.run(heard(SAMPLES[0]))
    assert b"".join(part.data for part in whole if part.channel == 0) == b"hello"
    for seed in seeds():
        data = mutated(SAMPLES, seed)
        try:
            parts, written = asyncio.run(asyncio.wait_for(heard(data), 30))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert sum(len(part.data) for part in parts) <= len(data), f"seed {seed}"
        assert written <= 1000 + 2 * len(data), f"seed {seed}"
