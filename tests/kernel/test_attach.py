"""A container's own streams: `attach`, `run -it` and `run -i`, and that nothing of them is left."""

import os
import select
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, first_of, pod, processes_of, up
from tests.kernel.sessions import MARK, at_terminal, begun, done, open_streams, sleepers
from tests.kernel.waiting import eventually
from tests.machines.container_images import TEST

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")
ROUNDS = int(
    os.environ.get("EVENKEEL_SESSIONS", "30")
)  # of a client at a terminal, and of one through a pipe
AT_ONCE = 8
ECHO = 'echo ready; while read line; do echo "got $line"; done; echo ended; sleep 100000'


def image(agent: Up) -> list[str]:
    """Flags of `run` for the runtime."""
    return ["--image", TEST] if agent.containerd else []


def with_streams(name: str, script: str, **fields: bool) -> dict[str, Any]:
    return pod(name, ["sh", "-c", script], container=fields, restartPolicy="Never")


def logged(agent: Up, name: str) -> str:
    return done(agent, "logs", name).stdout.decode()


def test_a_pipe_to_a_container_stays_open_from_client_to_client_or_ends_with_the_first(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        with_streams("open", ECHO, stdin=True),
        with_streams("once", ECHO, stdin=True, stdinOnce=True),
        with_streams("none", "while :; do echo ready; sleep 0.1; done"),
    )
    for name in ("open", "once", "none"):
        agent.await_phase(name, "Running")
        eventually(lambda name=name: "ready" in logged(agent, name))
    # Its input stays open, and the output is that from now on.
    for word in (b"one", b"two"):
        with begun(agent, "attach", "-i", "open", stdin=subprocess.PIPE) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(word + b"\n")
            client.stdin.close()  # half of the connection
            assert client.stdout.readline() == b"got " + word + b"\n"
            client.stdin = None
    eventually(lambda: logged(agent, "open") == "ready\ngot one\ngot two\n")  # a client may hear it before
    # This one gets the end of the input.
    with begun(agent, "attach", "-i", "once", stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"three\n")
        client.stdin.close()
        client.stdin = None
        while (line := client.stdout.readline()) != b"ended\n":
            assert line in (b"ready\n", b"got three\n")
    eventually(lambda: logged(agent, "once") == "ready\ngot three\nended\n")
    if agent.containerd is None:
        again = done(agent, "attach", "-i", "once", said=b"four\n")
        assert again.returncode == 1
        assert b"standard input has ended with its first client" in again.stderr

    refused = done(agent, "attach", "-i", "none", said=b"")
    assert refused.returncode == 1
    assert b'container "main" has no standard input (leave -i out, or write stdin: true' in refused.stderr
    # Several clients see the same, and a client that is killed leaves the container alone.
    with begun(agent, "attach", "open") as one, begun(agent, "attach", "open") as other:
        with begun(agent, "attach", "-i", "open", stdin=subprocess.PIPE) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            while not all(map(has_data, (one, other))):  # until all are attached
                client.stdin.write(b"all\n")
                client.stdin.flush()
                assert client.stdout.readline() == b"got all\n"
            client.kill()
        one.kill()
        assert other.stdout is not None
        assert other.stdout.readline() == b"got all\n"
    assert agent.phase("open") == "Running"
    # The end of the container is the end of its clients.
    with begun(agent, "attach", "none") as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        os.kill(first_of(agent.container("none")), signal.SIGKILL)
        client.stdout.read()
        assert client.wait(60) == 0
    agent.await_phase("none", "Failed")
    ended = done(agent, "attach", "none")
    assert b'container "main" of pod "none" does not run' in ended.stderr


def has_data(client: "subprocess.Popen[bytes]") -> bool:
    assert client.stdout is not None
    return bool(select.select((client.stdout,), (), (), 0)[0])


def test_large_amounts_pass_in_both_directions(up: MakeUp):
    agent = up()
    agent.start()
    everything = bytes(range(256)) * 12_000  # 3 MB
    agent.apply(with_streams("cat", "exec cat", stdin=True, stdinOnce=True))
    agent.await_phase("cat", "Running")
    seen = done(agent, "attach", "-i", "cat", said=everything)
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout == everything
    counted = done(agent, "run", "--rm", "-i", *image(agent), "--", "wc", "-c", said=everything)
    assert counted.returncode == 0, counted.stderr
    assert counted.stdout.strip() == str(len(everything)).encode()


