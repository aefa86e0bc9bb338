"""gRPC by h2, with gRPC's own library as the server: the same calls, status codes and messages as gRPC's own client."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from h2.utilities import SizeLimitDict

from evenkeel.runtime.cri.grpc_channel import GrpcChannel, timeout_text
from evenkeel.runtime.cri.grpc_stream import GrpcError

MOST_BYTES = 8 << 20
WITHIN_SECONDS = 30.0
SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame of them
Calls = Callable[[bytes, Any], Awaitable[bytes]]


class Server:
    """Answers calls of the service `Test`. `ended` has the calls that a client gave up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = asyncio.Event()
        self.arrived = asyncio.Queue[float]()  # the seconds that each call has left
        self.ended = asyncio.Queue[str]()
        self.most_at_once = 0
        self._at_once = 0
        self._server: Any = None

    async def start(self, options: Sequence[tuple[str, int]] = ()) -> None:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES), *options])
        one = grpc.unary_unary_rpc_method_handler
        handlers = {
            "Echo": one(self._echo),
            "Hold": one(self._hold),
            "Refuse": one(self._refuse),
            "Metadata": one(self._metadata),
            "Count": grpc.unary_stream_rpc_method_handler(self._count),
            "Twice": grpc.unary_stream_rpc_method_handler(self._twice),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
        assert self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _echo(self, request: bytes, _: Any) -> bytes:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        return request

    async def _hold(self, request: bytes, context: Any) -> bytes:
        self.arrived.put_nowait(context.time_remaining())
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.ended.put_nowait("Hold")
            raise
        return request

    async def _refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode[request.decode()], "so nicht: ü\n100 %")
        return b""

    async def _metadata(self, _: bytes, context: Any) -> bytes:
        return repr(dict(context.invocation_metadata())).encode()

    async def _count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            for number in range(int(request)):
                yield str(number).encode()
            await self.held.wait()
        except asyncio.CancelledError:
            self.ended.put_nowait("Count")
            raise

    async def _twice(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield request
        yield request


@asynccontextmanager
async def served(
    directory: Path, *options: tuple[str, int], within_seconds: float = WITHIN_SECONDS
) -> AsyncIterator[tuple[Server, GrpcChannel]]:
    server = Server(directory / "s")
    await server.start(options)
    channel = GrpcChannel(str(server.path), MOST_BYTES)
    try:
        async with asyncio.timeout(within_seconds):
            yield server, channel
    finally:
        await channel.close()
        server.held.set()
        await server.stop()


async def echo(channel: GrpcChannel, text: bytes) -> bytes:
    return await channel.ask("/Test/Echo", text, WITHIN_SECONDS)


def test_the_memory_of_a_channel_does_not_grow_with_its_calls(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            for _ in range(20):
                await asyncio.gather(*(echo(channel, b"word") for _ in range(25)))
            kept = [len(one) for one in gc.get_objects() if isinstance(one, SizeLimitDict)]
            assert kept
            assert max(kept) <= 256

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20])
def test_a_message_of_any_size_goes_there_and_back(tmp_path, size):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            message = bytes(index % 251 for index in range(size))
            assert await echo(channel, message) == message
            assert await echo(channel, b"again") == b"again"

    asyncio.run(main())


def test_calls_at_once_share_a_connection_and_wait_while_the_server_takes_no_more(tmp_path):
    async def main() -> None:
        async with served(tmp_path, ("grpc.max_concurrent_streams", 3)) as (server, channel):
            await echo(channel, b"the server's settings are known now")
            texts = [str(number).encode() * 1000 for number in range(200)]
            assert await asyncio.gather(*(echo(channel, text) for text in texts)) == texts
            assert server.most_at_once <= 3

    asyncio.run(main())


@pytest.mark.parametrize("code", [one.name for one in grpc.StatusCode if one != grpc.StatusCode.OK])
def test_a_refusal_has_the_servers_code_and_words(tmp_path, code):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            with pytest.raises(GrpcError) as raised:
                await channel.ask("/Test/Refuse", code.encode(), WITHIN_SECONDS)
            assert (raised.value.code, raised.value.details) == (code, "so nicht: ü\n100 %")
            assert await echo(channel, b"on") == b"on"

    asyncio.run(main())


def test_a_method_that_is_not_there_is_unimplemented(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            with pytest.raises(GrpcError) as raised:
                await channel.ask("/Test/Nothing", b"", WITHIN_SECONDS)
            assert raised.value.code == "UNIMPLEMENTED"

    asyncio.run(main())


def test_metadata_comes_with_the_call(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            reported = await channel.ask(
                "/Test/Metadata", b"", WITHIN_SECONDS, (("containerd-namespace", "k8s.io"),)
            )
            assert b"'containerd-namespace': 'k8s.io'" in reported

    asyncio.run(main())


def test_a_call_ends_at_its_deadline_which_the_server_knows(tmp_path, monkeypatch):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with served(tmp_path, within_seconds=3 * WITHIN_SECONDS) as (server, channel):
            began = loop.time()
            waiting = asyncio.ensure_future(channel.ask("/Test/Hold", b"", WITHIN_SECONDS))
            left = await server.arrived.get()
            assert -0.5 - (loop.time() - began) < left - WITHIN_SECONDS < 0.5
            # Only the client's clock goes on, and the deadline is over for it.
            monkeypatch.setattr(loop, "time", lambda: time.monotonic() + WITHIN_SECONDS)
            with pytest.raises(GrpcError) as raised:
                await waiting
            monkeypatch.undo()
            assert raised.value.code == "DEADLINE_EXCEEDED"
            assert await server.ended.get() == "Hold"
            waiting = asyncio.ensure_future(channel.ask("/Test/Hold", b"done", WITHIN_SECONDS))
            await server.arrived.get()
            server.held.set()
            assert await waiting == b"done"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1m"),
        (0.0001, "1m"),
        (0.2, "200m"),
        (99_999.999, "99999999m"),
        (100_000, "100000S"),
        (86_400 * 365 * 10.0, "5256000M"),
        (1e11, "27777777H"),
        (1e30, "99999999H"),
    ],
)
def test_a_time_limit_has_at_most_eight_digits(seconds, text):
    """A server in Go resets a call with more."""
    assert timeout_text(seconds) == text


