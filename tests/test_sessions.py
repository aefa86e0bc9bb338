"""Sessions over HTTP: the messages of Kubernetes' protocol, and what the server does for a client that uses it."""

import os
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.manifests import read_manifests
from evenkeel.cli.client import AgentRefused, Client
from evenkeel.cli.remote import Remote, Sinks, pod_path, relay
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.session_processes import Member, members
from evenkeel.runtime.sessions import SessionEnd, Streams, command_problem
from evenkeel.server.channels import RESIZE, STDERR, STDIN, STDOUT, end_of, size_message, size_of, status_of
from tests.fake_front import running, served
from tests.fake_sessions import SessionFront, refused

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: app, image: host, command: [sleep, "60"]}]}
"""
EXEC = pod_path("default", "web", "exec")


@pytest.fixture
def front():
    return SessionFront()


@pytest.fixture
def agent(front, tmp_path):
    with served(front, tmp_path) as agent:
        agent.call(front.put, running(read_manifests(POD, "test").or_raise().pods[0]))
        yield agent


def session(agent, *command, said=None, **flags):
    """What a command printed, and its end."""
    parameters = [("command", word) for word in command] + list(flags.items())
    remote = Remote(Client(agent.state_dir), EXEC, parameters)
    printed = {STDOUT: b"", STDERR: b""}

    def take(channel):
        def add(data):
            printed[channel] += data

        return add

    source = -1
    if said is not None:
        source, writable = os.pipe()

        def write():
            with os.fdopen(writable, "wb") as file:
                file.write(said)

        threading.Thread(target=write, daemon=True).start()
    try:
        end = relay(remote, source, Sinks({channel: take(channel) for channel in printed}))
    finally:
        remote.close()
        if source >= 0:
            os.close(source)
    return printed[STDOUT], printed[STDERR], end


@pytest.mark.parametrize(
    "end",
    [
        SessionEnd(),
        SessionEnd(3, "command terminated with exit code 3"),
        SessionEnd(127, "command 'x' was not found", "write the full path"),
        SessionEnd(1, "the supervisor went away"),
    ],
)
def test_an_end_is_the_same_after_its_way_over_the_wire(end):
    assert end_of(status_of(end)) == end


def test_kubectl_finds_the_exit_code_where_it_looks_for_it():
    assert b'"reason": "NonZeroExitCode"' in status_of(SessionEnd(3))
    assert b'{"reason": "ExitCode", "message": "3"}' in status_of(SessionEnd(3))


@given(st.binary())
def test_a_status_or_size_of_any_bytes_is_read_or_refused(data):
    assert end_of(data).exit_code >= 0 or end_of(data).problem
    size = size_of(data)
    assert size is None or len(size) == 2


@pytest.mark.parametrize(
    "text",
    [b'{"Width": 0, "Height": 1}', b'{"Width": true, "Height": 1}', b"[]", b'{"Width": 70000, "Height": 1}'],
)
def test_a_size_that_no_terminal_has_is_refused(text):
    assert size_of(text) is None
    assert size_of(size_message(80, 24)) == (80, 24)


def test_a_command_is_checked_before_it_is_handed_on():
    assert not command_problem(("ls", "-l"))
    assert "missing" in command_problem(())
    assert "NUL" in command_problem(("ls", "a\0b"))
    assert "more than" in command_problem(("x",) * 2000)


def test_the_processes_of_a_session_are_its_members_and_all_below_them():
    processes = {
        1: Member(0, 1, False),
        7: Member(1, 7, False),  # the leader
        8: Member(7, 7, False),
        9: Member(8, 9, False),  # it has a session of its own, and its parent is a member
        10: Member(1, 7, False),  # its parent has ended
        11: Member(7, 7, True),  # a zombie
        12: Member(1, 12, False),
    }
    assert members(processes, 7) == {7, 8, 9, 10}


def test_output_error_output_and_exit_code_come_back(agent, front):
    assert session(agent, "sh", "-c", "echo out; echo err >&2; exit 3") == (
        b"out\n",
        b"err\n",
        SessionEnd(3, "command terminated with exit code 3"),
    )
    assert front.asked == [
        ("default/web", "", ("sh", "-c", "echo out; echo err >&2; exit 3"), Streams(False, True, True, False))
    ]
    assert front.sessions[0].closed.wait(60)


def test_every_byte_passes_and_the_end_of_the_input_too(agent):
    said = os.urandom(1 << 20)
    assert session(agent, "cat", said=said, stdin="true") == (said, b"", SessionEnd())


def test_the_words_of_a_command_may_be_any_bytes(agent, front):
    word = os.fsdecode(b"\xff & \xfe=?#%")
    out, _, _ = session(agent, "printf", "%s", word)
    assert out == os.fsencode(word)


def test_a_size_is_handed_on(agent, front):
    remote = Remote(Client(agent.state_dir), EXEC, [("command", "cat"), ("stdin", "true")])
    remote.send(RESIZE, size_message(100, 30))
    remote.send(255, bytes((STDIN,)))
    assert relay(remote, -1, Sinks({})) == SessionEnd()
    assert front.sessions[0].sizes == [(100, 30)]
    remote.close()


@pytest.mark.parametrize("channel", [1, 3, 99])
def test_a_client_that_does_not_keep_to_the_protocol_is_dropped(agent, front, channel):
    remote = Remote(Client(agent.state_dir), EXEC, [("command", "cat"), ("stdin", "true")])
    remote.send(channel, b"x")
    with pytest.raises(EvenkeelError, match="the agent ended before the session did"):
        relay(remote, -1, Sinks({}))
    remote.close()
    assert front.sessions[0].closed.wait(60)


def test_a_refusal_is_a_sentence_before_the_websocket(agent, front):
    front.refusal = refused("container x does not run")
    with pytest.raises(AgentRefused, match="container x does not run"):
        session(agent, "true")
    with pytest.raises(AgentRefused, match='there is no pod "other"'):
        Remote(Client(agent.state_dir), pod_path("default", "other", "exec"), [("command", "true")])
    with pytest.raises(AgentRefused, match='stdin: "maybe" is not one of true or false'):
        session(agent, "true", stdin="maybe")
    with pytest.raises(EvenkeelError, match="the command is longer than"):
        session(agent, "x" * 20_000)


def test_a_command_that_has_ended_before_the_client_sends_anything_is_heard_to_its_end(agent, front):
    remote = Remote(Client(agent.state_dir), EXEC, [("command", "echo"), ("command", "said")])
    assert front.sessions[0].closed.wait(60)  # the agent has sent everything
    agent.call(lambda: None)
    remote.send(RESIZE, size_message(100, 30))
    printed: list[Any] = []
    assert relay(remote, -1, Sinks({STDOUT: printed.append})) == SessionEnd()
    assert b"".join(printed) == b"said\n"
    remote.close()
