"""Memory limits that another program changes are restored, and that is recorded."""

import pytest

from tests.kernel import agents
from tests.kernel.agents import MIB, READY_SECONDS, MakeUp, Up, pod
from tests.kernel.waiting import eventually

up = agents.up
pytestmark = pytest.mark.cgroup("v1", "v2")

LIMIT_BYTES = 64 * MIB
LIMITED = {"resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "16Mi"}}}


def repairs(agent: Up, *words: str) -> list[str]:
    reported = [f"{one['reason']} {one['message']}" for one in agent.client.lines("/events")]
    return [line for line in reported if all(word in line for word in words)]


@pytest.mark.req("E9")
def test_a_memory_limit_that_is_loosened_again_and_again_is_restored(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("limited", ["sleep", "100000"], container=LIMITED))
    agent.await_phase("limited", "Running")
    cgroup = agent.container("limited")
    is_v1 = "memory" in cgroup.directories
    file = "memory.limit_in_bytes" if is_v1 else "memory.max"
    for _ in range(3):
        # The pod's own limit is above it, and was not changed.
        cgroup.write(file, str(LIMIT_BYTES // 2))
        eventually(lambda: int(cgroup.read(file)) == LIMIT_BYTES, within_seconds=READY_SECONDS)
    eventually(lambda: repairs(agent, "DriftRepaired", file), within_seconds=READY_SECONDS)


@pytest.mark.req("E9")
@pytest.mark.cgroup("v1")
def test_an_oom_killer_that_is_turned_off_is_turned_on_again(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("limited", ["sleep", "100000"], container=LIMITED))
    agent.await_phase("limited", "Running")
    cgroup = agent.container("limited")
    cgroup.write("memory.oom_control", "1")
    eventually(
        lambda: "oom_kill_disable 0" in cgroup.read("memory.oom_control"), within_seconds=READY_SECONDS
    )
    eventually(lambda: repairs(agent, "DriftRepaired", "oom_kill_disable"), within_seconds=READY_SECONDS)