def test_the_server_learns_of_a_call_that_no_caller_waits_for_any_more(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (server, channel):
            waiting = asyncio.ensure_future(channel.ask("/Test/Hold", b"", WITHIN_SECONDS))
            await server.arrived.get()
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            assert await server.ended.get() == "Hold"
            assert await echo(channel, b"on") == b"on"

    asyncio.run(main())


def test_answers_without_end_are_read_as_they_come_until_nobody_reads_them(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (server, channel):
            answers = channel.answers("/Test/Count", b"3")
            assert [await anext(answers) for _ in range(3)] == [b"0", b"1", b"2"]
            await answers.aclose()
            assert await server.ended.get() == "Count"
            server.held.set()
            assert [one async for one in channel.answers("/Test/Count", b"1")] == [b"0"]

    asyncio.run(main())


def test_two_answers_where_one_is_wanted_are_a_failure(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (_, channel):
            with pytest.raises(GrpcError, match="not one message"):
                await channel.ask("/Test/Twice", b"x", WITHIN_SECONDS)

    asyncio.run(main())


def test_an_answer_that_is_too_large_fails_its_call_alone(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (server, _):
            small = GrpcChannel(str(server.path), 100_000)
            with pytest.raises(GrpcError) as raised:
                await echo(small, bytes(100_001))
            assert raised.value.code == "RESOURCE_EXHAUSTED"
            assert await echo(small, bytes(100_000)) == bytes(100_000)
            await small.close()

    asyncio.run(main())


def test_a_server_that_goes_fails_the_calls_on_it_and_the_next_call_finds_its_successor(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (server, channel):
            waiting = asyncio.ensure_future(channel.ask("/Test/Hold", b"", WITHIN_SECONDS))
            await server.arrived.get()
            await server.stop()
            with pytest.raises(GrpcError) as raised:
                await waiting
            assert raised.value.code in ("UNAVAILABLE", "CANCELLED")
            with pytest.raises(GrpcError) as raised:
                await echo(channel, b"")
            assert raised.value.code == "UNAVAILABLE"
            await server.start()
            assert await echo(channel, b"on") == b"on"

    asyncio.run(main())


def test_a_connection_that_is_kept_is_told_of_when_it_is_lost_and_made(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as (server, channel):
            await echo(channel, b"a connection is there already: that is no news")
            changes = asyncio.Queue[None]()
            keeping = asyncio.ensure_future(channel.keep_connected(lambda: changes.put_nowait(None)))
            await echo(channel, b"")
            assert changes.empty()
            await server.stop()
            await changes.get()
            await server.start()
            await changes.get()
            assert changes.empty()
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", "UNAVAILABLE"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "UNAVAILABLE"),
        (bytes(range(256)), "UNAVAILABLE"),
        (SETTINGS + b"\0\0\1\6\0\0\0\0\0\0", "UNAVAILABLE"),  # a ping must have eight bytes
        # Settings, and the server's farewell.
        (SETTINGS + b"\0\0\x08\7\0\0\0\0\0" + bytes(8), "UNAVAILABLE"),
        # Settings, and the reset of the first stream, with a code that is not known.
        (SETTINGS + b"\0\0\4\3\0\0\0\0\1" + b"\0\0\xff\xff", "INTERNAL"),
        # Settings, and headers of the first stream that end it: an HTTP status and nothing of gRPC's (404, 500).
        (SETTINGS + b"\0\0\1\1\5\0\0\0\1" + b"\x8d", "UNIMPLEMENTED"),
        (SETTINGS + b"\0\0\1\1\5\0\0\0\1" + b"\x8e", "UNKNOWN"),
        # The status 200, and then the end without gRPC's.
        (SETTINGS + b"\0\0\1\1\5\0\0\0\1" + b"\x88", "INTERNAL"),
        # The status 200, and a message that says that it is compressed.
        (
            SETTINGS + b"\0\0\1\1\4\0\0\0\1" + b"\x88" + b"\0\0\5\0\1\0\0\0\1" + b"\1\0\0\0\0",
            "INTERNAL",
        ),
    ],
)
def test_a_server_that_speaks_otherwise_fails_the_call_with_a_code(tmp_path, said, code):
    async def main() -> None:
        answering: list[asyncio.Task[None] | None] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answering.append(asyncio.current_task())
            await reader.readuntil(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            await reader.readuntil(b"request")
            writer.write(said)
            await writer.drain()
            if said.startswith(SETTINGS):
                await reader.read()  # until the client leaves
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        async with await asyncio.start_unix_server(answer, tmp_path / "s"), asyncio.timeout(WITHIN_SECONDS):
            channel = GrpcChannel(str(tmp_path / "s"), MOST_BYTES)
            with pytest.raises(GrpcError) as raised:
                await channel.ask("/Test/Echo", b"request", WITHIN_SECONDS)
            assert raised.value.code == code
            await channel.close()
            await asyncio.gather(*filter(None, answering))

    asyncio.run(main())
