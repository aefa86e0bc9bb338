"""A critical pod that lacks room on a node of a real cluster: others end for it, as with a kubelet."""

from typing import Any

from tests.cluster.nodes import MakeNode
from tests.cluster.workspaces import SLEEP, Workspace, condition, is_ready, pod
from tests.kernel.waiting import eventually


def asking(memory: str) -> dict[str, Any]:
    return {"resources": {"requests": {"memory": memory}, "limits": {"memory": memory}}}


def critical(name: str, memory: str, node: str) -> dict[str, Any]:
    more: dict[str, Any] = {"nodeName": node, "priorityClassName": "system-node-critical"}
    return pod(name, *SLEEP, container=asking(memory), **more)


def test_a_critical_pod_takes_the_room_of_another(make_node: MakeNode, workspace: Workspace):
    with make_node("crowded", size="512Mi,2cpu") as node:
        node.start()
        large = pod("large", *SLEEP, container=asking("350Mi"), nodeName=node.name)
        small = pod("small", *SLEEP, container=asking("50Mi"), nodeName=node.name)
        workspace.apply(large, small)
        for name in ("large", "small"):
            workspace.until(name, is_ready)
        workspace.apply(critical("critical", "200Mi", node.name))
        workspace.until("critical", is_ready)
        preempted = workspace.until_phase("large", "Failed")
        assert preempted["status"]["reason"] == "Preempting"
        assert condition(preempted, "DisruptionTarget") == "True"
        assert is_ready(workspace.get("pod", "small"))
        said = ("get", "events", "--field-selector=reason=Preempting", "--output=name")
        eventually(lambda: workspace.kubectl(*said))
        workspace.apply(critical("too-large", "400Mi", node.name))
        assert workspace.until_phase("too-large", "Failed")["status"]["reason"] == "OutOfmemory"
        assert is_ready(workspace.get("pod", "small")), "nobody ends for a pod that would not fit anyway"
