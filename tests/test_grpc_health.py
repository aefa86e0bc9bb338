"""gRPC probes, asked of a real gRPC server and of servers that are none."""

import asyncio
from contextlib import asynccontextmanager, closing, suppress

import grpc
import pytest

from evenkeel.agent.grpc_health import ask_grpc
from evenkeel.agent.probe_requests import Answer
from evenkeel.api.container import GRPCAction
from tests.reserved_port import ReservedPort

SERVING, NOT_SERVING = 1, 2
LONG = "service-" * 40  # longer than one byte of protobuf counts


class Health:
    """A server of grpc.health.v1.Health. `services` have a status each; it may also be slow, or have no such
    service."""

    def __init__(self, services, *, delay_seconds=0.0, name="grpc.health.v1.Health"):
        self.services = services
        self.delay_seconds = delay_seconds
        self.name = name
        self.asked: list[bytes] = []

    async def check(self, request, context):
        self.asked.append(request)
        await asyncio.sleep(self.delay_seconds)
        for service, status in self.services.items():
            if request == _message(service):
                return bytes((0x08, status)) if status else b""
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown\nservice")
        raise AssertionError("abort raises")

    @asynccontextmanager
    async def served(self):
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self.check)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self.name, {"Check": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)


def _message(service: str) -> bytes:
    name = service.encode()
    if not name:
        return b""
    length = bytes((len(name),)) if len(name) < 128 else bytes((len(name) & 0x7F | 0x80, len(name) >> 7))
    return b"\x0a" + length + name


def asked_of(health: Health, service: str = "", timeout_seconds: float = 20.0) -> Answer:
    async def ask():
        async with health.served() as port:
            return await ask_grpc(GRPCAction(port, service), timeout_seconds)

    return asyncio.run(ask())


@pytest.mark.parametrize("service", ["", "shop", LONG])
def test_a_service_that_is_serving_is_healthy(service):
    health = Health({service: SERVING})
    assert asked_of(health, service) == Answer(True)
    assert health.asked == [_message(service)]


@pytest.mark.parametrize(
    "health, reported",
    [
        (Health({"": NOT_SERVING}), "the service is NOT_SERVING"),
        (Health({"": 0}), "the service is UNKNOWN"),
        (Health({"": 77}), "the service is 77"),
        (Health({"other": SERVING}), "gRPC status 5: unknown"),
        (Health({"": SERVING}, name="shop.Carts"), "does not have the service grpc.health.v1.Health"),
    ],
)
def test_every_other_answer_is_a_failure_with_its_reason(health, reported):
    answer = asked_of(health)
    assert answer.is_success is False
    assert reported in answer.message
    assert answer.message.isprintable()


def test_a_server_that_does_not_answer_in_time_fails():
    answer = asked_of(Health({"": SERVING}, delay_seconds=30.0), timeout_seconds=0.2)
    assert answer.is_success is False
    assert "no answer within 0.2s" in answer.message


HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    "said, reported",
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "closed without an answer"),  # to HTTP/2 a frame of 5 MB
        (HTTP2_SETTINGS, "closed without an answer"),
        (HTTP2_SETTINGS + b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x02", "ended the request"),
        (HTTP2_SETTINGS + b"\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping" * 10_000, "more than 16 KiB"),
        (HTTP2_SETTINGS + b"\x00\x00\x02\x01\x05\x00\x00\x00\x01\xff\xff", "is not HTTP/2"),
    ],
)
def test_what_is_no_grpc_is_a_failure_and_is_read_up_to_a_limit(said, reported):
    async def ask():
        has_ended = asyncio.Event()

        async def answer(reader, writer):
            with suppress(ConnectionError):  # the probe hangs up when it knows enough
                await reader.read(1000)
                writer.write(said)
                writer.write_eof()
                await reader.read()
            writer.transport.abort()
            has_ended.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            answered = await ask_grpc(GRPCAction(server.sockets[0].getsockname()[1]), 20.0)
            await has_ended.wait()
            return answered

    answer = asyncio.run(ask())
    assert answer.is_success is False
    assert reported in answer.message


def test_a_port_where_nobody_listens_is_a_failure():
    with closing(ReservedPort()) as port:
        answer = asyncio.run(ask_grpc(GRPCAction(port.number), 20.0))
    assert answer.is_success is False
    assert "Connection refused" in answer.message
