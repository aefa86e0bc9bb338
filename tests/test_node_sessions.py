"""The server of a cluster's node: commands in pods and connections to them, over SPDY."""

import contextlib
import json
import os
import socket
import threading

import pytest

from evenkeel.server.kubelet.spdy_frames import Ping
from tests.fake_sessions import refused
from tests.models.node_servers import ALLOWED, a_pod, node
from tests.models.spdy_client import PORTS, SpdyClient

__all__ = ["node"]

EXEC = "/exec/default/web/app?output=1&error=1"


def session(node, command, *, stdin=None, more=""):
    """What a command printed on both streams, and its status."""
    words = "".join(f"&command={word}" for word in command)
    target = f"/exec/default/web/app?output=1&error=1{'&input=1' if stdin is not None else ''}{words}{more}"
    with SpdyClient(
        node.port, node.trusting(), target, headers={"Authorization": f"Bearer {ALLOWED}"}
    ) as client:
        assert client.status == 101
        error = client.open(streamType="error")
        source = client.open(streamType="stdin") if stdin is not None else 0
        out, err = client.open(streamType="stdout"), client.open(streamType="stderr")
        if stdin is not None:
            client.send(source, stdin, is_last=True)
        printed, complained, status = client.until_ended(out, err, error)
        return printed, complained, json.loads(status)


def test_a_command_has_its_streams_and_its_exit_code(node):
    printed, complained, status = session(node, ["sh", "-c", "echo%20a;echo%20b%3E%262;exit%203"])
    assert (printed, complained) == (b"a\n", b"b\n")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert session(node, ["cat"], stdin=b"said")[0] == b"said"
    assert all(one.closed.wait(30) for one in node.front.sessions)


def test_a_pod_is_found_by_its_uid_too(node):
    uid = a_pod().metadata.uid
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    for segment, status in ((uid, 101), ("another", 404)):
        target = f"/exec/default/web/{segment}/app?output=1&command=true"
        with SpdyClient(node.port, node.trusting(), target, headers=headers) as client:
            assert client.status == status


def test_a_ping_is_answered_and_a_strange_stream_refused(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(node.port, node.trusting(), f"{EXEC}&command=cat&input=1", headers=headers) as client:
        for kind in ("error", "stdin", "stdout", "stderr"):
            client.open(streamType=kind)
        client.ping(5)
        assert client.next_frame() == Ping(5)
        with pytest.raises(AssertionError, match="refused"):
            client.open(streamType="another")


def test_a_client_that_leaves_ends_its_command(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(
        node.port, node.trusting(), f"{EXEC}&command=sleep&command=60", headers=headers
    ) as client:
        for kind in ("error", "stdout", "stderr"):
            client.open(streamType=kind)
    (one,) = node.front.sessions
    assert one.closed.wait(30)


def test_a_client_that_opens_no_streams_or_sends_no_spdy_ends_its_command(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    for sent in (b"", b"\x80\x03\x00\x01\x00\xff\xff\xff", b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n"):
        with SpdyClient(
            node.port, node.trusting(), f"{EXEC}&command=sleep&command=60", headers=headers
        ) as client:
            assert client.status == 101
            client.connection.sendall(sent) if sent else None
    assert all(one.closed.wait(30) for one in node.front.sessions)
    assert len(node.front.sessions) == 4


def test_a_refused_session_is_an_answer_in_words(node):
    node.front.refusal = refused("container app does not run")
    assert node.ask(f"{EXEC}&command=true", method="POST", headers={
        "Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io",
    }) == (409, "container app does not run; try another")  # fmt: skip


def test_another_protocol_is_refused(node):
    assert node.ask(f"{EXEC}&command=true", method="POST")[0] == 400
    for protocol in ("v1.channel.k8s.io", ""):
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
        assert node.ask(f"{EXEC}&command=true", method="POST", headers=headers)[0] == 403
    assert node.front.sessions == []


@contextlib.contextmanager
def echo():
    """The port of a server that says back what it hears, of each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(one):
            with one:
                while part := one.recv(1 << 16):
                    one.sendall(part)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def pair(client, port, number):
    headers = {"port": str(port), "requestID": str(number)}
    return client.open(streamType="error", **headers), client.open(streamType="data", **headers)


def test_a_connection_for_ports_has_many_beside_each_other(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    target = "/portForward/default/web"
    with echo() as port, SpdyClient(
        node.port, node.trusting(), target, protocol=PORTS, headers=headers
    ) as client:  # fmt: skip
        pairs = [pair(client, port, number) for number in range(10)]
        said = [os.urandom(50_000) for _ in pairs]
        for (_, data), text in zip(pairs, said, strict=True):
            client.send(data, text, is_last=True)
        assert client.until_ended(*(data for _, data in pairs)) == said
        assert client.until_ended(*(error for error, _ in pairs)) == [b""] * 10
        assert node.front.asked == [("default/web", port)] * 10


def test_a_port_that_nobody_has_is_told_on_the_error_stream(node):
    node.front.refusal = refused("port 1 of the pod cannot be reached")
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(
        node.port, node.trusting(), "/portForward/default/web", protocol=PORTS, headers=headers
    ) as client:
        error, data = pair(client, 1, 0)
        assert client.until_ended(error, data) == [b"port 1 of the pod cannot be reached", b""]
        with pytest.raises(AssertionError, match="refused"):
            client.open(streamType="data", port="70000", requestID="1")


def test_a_connection_that_the_client_resets_is_closed_at_the_pod(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with socket.create_server(("127.0.0.1", 0)) as listening, SpdyClient(
        node.port, node.trusting(), "/portForward/default/web", protocol=PORTS, headers=headers
    ) as client:  # fmt: skip
        _, data = pair(client, listening.getsockname()[1], 0)
        pod, _ = listening.accept()
        with pod:
            pod.settimeout(30)
            client.reset(data)
            assert pod.recv(1) == b""
