"""Faults in a cluster: agents are killed, the API server stops, a node is cut off. No pod is lost or runs twice."""

import os
import random
import signal

from tests.cluster.control_plane import ControlPlane
from tests.cluster.held import Held
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import IMPATIENT, SLEEP, Workspace, deployment, is_ready, pod, restarts
from tests.kernel.live_tree import cgroups_below, processes_in
from tests.kernel.waiting import eventually

KILLS = int(os.environ.get("EVENKEEL_KILLS", "8"))
SEED = int(os.environ.get("EVENKEEL_SEED", "1"))


def test_an_agent_killed_at_any_moment_loses_and_doubles_nothing(
    workspace: Workspace, nodes: list[Node], held: Held
):
    chosen = random.Random(SEED)
    workspace.apply(deployment("web", replicas=4, **held.spec))
    for _ in range(KILLS):
        workspace.kubectl("scale", "deployment/web", f"--replicas={chosen.randrange(0, 12)}")
        if chosen.random() < 0.5:
            workspace.kubectl("rollout", "restart", "deployment/web")
        node = chosen.choice(nodes)
        node.agent.kill()
        node.agent.start()
    workspace.kubectl("scale", "deployment/web", "--replicas=6")
    workspace.until_rolled_out("web")
    eventually(lambda: len(workspace.pods()) == 6, within_seconds=120)
    for one in workspace.pods():
        assert is_ready(one)
        assert restarts(one) == 0, one["status"]
    for node in nodes:
        eventually(lambda: node.pods() == workspace.uids_on(node.name))  # noqa: B023 - asked at once
    held.check()


def test_without_the_api_server_pods_go_on_and_it_learns_everything_afterwards(
    plane: ControlPlane, workspace: Workspace, nodes: list[Node]
):
    node = nodes[0]
    workspace.apply(
        pod("stays", *SLEEP, nodeName=node.name),
        pod("falls", *SLEEP, nodeName=node.name),
    )
    before = {name: workspace.until(name, is_ready) for name in ("stays", "falls")}

    def locally(name: str) -> dict:
        found = node.agent.client.pod_or_none(workspace.name, name) or {}
        return found.get("status", {}).get("containerStatuses", [{}])[0]

    def is_restarted(times: int) -> bool:
        """Whether the container runs again. A restart is counted earlier, when there is no process to kill yet."""
        one = locally("falls")
        return one.get("restartCount") == times and "running" in one["state"]

    plane.stop_api_server()
    try:
        fall(node, before["falls"])
        eventually(lambda: is_restarted(1))
        node.agent.kill()
        node.agent.start()
        assert locally("stays")["restartCount"] == 0
        fall(node, before["falls"])
        eventually(lambda: is_restarted(2))
    finally:
        plane.start_api_server()

    workspace.until("falls", lambda one: restarts(one) == 2)
    stayed = workspace.until("stays", is_ready)
    assert stayed["status"]["containerStatuses"] == before["stays"]["status"]["containerStatuses"]
    node.await_ready()


def fall(node: Node, one: dict) -> None:
    """Ends the processes of a pod's container from outside."""
    uid = one["metadata"]["uid"]
    (container,) = [
        path
        for path in cgroups_below(node.agent.root.paths()[0])
        if path.name == "main" and path.parent.name == f"pod{uid}"
    ]
    for pid in processes_in(container):
        os.kill(pid, signal.SIGKILL)


def test_the_pods_of_a_node_that_is_cut_off_start_elsewhere_and_end_when_it_is_back(
    workspace: Workspace, nodes: list[Node], make_node: MakeNode, held: Held
):
    with make_node("node3") as third:
        third.start()
        workspace.until_schedulable(third.name)
        workspace.apply(deployment("web", replicas=6, tolerations=IMPATIENT, **held.spec))
        workspace.until_rolled_out("web")
        cut_off = workspace.uids_on(third.name)
        assert cut_off

        third.place.network.run("ip", "link", "set", "eth0", "down")
        third.await_unreachable()
        eventually(lambda: len(workspace.ready_on(*(node.name for node in nodes))) == 6, within_seconds=120)
        assert third.pods() == cut_off  # no program can report it

        third.place.network.run("ip", "link", "set", "eth0", "up")
        third.place.network.run("ip", "route", "replace", "default", "via", "10.250.0.1")
        third.await_ready()
        eventually(
            lambda: not cut_off & {one["metadata"]["uid"] for one in workspace.pods()}, within_seconds=120
        )
        eventually(lambda: not cut_off & third.pods())
        workspace.kubectl("delete", "deployment", "web")
        workspace.until_gone()
        held.check()
