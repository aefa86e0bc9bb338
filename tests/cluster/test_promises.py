"""The promises to pods of a cluster: the demonstrations with pods that the API server gave to the node, and eviction
while there is no API server."""

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import Workspace, is_ready, pod
from tests.kernel.agents import MIB
from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

SIZE = "288Mi,2cpu"
SMALL_SHARE = 0.05
SPINS_SECONDS = 0.5  # of processor time: what starts a loop takes less
SPUN_SECONDS = 2.0  # of processor time, for shares that are no accident


@pytest.fixture
def node(make_node: MakeNode) -> Iterator[Node]:
    """One for each test, named before its workspace: pods of a node that has gone stay for long."""
    with make_node(f"promises-{secrets.token_hex(2)}", size=SIZE) as one:
        one.start()
        yield one


def allocator(node: Node, name: str, mib: int, *, request_mib: int = 0) -> dict[str, Any]:
    """Guaranteed with a request, and BestEffort without; it takes its memory and holds it."""
    amounts = {"memory": f"{request_mib}Mi", "cpu": "100m"}
    return pod(
        name,
        *(str(programs() / "grow"), "anon", str(mib * MIB), str(100 * MIB)),
        container={"resources": {"limits": amounts} if request_mib else {}},
        nodeName=node.name,
        restartPolicy="Never",
    )


def cgroup_of(node: Node, one: dict[str, Any]) -> Cgroup:
    return node.agent.of_uid(one["metadata"]["uid"], one["status"]["qosClass"])


def memory_bytes(node: Node, one: dict[str, Any]) -> int:
    """What its processes have allocated."""
    group = cgroup_of(node, one)
    counters = group.counters("memory.stat")
    return counters.get("total_rss", counters.get("anon", 0))


def until_they_hold(workspace: Workspace, node: Node, names: list[str], mib: int) -> None:
    ready = [workspace.until(name, is_ready) for name in names]
    eventually(lambda: all(memory_bytes(node, one) >= mib * MIB for one in ready))


def check_evicted(workspace: Workspace, names: list[str]) -> None:
    for name in names:
        status = workspace.until_phase(name, "Failed")["status"]
        assert status["reason"] == "Evicted", status
        (disruption,) = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
        assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")


def check_untouched(workspace: Workspace, names: list[str]) -> None:
    for name in names:
        one = workspace.get("pod", name)
        assert is_ready(one), one["status"]
        assert one["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.req("A25")
def test_guaranteed_pods_survive_a_barrage_of_best_effort_ones(node: Node, workspace: Workspace):
    survivors, attackers = [f"guaranteed-{i}" for i in range(2)], [f"besteffort-{i}" for i in range(6)]
    workspace.apply(*(allocator(node, name, 60, request_mib=80) for name in survivors))
    until_they_hold(workspace, node, survivors, 60)
    workspace.apply(*(allocator(node, name, 288) for name in attackers))
    check_evicted(workspace, attackers)
    check_untouched(workspace, survivors)


@pytest.mark.req("A25")
def test_a_node_full_of_best_effort_pods_is_emptied_by_guaranteed_ones(node: Node, workspace: Workspace):
    residents, arrivals = [f"besteffort-{i}" for i in range(5)], [f"guaranteed-{i}" for i in range(3)]
    workspace.apply(*(allocator(node, name, 52) for name in residents))
    until_they_hold(workspace, node, residents, 52)
    workspace.apply(*(allocator(node, name, 84, request_mib=94) for name in arrivals))
    until_they_hold(workspace, node, arrivals, 84)
    check_evicted(workspace, residents)
    check_untouched(workspace, arrivals)


@pytest.mark.req("A25")
def test_a_pod_without_a_cpu_request_is_squeezed_by_one_with(node: Node, workspace: Workspace):
    cpu = str(max(os.sched_getaffinity(0)))

    def spinner(name: str, resources: dict[str, Any]) -> dict[str, Any]:
        command = ("taskset", "-c", cpu, "timeout", "300", "sh", "-c", "while :; do :; done")
        return pod(name, *command, container={"resources": resources}, nodeName=node.name)

    def spun_seconds(one: dict[str, Any]) -> float:
        group = cgroup_of(node, one)
        if group.has("cpuacct.usage"):
            return int(group.read("cpuacct.usage")) / 1e9
        return group.counters("cpu.stat")["usage_usec"] / 1e6

    workspace.apply(spinner("idler", {}))
    idler = workspace.until("idler", is_ready)
    eventually(lambda: spun_seconds(idler) > SPUN_SECONDS)
    workspace.apply(spinner("requester", {"requests": {"cpu": "900m"}}))
    requester = workspace.until("requester", is_ready)
    eventually(lambda: spun_seconds(requester) > SPINS_SECONDS)
    before = spun_seconds(idler), spun_seconds(requester)
    eventually(lambda: spun_seconds(requester) - before[1] > SPUN_SECONDS)
    squeezed, squeezing = spun_seconds(idler) - before[0], spun_seconds(requester) - before[1]
    assert squeezed <= SMALL_SHARE * (squeezed + squeezing)

    workspace.kubectl("delete", "pod", "requester", "--wait=true")
    alone = spun_seconds(idler)
    eventually(lambda: spun_seconds(idler) - alone > SPUN_SECONDS)


def test_a_node_evicts_without_the_api_server_and_tells_it_afterwards(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode
):
    with make_node("alone", "--eviction-hard=memory.available<48Mi", size="384Mi,2cpu") as node:
        node.start()
        workspace.apply(allocator(node, "within", 64, request_mib=96))
        slow = allocator(node, "runaway", 1024)
        slow["spec"]["containers"][0]["command"][-1] = str(8 * MIB)
        workspace.apply(slow)
        workspace.until("within", is_ready)
        runaway = workspace.until("runaway", is_ready)["metadata"]["uid"]
        plane.stop_api_server()
        try:
            eventually(lambda: local_status(node, workspace, "runaway").get("reason") == "Evicted")
            eventually(lambda: runaway not in node.pods())
            node.agent.kill()
            node.agent.start()
        finally:
            plane.start_api_server()
        check_evicted(workspace, ["runaway"])
        check_untouched(workspace, ["within"])
        workspace.kubectl("delete", "pods", "--all", "--wait=false")
        workspace.until_gone()


def local_status(node: Node, workspace: Workspace, name: str) -> dict[str, Any]:
    found = node.agent.client.pod_or_none(workspace.name, name) or {}
    return found.get("status", {})
