"""Commands in running containers: their streams, their terminals, and that nothing of them is left."""

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.agents import MakeUp, Up, pod, processes_of, up
from tests.kernel.live_tree import files_below
from tests.kernel.sessions import MARK, at_terminal, begun, command, done, open_streams, sleepers
from tests.kernel.waiting import eventually
from tests.machines.packages import require
from tests.needing import needing

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")
ROUNDS = int(
    os.environ.get("EVENKEEL_SESSIONS", "40")
)  # of a command at a terminal, and of one through a pipe
AT_ONCE = 8


def running(up: MakeUp) -> Up:
    agent = up()
    agent.start()
    beside = {"name": "beside", "image": "host", "command": ["sleep", "100000"]}
    one = pod("web", ["sleep", "100000"])
    one["spec"]["containers"].append(beside)
    agent.apply(one)
    agent.await_phase("web", "Running")
    return agent


def test_a_command_has_streams_of_its_own_and_its_exit_code_is_ours(up: MakeUp):
    agent = running(up)
    both = done(agent, "exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert both.returncode == 3
    assert both.stdout == b"out\n"
    assert both.stderr == b"err\nevenkeel: command terminated with exit code 3\n"
    # Every byte, and the end of the input.
    everything = bytes(range(256)) * 4096
    assert done(agent, "exec", "-i", "web", "--", "cat", said=everything).stdout == everything
    assert done(agent, "exec", "web", "--", "cat").stdout == b""
    assert done(agent, "exec", "web", "--", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    # A process in the background does not hold the client.
    assert done(agent, "exec", "web", "--", "sh", "-c", f"sleep {MARK} & echo begun").stdout == b"begun\n"
    for pid in sleepers(agent):
        os.kill(pid, signal.SIGKILL)

    missing = done(agent, "exec", "web", "--", "no-such-program")
    assert missing.returncode == 127
    assert b"no-such-program" in missing.stderr
    assert done(agent, "exec", "web", "--", "/etc/passwd").returncode == 126
    other = done(agent, "exec", "web", "-c", "other", "--", "true")
    assert other.returncode == 1
    assert b'container "other" is not in pod "web"; it has: main, beside' in other.stderr
    nobody = done(agent, "exec", "nobody", "--", "true")
    assert nobody.returncode == 1
    assert b'there is no pod "nobody"' in nobody.stderr

    agent.apply(pod("ended", ["true"], restartPolicy="Never"))
    agent.await_phase("ended", "Succeeded")
    late = done(agent, "exec", "ended", "--", "true")
    assert late.returncode == 1
    assert b"does not run: it has ended with exit code 0" in late.stderr


def test_a_shell_at_a_terminal_sees_its_size_its_keys_and_nothing_of_ours(up: MakeUp):
    agent = running(up)
    with at_terminal(
        agent, "exec", "-it", "web", "-c", "beside", "--", "sh", columns=100, rows=30
    ) as terminal:
        terminal.await_shown("# ")
        assert terminal.is_raw()
        if agent.containerd:
            terminal.await_size(100, 30)  # containerd starts the command before it has its size
        terminal.type("stty size; tty; echo $TERM; echo shown''.\n")
        shown = terminal.await_shown("shown.")
        assert "30 100\r\n" in shown
        assert "/dev/pts/" in shown
        assert "xterm\r\n" in shown
        terminal.resize(77, 22)
        terminal.await_size(77, 22)
        terminal.type(f"sleep {MARK}\n")
        eventually(lambda: sleepers(agent, container="beside"))
        terminal.type("\x03")
        terminal.type("echo code''=$?\n")
        terminal.await_shown("code=130")
        terminal.type("exit 7\n")
        assert terminal.exit_code() == 7
    with at_terminal(agent, "exec", "-it", "web", "--", "ls", "/proc/self/fd") as terminal:
        listed = terminal.await_shown("3\r\n").split()
        assert listed == ["0", "1", "2", "3"]  # the last is the directory itself
        assert terminal.exit_code() == 0


def test_a_client_that_is_killed_takes_its_command_with_it(up: MakeUp):
    agent = running(up)
    sleeping = ["sh", "-c", f"sleep {MARK} & trap '' HUP; echo begun; sleep {MARK}; sleep {MARK}"]
    with begun(agent, "exec", "web", "--", *sleeping) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        eventually(lambda: len(sleepers(agent)) == 2)
        client.kill()
        eventually(lambda: not sleepers(agent))
    # The agent waits for room in the command's input, and still sees that the client is gone.
    with begun(agent, "exec", "-i", "web", "--", "sleep", MARK, stdin=subprocess.PIPE) as client:
        eventually(lambda: sleepers(agent))
        assert client.stdin is not None
        os.set_blocking(client.stdin.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while os.write(client.stdin.fileno(), b"x" * 65536):
                pass
        client.kill()
        eventually(lambda: not sleepers(agent))
    with at_terminal(agent, "exec", "-it", "web", "--", "sleep", MARK) as terminal:
        eventually(lambda: sleepers(agent))
        os.kill(terminal.pid, signal.SIGKILL)
        eventually(lambda: not sleepers(agent))


def test_output_that_no_client_reads_costs_the_agent_no_memory_and_no_other_client_waits(up: MakeUp):
    agent = running(up)
    with begun(agent, "exec", "web", "--", "cat", "/dev/zero") as client:
        assert client.stdout is not None
        assert client.stdout.read(1 << 20) == bytes(1 << 20)
        before = resident_bytes(agent.pid)
        assert done(agent, "exec", "web", "--", "echo", "beside").stdout == b"beside\n"
        assert resident_bytes(agent.pid) - before < 8 << 20
        client.kill()
        eventually(lambda: len(processes_of(agent.container("web"))) == 1)


def test_when_the_agent_is_killed_its_commands_end(up: MakeUp):
    agent = running(up)
    with begun(agent, "exec", "web", "--", "sh", "-c", f"sleep {MARK}; sleep {MARK}") as client:
        eventually(lambda: sleepers(agent))
        agent.kill()
        assert client.wait(60) == 1
        agent.start()
        eventually(lambda: not sleepers(agent))
    assert done(agent, "exec", "web", "--", "echo", "again").stdout == b"again\n"


@pytest.mark.parametrize("up", ["cri"], indirect=True)  # a supervisor knows its commands
def test_a_command_ends_whose_agent_was_killed_before_it_knew_its_process(up: MakeUp):
    agent = running(up)
    with begun(agent, "exec", "web", "--", "sh", "-c", f"sleep {MARK}; sleep {MARK}") as client:
        eventually(lambda: sleepers(agent))
        agent.kill()
        assert client.wait(60) == 1
        (noted,) = [path for path in files_below(agent.state / "pods") if path.parent.parent.name == "exec"]
        noted.write_text(json.dumps(json.loads(noted.read_text()) | {"pid": 0}))
        agent.start()
        eventually(lambda: not sleepers(agent))


@pytest.mark.processes_only("containers have no supervisor")
def test_when_the_supervisor_is_killed_its_commands_end_and_the_client_gets_a_message(up: MakeUp):
    agent = running(up)
    sleeping = f"sleep {MARK} & echo begun; sleep {MARK}; sleep {MARK}"
    with begun(agent, "exec", "web", "--", "sh", "-c", sleeping, stderr=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        eventually(lambda: len(sleepers(agent)) == 2)
        supervisor = agent.supervisor_pid()
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        _, reported = client.communicate(timeout=60)
        assert client.returncode == 1
        assert b"the supervisor of containers went away" in reported
        eventually(lambda: not sleepers(agent))
    eventually(lambda: done(agent, "exec", "web", "--", "echo", "again").stdout == b"again\n")


@pytest.mark.cgroup("host")
def test_many_commands_leave_neither_a_process_nor_a_descriptor(up: MakeUp):
    agent = running(up)
    assert done(agent, "exec", "web", "--", "true").returncode == 0  # what is opened once is open now
    daemons = [agent.pid] if agent.containerd else [agent.pid, agent.supervisor_pid() or 0]
    before = [Counter(open_streams(pid)) for pid in daemons]

    def at_a_terminal(number: int) -> str:
        """What is wrong."""
        code = number % 100
        with at_terminal(
            agent, "exec", "-it", "web", "--", "sh", "-c", f"echo shown; exit {code}"
        ) as terminal:
            terminal.await_shown("shown")
            seen = terminal.exit_code()
        return "" if seen == code else f"exit code {seen} and not {code} at a terminal"

    def through_a_pipe(number: int) -> str:
        if number % 3 == 0:
            seen = done(agent, "exec", "-i", "web", "--", "cat", said=b"said")
            return "" if seen.stdout == b"said" else str(seen)
        if number % 3 == 1:
            seen = done(agent, "exec", "web", "--", "sh", "-c", f"exit {number % 100}")
            return "" if seen.returncode == number % 100 else str(seen)
        with begun(agent, "exec", "web", "--", "sh", "-c", f"echo begun; sleep {MARK}") as client:
            assert client.stdout is not None
            line = client.stdout.readline()
        return "" if line == b"begun\n" else str(line)  # its client was killed

    with ThreadPoolExecutor(AT_ONCE) as several:
        wrong = [*several.map(at_a_terminal, range(ROUNDS)), *several.map(through_a_pipe, range(ROUNDS))]
    assert [one for one in wrong if one] == []
    eventually(lambda: len(processes_of(agent.container("web"))) == 1)
    # The last connection of before may have been open a moment longer, so there may be fewer now.
    eventually(
        lambda: (
            not any(Counter(open_streams(pid)) - known for pid, known in zip(daemons, before, strict=True))
        )
    )


@pytest.mark.cgroup("host")
@pytest.mark.processes_only("tmux is at the client's end")
def test_a_shell_in_tmux(up: MakeUp, tmux: str, tmp_path: Path):
    """A terminal that a person would use, with a program that draws."""
    agent = running(up)
    shell = " ".join(command(agent, "exec", "-it", "web", "--", "sh"))
    session, server = f"evenkeel{os.getpid()}", [tmux, "-S", str(tmp_path / "tmux")]

    def ask(*words: str) -> str:
        return subprocess.run(
            [*server, *words], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    ask("new-session", "-d", "-s", session, "-x", "90", "-y", "20", shell)
    try:
        eventually(lambda: "#" in ask("capture-pane", "-p", "-t", session))
        ask("send-keys", "-t", session, "stty size; printf '\\033[1mbold\\033[0m\\n'", "Enter")
        eventually(lambda: "20 90" in ask("capture-pane", "-p", "-t", session))
        ask("send-keys", "-t", session, f"sleep {MARK}", "Enter")
        eventually(lambda: sleepers(agent))
        ask("send-keys", "-t", session, "C-c")
        eventually(lambda: not sleepers(agent))
        ask("kill-session", "-t", session)
        eventually(lambda: len(processes_of(agent.container("web"))) == 1)
    finally:
        subprocess.run([*server, "kill-server"], capture_output=True, check=False, timeout=60)


@pytest.fixture
def tmux() -> str:
    with needing():
        require(["tmux"])
    return "/usr/bin/tmux"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
