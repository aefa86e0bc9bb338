"""The server of a cluster's node: ports of pods over WebSockets, in the forms before SPDY was tunnelled."""

import socket
import threading
from collections.abc import Iterator

import pytest

from evenkeel.runtime.sessions import SessionRefused
from tests.models.node_servers import ALLOWED, NodeUnderTest, node
from tests.models.spdy_client import connected
from tests.models.websocket_client import PLAIN, V4, V4_BASE64, WebSocketClient

__all__ = ["node"]

PORTS = "/portForward/default/web?"
FORMS = (V4, V4_BASE64, "")


class Echo:
    """A server that sends back what it gets, and ends after the word `end`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.ended = threading.Semaphore(0)  # once for each connection that is over
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(one,), daemon=True).start()

    def _echo(self, one: socket.socket) -> None:
        last = b""
        with one:
            while last != b"end" and (chunk := one.recv(1 << 16)):
                one.sendall(chunk)
                last = (last + chunk)[-3:]  # it may come in parts
        self.ended.release()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    one = Echo()
    yield one
    one.close()


def client_of(node: NodeUnderTest, query: str, *offered: str) -> WebSocketClient:
    connection = connected(node.port, node.trusting())
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    return WebSocketClient(connection, PORTS + query, *offered, headers=headers)


def numbered(port: int) -> bytes:
    return port.to_bytes(2, "little")


@pytest.mark.parametrize("protocol", FORMS)
def test_bytes_go_both_ways_until_the_pod_ends(node: NodeUnderTest, echo: Echo, protocol: str):
    sent = bytes(range(256)) * 1000
    with client_of(node, f"port={echo.port}", *filter(None, [protocol])) as client:
        assert client.protocol == protocol
        client.send(0, sent)
        client.send(0, b"end")
        first, second, *rest = client.messages()
    assert (first, second) == ((0, numbered(echo.port)), (1, numbered(echo.port)))
    assert {channel for channel, _ in rest} == {0}
    assert b"".join(data for _, data in rest) == sent + b"end"


@pytest.mark.parametrize("query", ["port={0}&port={1}", "port={0},{1}"])
def test_each_port_has_two_channels_of_its_own(node: NodeUnderTest, echo: Echo, query: str):
    other = Echo()
    try:
        with client_of(node, query.format(echo.port, other.port), V4) as client:
            messages = client.messages()
            ports = [next(messages) for _ in range(4)]
            assert ports == [(n, numbered((echo.port, other.port)[n // 2])) for n in range(4)]
            client.send(2, b"second")
            assert next(messages) == (2, b"second")
            client.send(0, b"first")
            assert next(messages) == (0, b"first")
            client.send(1, b"for nobody")
            client.send(9, b"for nobody")
            client.send(2, b"end")
            assert list(messages) == [(2, b"end")], "the end of one is the end of all"
        assert echo.ended.acquire(timeout=30)
    finally:
        other.close()


def test_a_port_that_nobody_has_is_reported_on_its_channel(node: NodeUnderTest):
    node.front.refusal = SessionRefused("port 80 cannot be reached")
    with client_of(node, "port=80", V4) as client:
        *_, last = client.messages()
    assert last == (1, b"port 80 cannot be reached")


def test_a_client_that_leaves_ends_the_connection_to_the_pod(node: NodeUnderTest, echo: Echo):
    with client_of(node, f"port={echo.port}", V4) as client:
        client.send(0, b"here")
        assert (0, b"here") in client.messages()
    assert echo.ended.acquire(timeout=30)


@pytest.mark.parametrize(
    "query",
    ["", "port=", "port=0", "port=65536", "port=http", "port=80,", "&".join(["port=80"] * 129)],
)
def test_what_is_no_port_is_refused_before_the_websocket(node: NodeUnderTest, query: str):
    headers = {
        "Authorization": f"Bearer {ALLOWED}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": V4,
    }
    status, said = node.ask(PORTS + query, headers=headers)
    assert status == 400
    assert "port: " in said


def test_more_channels_than_digits_are_closed_at_once_as_text(node: NodeUnderTest, echo: Echo):
    with client_of(node, ",".join([f"port={echo.port}", *[str(echo.port)] * 5]), V4_BASE64) as client:
        assert list(client.messages()) == []


def test_a_protocol_that_kubelet_does_not_speak_here_is_refused(node: NodeUnderTest, echo: Echo):
    for offered in (PLAIN, "v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"):
        with client_of(node, f"port={echo.port}", offered) as client:
            assert client.protocol is None
