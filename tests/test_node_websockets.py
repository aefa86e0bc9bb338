"""The server of a cluster's node: commands in pods over WebSockets, in the forms before version 5."""

import json

import pytest

from tests.models.node_servers import ALLOWED, NodeUnderTest, node
from tests.models.spdy_client import connected
from tests.models.websocket_client import BASE64, PLAIN, V4, V4_BASE64, WebSocketClient

__all__ = ["node"]

EXEC = "/exec/default/web/app?"
HAS_STATUS = (V4, V4_BASE64)
FORMS = (PLAIN, BASE64, V4, V4_BASE64, "")


def client_of(node: NodeUnderTest, target: str, *offered: str) -> WebSocketClient:
    connection = connected(node.port, node.trusting())
    return WebSocketClient(connection, target, *offered, headers={"Authorization": f"Bearer {ALLOWED}"})


def command(text: str) -> str:
    return f"command=sh&command=-c&command={text.replace(' ', '%20').replace(';', '%3B').replace('&', '%26')}"


@pytest.mark.parametrize("protocol", FORMS)
def test_a_command_has_its_streams_and_its_end_in_the_form_of_the_protocol(
    node: NodeUnderTest, protocol: str
):
    target = f"{EXEC}output=1&error=1&{command('echo a; echo b >&2; exit 3')}"
    with client_of(node, target, *filter(None, [protocol])) as client:
        assert client.protocol == protocol
        first, *said = client.messages()
    assert first == (1, b"")
    streams = {channel: b"".join(data for one, data in said if one == channel) for channel in (1, 2, 3)}
    assert (streams[1], streams[2]) == (b"a\n", b"b\n")
    if protocol in HAS_STATUS:
        assert json.loads(streams[3])["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    else:
        assert streams[3] == b"command terminated with exit code 3"
    assert all(one.closed.wait(30) for one in node.front.sessions)


@pytest.mark.parametrize("protocol", FORMS)
def test_nothing_is_reported_of_a_good_end_before_version_4(node: NodeUnderTest, protocol: str):
    with client_of(node, f"{EXEC}error=1&{command('true')}", *filter(None, [protocol])) as client:
        first, *said = client.messages()
    assert first == (2, b"")
    assert [json.loads(data)["status"] for _, data in said] == (["Success"] if protocol in HAS_STATUS else [])


@pytest.mark.parametrize("protocol", FORMS)
@pytest.mark.parametrize("size", [1, 2, 3, 100_000])
def test_input_reaches_the_command(node: NodeUnderTest, protocol: str, size: int):
    sent = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    target = f"{EXEC}input=1&output=1&{command(f'head -c {2 * size}')}"
    with client_of(node, target, *filter(None, [protocol])) as client:
        client.send(0, sent)
        client.send(1, b"for nobody")
        client.send(0, sent)
        said = b"".join(data for channel, data in client.messages() if channel == 1)
    assert said == sent * 2


def test_what_is_not_base64_ends_the_session(node: NodeUnderTest):
    with client_of(node, f"{EXEC}input=1&output=1&{command('cat')}", BASE64) as client:
        client.send_text("0%%%%")
        list(client.messages())
    (one,) = node.front.sessions
    assert one.closed.wait(30)


def test_a_client_that_leaves_ends_its_command(node: NodeUnderTest):
    with client_of(node, f"{EXEC}output=1&{command('sleep 60')}", PLAIN):
        pass
    (one,) = node.front.sessions
    assert one.closed.wait(30)


def test_a_protocol_that_kubelet_does_not_speak_is_refused(node: NodeUnderTest):
    for offered in ("v5.channel.k8s.io", "portforward.k8s.io"):
        with client_of(node, f"{EXEC}output=1&{command('true')}", offered) as client:
            assert client.protocol is None
    assert node.front.sessions == []


def test_without_the_right_nothing_is_opened(node: NodeUnderTest):
    headers = {"Authorization": "Bearer another", "Connection": "Upgrade", "Upgrade": "websocket"}
    assert node.ask(f"{EXEC}output=1&{command('true')}", headers=headers)[0] == 401
    assert node.front.sessions == []
