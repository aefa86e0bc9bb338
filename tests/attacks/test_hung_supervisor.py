"""The supervisor hangs (SIGSTOP): the node reports it, still ends pods that must end, and starts another supervisor.

With containers it is containerd that hangs: tests/kernel/test_containers.py."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from evenkeel.pressure.watch.messages import SOCKET_NAME as WATCH_SOCKET
from evenkeel.runtime.process.supervisor_protocol import SOCKET_NAME
from tests.attacks.hostile import PATIENCE_SECONDS, not_ready
from tests.kernel.agents import MakeUp, Up, first_of, is_alive, pod
from tests.kernel.waiting import eventually

pytestmark = [
    pytest.mark.cgroup("v1", "v2"),
    pytest.mark.processes_only("containers are kept by their runtime"),
]

SLEEP = ["sleep", "100000"]
HUNG_SECONDS = PATIENCE_SECONDS


@contextmanager
def hung(pid: int | None) -> Iterator[int]:
    """Stopped, and let go at the end if it is still there."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_ready(agent: Up) -> bool:
    return not not_ready(agent)


def running(agent: Up, *names: str) -> dict[str, int]:
    for name in names:
        agent.apply(pod(name, SLEEP))
    for name in names:
        agent.await_phase(name, "Running")
    return {name: first_of(agent.container(name)) for name in names}


def test_a_pod_ends_though_its_supervisor_hangs(up: MakeUp):
    agent = up()
    agent.start()
    pids = running(agent, "ends", "stays")
    with hung(agent.supervisor_pid()):
        agent.client.delete("default", "ends")
        eventually(lambda: not is_alive(pids["ends"]), within_seconds=HUNG_SECONDS)
        eventually(lambda: not agent.pod("ends"), within_seconds=HUNG_SECONDS)
        assert is_alive(pids["stays"])
    agent.await_phase("stays", "Running")
    assert first_of(agent.container("stays")) == pids["stays"]


def test_a_node_whose_supervisor_hangs_says_so_and_gets_another(up: MakeUp):
    agent = up()
    agent.start()
    pids = running(agent, "stays")
    with hung(agent.supervisor_pid()) as supervisor:
        agent.apply(pod("late", SLEEP))
        # It is not ready, with a reason; or there is another supervisor already, and the pod runs.
        eventually(lambda: not_ready(agent) or agent.phase("late") == "Running", within_seconds=HUNG_SECONDS)
        agent.await_phase("late", "Running", within_seconds=2 * HUNG_SECONDS)
        assert agent.supervisor_pid() != supervisor
        eventually(lambda: is_ready(agent), within_seconds=HUNG_SECONDS)
        assert is_alive(pids["stays"])
        assert first_of(agent.container("stays")) == pids["stays"]
    eventually(lambda: not is_alive(supervisor), within_seconds=HUNG_SECONDS)  # there are not two for long


def test_a_new_agent_answers_though_the_supervisor_hangs(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    pids = running(agent, "stays")
    supervisor = agent.supervisor_pid()
    agent.kill()
    with hung(supervisor):
        agent.start()
        agent.apply(pod("late", SLEEP))
        agent.await_phase("late", "Running", within_seconds=2 * HUNG_SECONDS)
        assert is_alive(pids["stays"])
        agent.await_phase("stays", "Running")
        assert agent.restarts("stays") == 0
        assert first_of(agent.container("stays")) == pids["stays"]


def test_a_new_agent_finds_its_pods_though_the_sockets_of_its_processes_were_removed(up: MakeUp):
    agent = up("--eviction-hard=memory.available<1Mi")
    agent.start(stop_pods=False)
    pids = running(agent, "stays")
    supervisor, watch = agent.supervisor_pid(), agent.await_watch()
    agent.kill()
    for name in (SOCKET_NAME, WATCH_SOCKET):
        (agent.state / name).unlink()
    agent.start()
    agent.await_phase("stays", "Running", within_seconds=HUNG_SECONDS)
    assert agent.restarts("stays") == 0
    assert first_of(agent.container("stays")) == pids["stays"]
    eventually(lambda: is_ready(agent), within_seconds=2 * HUNG_SECONDS)
    assert agent.supervisor_pid() != supervisor
    assert agent.await_watch() != watch


def test_an_agent_ends_with_its_pods_though_the_supervisor_hangs(up: MakeUp):
    agent = up()
    agent.start()
    pids = running(agent, "stays")
    with hung(agent.supervisor_pid()):
        assert agent.stop() == 0
        assert not is_alive(pids["stays"])
