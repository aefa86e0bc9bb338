"""The agent or the supervisor has no descriptor left: no container is doubled, none is lost, no end is invented, and
the node says what is wrong. `test_fault_storms.py` has the same at random moments."""

import http.client
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_ready, await_said, hostile, not_ready
from tests.attacks.starvation import starved
from tests.kernel.agents import MakeUp, Up, first_of, pod
from tests.kernel.waiting import eventually
from tests.reserved_port import ReservedPort

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

SLEEP = ["sleep", "100000"]
SHORTAGE = "can open no more files"
ENDS_WHEN_ASKED = "trap 'exit 7' USR1; echo begun; while :; do sleep 0.1; done"


class KeptConnection(http.client.HTTPConnection):
    """A connection to the agent's socket that was made before."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(str(path))

    def asked(self, path: str) -> tuple[int, str]:
        self.request("GET", path)
        answer = self.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture
def port() -> Iterator[int]:
    with closing(ReservedPort()) as reserved:
        yield reserved.number


def running(agent: Up, *pods: dict[str, Any]) -> dict[str, int]:
    """The first processes of the pods, by name."""
    agent.apply(*pods)
    names = [one["metadata"]["name"] for one in pods]
    for name in names:
        agent.await_phase(name, "Running")
    return {name: first_of(agent.container(name)) for name in names}


def container_state(agent: Up, name: str) -> dict[str, Any]:
    """The phase alone says less: a pod whose container could not be started, and will be, is Running."""
    (container,) = agent.status(name)["containerStatuses"]
    state: dict[str, Any] = container["state"]
    return state


def assert_unharmed(agent: Up, name: str, pid: int) -> None:
    agent.await_phase(name, "Running")
    assert agent.restarts(name) == 0, agent.details_of(name)
    assert first_of(agent.container(name)) == pid, agent.details_of(name)


@pytest.mark.processes_only("containers are kept by their runtime")
def test_a_supervisor_without_descriptors_says_so_and_starts_later_what_it_could_not(up: MakeUp):
    agent = up()
    agent.start()
    pids = running(agent, pod("stays", SLEEP))
    supervisor = agent.supervisor_pid()
    assert supervisor is not None
    with starved(supervisor):
        agent.apply(pod("late", SLEEP))
        agent.await_that("late", lambda status: "too many open files" in str(status).lower())
        eventually(lambda: SHORTAGE in not_ready(agent), within_seconds=PATIENCE_SECONDS)
        assert "running" not in container_state(agent, "late")
    eventually(lambda: "running" in container_state(agent, "late"), within_seconds=PATIENCE_SECONDS)
    await_ready(agent)
    assert agent.supervisor_pid() == supervisor
    assert_unharmed(agent, "stays", pids["stays"])


def test_an_agent_without_descriptors_blames_no_container_and_forgets_none(up: MakeUp, port: int):
    agent = up()
    agent.start()
    probe = {"tcpSocket": {"port": port}, "periodSeconds": 1, "timeoutSeconds": 30}
    probes = {
        "startupProbe": {**probe, "failureThreshold": 100},
        "livenessProbe": {**probe, "failureThreshold": 1},
    }
    serves = ("httpd", "-f", "-p", f"127.0.0.1:{port}")
    pids = running(
        agent,
        hostile(agent, "serves", "busybox", *serves, container=probes),
        hostile(agent, "ends", "sh", "-c", ENDS_WHEN_ASKED, restartPolicy="Never"),
        hostile(agent, "stays", *SLEEP),
    )
    await_said(agent, "ends", "begun")
    agent.await_that("serves", lambda status: status["containerStatuses"][0].get("started"))
    with closing(KeptConnection(agent.state / "agent.sock")) as kept:
        assert kept.asked("/readyz") == (200, "ok")
        with starved(agent.pid):
            status, why = kept.asked("/readyz")
            assert (status, SHORTAGE in why) == (500, True), why
            os.kill(pids["ends"], signal.SIGUSR1)
            # The agent says in its log that it cannot probe.
            eventually(
                lambda: "liveness probe of container main" in agent.log_tail(),
                within_seconds=PATIENCE_SECONDS,
                details=agent.log_tail,
            )
    await_ready(agent)
    (ended,) = agent.await_phase("ends", "Failed")["containerStatuses"]
    assert ended["state"]["terminated"]["exitCode"] == 7, ended
    assert_unharmed(agent, "serves", pids["serves"])
    assert_unharmed(agent, "stays", pids["stays"])
    agent.apply(hostile(agent, "late", *SLEEP))
    agent.await_phase("late", "Running")
