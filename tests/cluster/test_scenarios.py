"""Scenarios that upstream tests with a kubelet of its own, and cannot test with our agent: agents that are away,
reservations, and the order of evictions. The scenarios are those of test/e2e_node."""

import os
import signal
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import SLEEP, Workspace, is_ready, pod
from tests.kernel.agents import MIB, first_of, is_alive
from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

NODE_MIB = 384
KILLED = 128 + signal.SIGKILL


def test_a_pod_deleted_while_no_agent_runs_is_ended_by_the_next(workspace: Workspace, nodes: list[Node]):
    """Deletion over a restart: the object stays until a node has said that nothing of the pod is left."""
    node = nodes[0]
    workspace.apply(pod("deleted", *SLEEP, nodeName=node.name))
    one = workspace.until("deleted", is_ready)
    node.agent.kill()
    try:
        workspace.kubectl("delete", "pod", "deleted", "--wait=false")
        assert workspace.get("pod", "deleted")["metadata"]["deletionTimestamp"]
        assert one["metadata"]["uid"] in node.pods()
    finally:
        node.agent.start()
    eventually(lambda: not workspace.get("pod", "deleted"))
    assert one["metadata"]["uid"] not in node.pods()


def test_a_pod_deleted_by_force_while_no_agent_runs_is_ended_by_the_next(
    workspace: Workspace, nodes: list[Node]
):
    node = nodes[0]
    workspace.apply(pod("forced", *SLEEP, nodeName=node.name))
    uid = workspace.until("forced", is_ready)["metadata"]["uid"]
    node.agent.kill()
    try:
        workspace.kubectl("delete", "pod", "forced", "--force", "--grace-period=0", "--wait=false")
        eventually(lambda: not workspace.get("pod", "forced"))
        assert uid in node.pods()
    finally:
        node.agent.start()
    eventually(lambda: uid not in node.pods())


def test_what_ends_while_no_agent_runs_is_reported_by_the_next(workspace: Workspace, nodes: list[Node]):
    node = nodes[0]
    workspace.apply(
        pod("once", *SLEEP, nodeName=node.name, restartPolicy="Never"),
        pod("again", *SLEEP, nodeName=node.name),
    )
    before = [workspace.until(name, is_ready) for name in ("once", "again")]
    firsts = [first_of(container(node, one)) for one in before]
    node.agent.kill()
    try:
        for pid in firsts:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, firsts)))
    finally:
        node.agent.start()
    once = workspace.until_phase("once", "Failed")["status"]["containerStatuses"][0]
    assert once["state"]["terminated"]["exitCode"] == KILLED
    assert once["restartCount"] == 0

    def was_restarted(one: dict[str, Any]) -> bool:
        return is_ready(one) and one["status"]["containerStatuses"][0]["restartCount"] == 1

    again = workspace.until("again", was_restarted)["status"]["containerStatuses"][0]
    assert again["lastState"]["terminated"]["exitCode"] == KILLED


def test_what_is_reserved_is_neither_allocatable_nor_within_the_pods_limit(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode
):
    reserved = (
        "--kube-reserved=cpu=100m,memory=32Mi",
        "--system-reserved=cpu=200m,memory=48Mi",
        "--eviction-hard=memory.available<16Mi",
    )
    with make_node("reserved", *reserved, size=f"{NODE_MIB}Mi,2cpu") as node:
        node.start()
        status = plane.get("node", node.name)["status"]
        assert (status["capacity"]["cpu"], status["capacity"]["memory"]) == ("2", f"{NODE_MIB}Mi")
        assert status["allocatable"]["cpu"] == "1700m"
        assert status["allocatable"]["memory"] == f"{NODE_MIB - 32 - 48 - 16}Mi"
        pods = node.agent.cgroup()
        name = "memory.max" if pods.has("memory.max") else "memory.limit_in_bytes"
        assert int(pods.read(name)) == (NODE_MIB - 32 - 48) * MIB

        fits = {"requests": {"memory": "200Mi"}}
        workspace.apply(pod("fits", *SLEEP, nodeName=node.name, container={"resources": fits}))
        workspace.until("fits", is_ready)
        workspace.apply(pod("second", *SLEEP, nodeName=node.name, container={"resources": fits}))
        refused = workspace.until_phase("second", "Failed")["status"]
        assert refused["reason"] == "OutOfmemory"
        assert refused["message"].startswith("Pod was rejected: ")
        workspace.kubectl("delete", "pods", "--all", "--wait=false")
        workspace.until_gone()


def test_memory_is_taken_from_best_effort_first_and_never_from_those_within_their_requests(
    workspace: Workspace, make_node: MakeNode
):
    """Memory eviction by class and by usage over the request. A pod that keeps growing is evicted too."""
    with make_node("ordered", "--eviction-hard=memory.available<64Mi", size=f"{NODE_MIB}Mi,2cpu") as node:
        node.start()

        def grows(name: str, mib: int, resources: dict[str, Any], rate: int) -> dict[str, Any]:
            command = (str(programs() / "grow"), "anon", str(mib * MIB), str(rate))
            return pod(
                name, *command, container={"resources": resources}, nodeName=node.name, restartPolicy="Never"
            )

        workspace.apply(
            grows("within", 64, {"requests": {"memory": "96Mi"}}, 0),
            grows("guaranteed", 48, {"limits": {"memory": "64Mi", "cpu": "50m"}}, 0),
            grows("besteffort", 48, {}, 0),
        )
        for name in ("within", "guaranteed", "besteffort"):
            workspace.until(name, is_ready)
        workspace.apply(grows("burstable", 1024, {"requests": {"memory": "16Mi"}}, 32 * MIB))
        evicted = [workspace.until_phase(name, "Failed") for name in ("besteffort", "burstable")]
        assert [one["status"]["reason"] for one in evicted] == ["Evicted"] * 2
        ends = [finished(one) for one in evicted]
        assert ends[0] <= ends[1]
        for name in ("within", "guaranteed"):
            assert is_ready(workspace.get("pod", name))
        workspace.kubectl("delete", "pods", "--all", "--wait=false")
        workspace.until_gone()


def finished(one: dict[str, Any]) -> str:
    return str(one["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])


def container(node: Node, one: dict[str, Any]) -> Cgroup:
    group = node.agent.of_uid(one["metadata"]["uid"], one["status"]["qosClass"])
    return Cgroup({key: path / "main" for key, path in group.directories.items()})
