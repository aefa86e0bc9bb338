"""Pods that were applied on a machine itself, as the cluster sees them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Node
from tests.cluster.workspaces import SLEEP, Workspace, condition, is_ready, pod, shell
from tests.kernel.waiting import eventually

MIRROR = "kubernetes.io/config.mirror"


@pytest.fixture
def node(nodes: list[Node]) -> Iterator[Node]:
    """One of the nodes that all share; its directory of manifests is empty afterwards."""
    yield nodes[0]
    for file in nodes[0].agent.manifests.iterdir():
        file.unlink()


def write(node: Node, workspace: Workspace, *objects: dict[str, Any]) -> Path:
    for one in objects:
        one["metadata"]["namespace"] = workspace.name
    return node.agent.write(f"{workspace.name}.yaml", *map(json.dumps, objects))


def local_container(node: Node, workspace: Workspace, name: str) -> dict[str, Any]:
    found = node.agent.client.pod_or_none(workspace.name, name)
    assert found is not None
    return found["status"]["containerStatuses"][0]


def test_the_cluster_sees_a_pod_of_the_machine_for_as_long_as_it_is_there(
    plane: ControlPlane, workspace: Workspace, node: Node
):
    file = write(node, workspace, pod("local", *SLEEP, labels={"app": "local"}))
    seen = workspace.until(f"local-{node.name}", is_ready)
    assert seen["spec"]["nodeName"] == node.name
    assert seen["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "10m", "memory": "16Mi"}
    assert seen["metadata"]["labels"] == {"app": "local"}
    (owner,) = seen["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", plane.get("node", node.name)["metadata"]["uid"])
    assert seen["metadata"]["annotations"][MIRROR]
    assert seen["status"]["phase"] == "Running"
    assert seen["status"]["hostIP"] == node.place.address
    assert seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
    assert node.pods().isdisjoint({seen["metadata"]["uid"]})  # the mirror itself does not run

    file.unlink()
    eventually(lambda: not workspace.pods())


def test_a_mirror_that_is_deleted_is_made_again_and_the_pod_does_not_notice(workspace: Workspace, node: Node):
    write(node, workspace, pod("local", *SLEEP))
    name = f"local-{node.name}"
    before = workspace.until(name, is_ready)
    container = local_container(node, workspace, "local")
    for how in (("--wait=false",), ("--force", "--grace-period=0")):
        workspace.kubectl("delete", "pod", name, *how)
        before = workspace.until(
            name,
            lambda one: is_ready(one) and one["metadata"]["uid"] != before["metadata"]["uid"],  # noqa: B023
        )
    assert local_container(node, workspace, "local") == container


def test_a_mirror_follows_its_pod_across_changes_ends_and_a_killed_agent(workspace: Workspace, node: Node):
    requests = {"resources": {"requests": {"cpu": "20m", "memory": "24Mi"}, "limits": {"memory": "40Mi"}}}
    write(node, workspace, pod("changes", *SLEEP), pod("leaves", *SLEEP))
    workspace.until(f"changes-{node.name}", is_ready)
    workspace.until(f"leaves-{node.name}", is_ready)
    node.agent.kill()
    ends = pod("ends", *shell("exit 3"), restartPolicy="Never")
    write(node, workspace, pod("changes", *SLEEP, container=requests), ends)
    node.agent.start()
    seen = workspace.until_phase(f"ends-{node.name}", "Failed")
    assert seen["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    workspace.until(
        f"changes-{node.name}",
        lambda one: is_ready(one) and one["spec"]["containers"][0]["resources"] == requests["resources"],
    )
    eventually(lambda: not workspace.get("pod", f"leaves-{node.name}"))


def test_the_scheduler_counts_what_the_pods_of_a_machine_request(workspace: Workspace, node: Node):
    write(node, workspace, pod("large", *SLEEP, container={"resources": {"requests": {"memory": "500Mi"}}}))
    workspace.until(f"large-{node.name}", is_ready)
    there = {"kubernetes.io/hostname": node.name}
    wanted = {"resources": {"requests": {"memory": "400Mi"}}}
    workspace.apply(pod("late", *SLEEP, container=wanted, nodeSelector=there))
    seen = workspace.until("late", lambda one: condition(one, "PodScheduled") == "False")
    assert "Insufficient memory" in seen["status"]["conditions"][0]["message"]


def test_a_pod_of_the_cluster_with_the_name_of_a_mirror_does_not_lead_to_the_pod_of_the_machine(
    plane: ControlPlane, workspace: Workspace, node: Node
):
    """It belongs to another user, and is never started: this node cannot run it."""
    share = {"name": "share", "nfs": {"server": "nowhere.invalid", "path": "/"}}
    name = f"local-{node.name}"
    workspace.apply(pod(name, *SLEEP, volumes=[share], nodeName=node.name))
    workspace.until(name, lambda one: one["status"].get("reason") == "NotHonoured")
    write(node, workspace, pod("local", *SLEEP))
    eventually(lambda: is_ready(node.agent.client.pod_or_none(workspace.name, "local") or {"status": {}}))
    done = plane.try_kubectl(f"--namespace={workspace.name}", "exec", name, "--", "true")
    assert done.returncode != 0
    assert f'pod "{name}" not found' in done.stderr


def test_a_mirror_names_no_objects_of_the_machine(workspace: Workspace, node: Node):
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "colours"}, "data": {"a": "red"}}
    reference = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "colours", "key": "a"}}}
    container = {
        "env": [reference, {"name": "B", "value": "blue"}],
        "envFrom": [{"configMapRef": {"name": "colours"}}],
        "volumeMounts": [{"name": "colours", "mountPath": "/colours"}],
    }
    volumes = [{"name": "colours", "configMap": {"name": "colours"}}]
    write(node, workspace, data, pod("reads", *SLEEP, container=container, volumes=volumes))
    seen = workspace.until(f"reads-{node.name}", is_ready)
    assert seen["spec"]["containers"][0]["env"] == [{"name": "B", "value": "blue"}]
    assert not seen["spec"].get("volumes")
