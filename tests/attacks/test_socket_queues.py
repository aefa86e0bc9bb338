"""Memory in queues of sockets, which the kernel charges to no cgroup, is the pod's that holds it."""

import pytest

from tests.attacks.hostile import await_said, details_of, hostile
from tests.kernel.agents import MIB, Up
from tests.kernel.evictions import FLAGS as EVICTION_FLAGS
from tests.kernel.evictions import await_grown, grow, reasons
from tests.kernel.planned import memory_bytes

pytestmark = pytest.mark.cgroup("v1", "v2")

FLAGS = EVICTION_FLAGS  # 384Mi for pods: one is evicted when they use more than 336Mi
LIMIT_MIB, WANTED_MIB = 64, 112
HOARDED_MIB, INNOCENT_MIB = 192, 160
LIMITED = {"resources": {"limits": {"memory": f"{LIMIT_MIB}Mi"}}}


def assert_limit_holds(agent: Up, name: str, kind: str) -> None:
    agent.apply(
        hostile(agent, name, "queue", kind, str(WANTED_MIB), container=LIMITED, restartPolicy="Never")
    )
    status = agent.await_phase(name, "Failed")
    (main,) = status["containerStatuses"]
    assert "wait in queues of sockets" in main["state"]["terminated"]["message"], details_of(agent, name)
    assert "above its memory limit of 64Mi" in main["state"]["terminated"]["message"]
    assert "MemoryLimitExceeded" in reasons(agent, name)


@pytest.mark.req("A19")
@pytest.mark.parametrize("kind", ["netlink", "replies", "hidden"])
def test_a_limit_holds_for_queues_of_netlink_sockets(agent: Up, kind: str):
    assert_limit_holds(agent, f"hoards-{kind}", kind)


@pytest.mark.req("A19")
@pytest.mark.cgroup("v1")
@pytest.mark.processes_only(
    "a runtime makes a container's cgroup when it starts it: its first sockets are not counted"
)
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_limit_holds_for_buffers_of_the_internets_protocols(agent: Up, kind: str):
    """On cgroup v2 the kernel charges them."""
    assert_limit_holds(agent, f"hoards-{kind}", kind)


def test_queues_within_the_limit_are_the_pods_own_business(agent: Up):
    within = str(LIMIT_MIB // 2)
    agent.apply(
        hostile(agent, "frugal", "queue", "netlink", within, container=LIMITED),
        hostile(
            agent, "hoards", "queue", "netlink", str(WANTED_MIB), container=LIMITED, restartPolicy="Never"
        ),
    )
    await_said(agent, "frugal")
    agent.await_phase("hoards", "Failed")
    assert agent.phase("frugal") == "Running"
    assert agent.restarts("frugal") == 0


@pytest.mark.req("E14")
def test_the_pod_that_holds_the_queues_is_evicted_and_not_one_whose_memory_is_counted(agent: Up):
    agent.apply(hostile(agent, "hoards", "queue", "netlink", str(HOARDED_MIB)))
    await_said(agent, "hoards")
    assert memory_bytes(agent.container("hoards")) < 32 * MIB
    agent.apply(grow("innocent", "anon", INNOCENT_MIB))
    message = agent.await_evicted("hoards")["message"]
    assert "default/hoards" in message
    assert "socket queues 1" in message, message
    await_grown(agent, "innocent", INNOCENT_MIB)
    assert agent.phase("innocent") == "Running"
    assert agent.restarts("innocent") == 0
