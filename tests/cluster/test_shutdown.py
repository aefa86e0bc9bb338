"""A node that is shut down reports it, and ends its pods first."""

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode
from tests.cluster.workspaces import SLEEP, Workspace, condition, deployment, is_ready, pod, shell
from tests.kernel.waiting import eventually

LOITERS = shell("trap '' TERM; while :; do sleep 0.1; done")


def test_the_cluster_knows_the_end_of_node_and_pods_when_the_agent_has_ended(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode
):
    with make_node(
        "leaving", "--shutdown-grace-period=4s", "--shutdown-grace-period-critical-pods=1s"
    ) as node:
        node.start()
        workspace.apply(
            pod("quick", *SLEEP, nodeName=node.name),
            pod("slow", *LOITERS, nodeName=node.name, terminationGracePeriodSeconds=600),
            pod("done", *shell("exit 0"), nodeName=node.name, restartPolicy="Never"),
        )
        for name in ("quick", "slow"):
            workspace.until(name, is_ready)
        workspace.until_phase("done", "Succeeded")
        assert node.agent.stop() == 0

        assert node.condition("Ready")["status"] == "False"
        assert node.condition("Ready")["message"] == "the node is being shut down"
        for name in ("quick", "slow"):
            seen = workspace.get("pod", name)
            assert (seen["status"]["phase"], seen["status"]["reason"]) == ("Failed", "Terminated")
            assert condition(seen, "DisruptionTarget") == "True"
            assert condition(seen, "Ready") == "False"
            assert "terminated" in seen["status"]["containerStatuses"][0]["state"]
        assert workspace.get("pod", "done")["status"]["phase"] == "Succeeded"
        assert node.pods() == set()

        node.start()  # it is a node again, and what it ended stays ended
        assert workspace.get("pod", "quick")["status"]["phase"] == "Failed"
        assert node.pods() == set()


def test_the_pods_of_a_deployment_are_elsewhere_after_a_shutdown(
    workspace: Workspace, nodes: list, make_node: MakeNode
):
    with make_node("leaving2") as node:
        node.start()
        workspace.until_schedulable(node.name)
        workspace.apply(deployment("web", *SLEEP, replicas=6))
        workspace.until_rolled_out("web")
        assert node.pods()
        node.agent.stop()
        others = {one.name for one in nodes}

        def are_elsewhere() -> bool:
            living = [one for one in workspace.pods(app="web") if is_ready(one)]
            return len(living) == 6 and {one["spec"]["nodeName"] for one in living} <= others

        eventually(are_elsewhere, within_seconds=60)


def test_a_shutdown_without_the_api_server_ends_in_time_and_is_reported_by_the_next_agent(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode
):
    with make_node("silent") as node:
        node.start()
        workspace.apply(pod("quick", *SLEEP, nodeName=node.name))
        workspace.until("quick", is_ready)
        plane.stop_api_server()
        try:
            assert node.agent.stop() == 0
        finally:
            plane.start_api_server()
        assert workspace.get("pod", "quick")["status"]["phase"] == "Running"
        node.start()
        seen = workspace.until_phase("quick", "Failed")
        assert seen["status"]["reason"] == "Terminated"
