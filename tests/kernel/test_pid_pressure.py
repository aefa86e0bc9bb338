"""Process numbers that run out: a fork storm, on a node that was said to have few (B16)."""

from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, pod, processes_of, up
from tests.kernel.evictions import condition, reasons
from tests.kernel.small_disk import victims
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = pytest.mark.long

# Far below what the tests' own cgroup may have (conftest.PROCESSES), whatever the machine has.
NODE = "384Mi,2cpu,pids=200"
FLAGS = ("--eviction-hard=pid.available<100", "--eviction-pressure-transition-period=1s")
# Each process starts another one until the limit is reached. A shell that cannot fork ends, so the pod's first process
# only waits.
STORM = "while true; do sleep 1000 & done & wait; exec sleep 1000"
STORM_OF_STORMS = "f() { sleep 1000 & f & f & wait; }; f"


def busy(name: str, count: int, **spec: Any) -> dict:
    """A pod with some processes."""
    script = f"for i in $(seq {count}); do sleep 1000 & done; wait"
    return pod(name, ["sh", "-c", script], **spec)


def count(agent: Up, name: str) -> int:
    return len(processes_of(agent.container(name)))


@pytest.mark.parametrize("storm", [STORM, STORM_OF_STORMS])
@pytest.mark.req("B16", "E14")
def test_the_pod_that_starts_processes_without_end_is_evicted_and_no_other(up: MakeUp, storm: str):
    agent = up(*FLAGS, node=NODE)
    agent.start()
    agent.apply(busy("some", 20), pod("idle", ["sleep", "1000"]))
    eventually(
        lambda: agent.phase("some") == "Running" and count(agent, "some") == 21,
        details=lambda: agent.details_of("some"),
    )
    agent.await_phase("idle", "Running")
    before = processes_of(agent.container("some"))
    agent.apply(pod("storm", ["sh", "-c", storm], restartPolicy="Never"))
    status = agent.await_evicted("storm")
    assert "pid.available is " in status["message"]
    assert "default/some" in status["message"]  # the other pods that were considered
    eventually(lambda: "NodeHasPIDPressure" in reasons(agent))  # it is recorded after the pod was killed
    eventually(lambda: condition(agent, "PIDPressure") == "False", within_seconds=60)
    assert agent.phase("some") == agent.phase("idle") == "Running"
    after = processes_of(agent.container("some"))
    assert sorted(after) == sorted(before)
    assert eventually(lambda: victims(agent)) == ["default/storm"]  # recorded after it was carried out


@pytest.mark.req("B16")
def test_no_pod_is_admitted_while_process_numbers_are_short(up: MakeUp):
    agent = up(
        "--eviction-soft=pid.available<180", "--eviction-soft-grace-period=pid.available=10m", node=NODE
    )
    agent.start()
    agent.apply(busy("some", 30))
    agent.await_phase("some", "Running")  # its processes are there before a runtime has said that it is
    eventually(lambda: condition(agent, "PIDPressure") == "True")
    agent.apply(pod("late", ["sleep", "1000"]))
    status = agent.await_phase("late", "Failed")
    assert "PIDPressure" in status["message"]
    assert agent.phase("some") == "Running"