def test_run_with_a_terminal_is_as_a_shell_of_ones_own(up: MakeUp):
    agent = up()
    agent.start()
    with at_terminal(
        agent, "run", "-it", "--rm", *image(agent), "try", "--", "sh", columns=100, rows=30
    ) as terminal:
        if agent.containerd:
            eventually(lambda: "running" in str(agent.status("try")))
            terminal.type("\n")
        terminal.await_shown("# ")
        if agent.containerd:
            terminal.await_size(100, 30)  # containerd starts the command before it has its size
        terminal.type("stty size; tty; echo $TERM; ls -l /proc/self/fd | wc -l; echo shown''.\n")
        shown = terminal.await_shown("shown.")
        assert terminal.is_raw()
        assert "30 100\r\n" in shown
        assert "/dev/pts/0" in shown or "/dev/console" in shown
        assert "xterm\r\n" in shown
        terminal.resize(77, 22)
        terminal.await_size(77, 22)
        terminal.type(f"sleep {MARK}\n")
        eventually(lambda: sleepers(agent, "try"))  # before, the terminal may be the shell's still
        terminal.type("\x03")
        terminal.type("echo code''=$?\n")
        terminal.await_shown("code=130")
        terminal.type("exit 7\n")
        assert terminal.exit_code() == 7
    agent.await_gone("try")


def test_run_without_a_terminal_passes_standard_input_output_and_exit_codes(up: MakeUp):
    agent = up()
    agent.start()
    script = "echo early; echo other >&2; cat; exit 5"
    seen = done(
        agent, "run", "--rm", "-i", *image(agent), "pipe", "--", "sh", "-c", script, said=b"said\nlast"
    )
    assert (seen.returncode, seen.stdout) == (5, b"early\nsaid\nlast")
    assert b"other\n" in seen.stderr
    agent.await_gone("pipe")
    alone = done(agent, "run", "--rm", *image(agent), "--", "sh", "-c", "cat; echo alone")
    assert (alone.returncode, alone.stdout) == (0, b"alone\n")
    wrong = done(agent, "run", "-t", "--", "sh")
    assert b"-t needs -i" in wrong.stderr
    late = done(agent, "run", "name", "-i", "--", "sh")
    assert b"flags come before the name" in late.stderr
    piped = done(agent, "run", "--rm", "-it", *image(agent), "--", "cat", said=b"no terminal")
    assert (piped.returncode, piped.stdout) == (0, b"no terminal")
    assert b"-t has no effect" in piped.stderr


def test_a_terminal_outlives_the_agent_and_its_clients(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    agent.apply(with_streams("term", "exec sh -i", stdin=True, tty=True))
    agent.await_phase("term", "Running")
    with at_terminal(agent, "attach", "-it", "term") as terminal:
        terminal.type("X=kept\n")
        terminal.type("echo first''-client\n")
        terminal.await_shown("first-client")
        os.kill(terminal.pid, signal.SIGKILL)
    agent.kill()
    agent.start(stop_pods=False)
    with at_terminal(agent, "attach", "-it", "term") as terminal:
        terminal.type("echo $X''-and-here\n")
        terminal.await_shown("kept-and-here")
        os.kill(terminal.pid, signal.SIGHUP)
        assert terminal.exit_code() == 128 + signal.SIGHUP
    assert agent.phase("term") == "Running"
    eventually(lambda: "kept-and-here" in logged(agent, "term"))
    # Without -t, what the terminal shows can be read through a pipe.
    with begun(agent, "attach", "-i", "term", stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"exit 3\n")
        client.stdin.flush()
        assert b"exit 3" in client.stdout.read()
        assert client.wait(60) == 0
    agent.await_phase("term", "Failed")


@pytest.mark.cgroup("host")
def test_many_clients_leave_neither_a_process_nor_a_descriptor(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        with_streams("pipe", 'while read a; do echo "got $a"; done', stdin=True),
        with_streams("term", "exec sh -i", stdin=True, tty=True),
    )
    agent.await_phase("pipe", "Running")
    agent.await_phase("term", "Running")
    daemons = [agent.pid] if agent.containerd else [agent.pid, agent.supervisor_pid() or 0]
    assert _attached(agent, "x")
    before = [Counter(open_streams(pid)) for pid in daemons]

    def at_a_terminal(number: int) -> None:
        with at_terminal(agent, "attach", "-it", "term") as terminal:
            terminal.type(f"echo n{number}''n\n")
            terminal.await_shown(f"n{number}n")

    def through_a_pipe(number: int) -> str:
        """What is wrong."""
        if number % 2:
            return "" if _attached(agent, f"n{number}") else f"no answer to {number}"
        with begun(agent, "attach", "pipe"):
            return ""  # it is killed, at any moment

    with ThreadPoolExecutor(AT_ONCE) as several:
        list(several.map(at_a_terminal, range(ROUNDS)))
        assert [wrong for wrong in several.map(through_a_pipe, range(ROUNDS)) if wrong] == []
    eventually(
        lambda: (
            not any(Counter(open_streams(pid)) - known for pid, known in zip(daemons, before, strict=True))
        )
    )
    assert [len(processes_of(agent.container(name))) for name in ("pipe", "term")] == [1, 1]


def _attached(agent: Up, word: str) -> bool:
    """Whether the container answers to a word."""
    with begun(agent, "attach", "-i", "pipe", stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(f"{word}\n".encode())
        client.stdin.flush()
        wanted = f"got {word}\n".encode()
        return any(line == wanted for line in client.stdout)
