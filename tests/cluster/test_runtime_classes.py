"""RuntimeClasses: which runtime a pod gets, and what it costs beside its containers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import SLEEP, Workspace, is_ready, pod
from tests.kernel.live_tree import cgroups_below
from tests.machines.container_images import TEST
from tests.machines.packages import require_containerd

MIB = 1 << 20
OVERHEAD = {"cpu": "50m", "memory": "8Mi"}


def runtime_class(name: str, **more: Any) -> dict[str, Any]:
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": name}
    return {**kind, "metadata": {"name": f"class-{name}"}, **more}


@pytest.fixture(scope="module", autouse=True)
def classes(plane: ControlPlane) -> Iterator[None]:
    plane.apply(runtime_class("runc", overhead={"podFixed": OVERHEAD}), runtime_class("absent"))
    yield
    plane.kubectl("delete", "runtimeclass", "class-runc", "class-absent")


@pytest.fixture(scope="module")
def node(make_node: MakeNode) -> Iterator[Node]:
    require_containerd()
    with make_node("containers", "--profile", "kubernetes", with_containerd=True) as one:
        one.start()
        yield one


def limit_bytes(node: Node, uid: str) -> int:
    """The memory limit of the pod's cgroup."""
    for place in node.agent.root.paths():
        for path in cgroups_below(place):
            if path.name == f"pod{uid}":
                for name in ("memory.max", "memory.limit_in_bytes"):
                    if (path / name).exists():
                        return int((path / name).read_text())
    raise AssertionError(f"pod {uid} has no memory cgroup")


def test_a_pod_gets_the_handler_of_its_class_and_its_overhead_is_counted(workspace: Workspace, node: Node):
    container = {"image": TEST, "imagePullPolicy": "Never"}
    workspace.apply(
        pod("classed", *SLEEP, container=container, runtimeClassName="class-runc", nodeName=node.name),
        pod("plain", *SLEEP, container=container, nodeName=node.name),
    )
    classed = workspace.until("classed", is_ready)
    plain = workspace.until("plain", is_ready)
    assert classed["spec"]["overhead"] == OVERHEAD
    limits = [limit_bytes(node, one["metadata"]["uid"]) for one in (classed, plain)]
    assert limits[0] - limits[1] == 8 * MIB


def test_a_handler_that_the_runtime_does_not_have_is_reported(workspace: Workspace, node: Node):
    container = {"image": TEST, "imagePullPolicy": "Never"}
    workspace.apply(
        pod("lost", *SLEEP, container=container, runtimeClassName="class-absent", nodeName=node.name)
    )
    seen = workspace.until("lost", lambda one: "absent" in str(one["status"].get("containerStatuses")))
    assert not is_ready(seen)
    assert 'no runtime for "absent" is configured' in str(seen["status"]["containerStatuses"])


def test_where_pods_are_processes_a_class_is_refused_with_a_sentence(workspace: Workspace, nodes: list[Node]):
    workspace.apply(pod("classed", *SLEEP, runtimeClassName="class-runc", nodeName=nodes[0].name))
    # Until the node has heard of a new class, which may take a while after an API server was away, it says just that.
    unknown = "the cluster has no RuntimeClass"
    seen = workspace.until("classed", lambda one: unknown not in one["status"].get("message", unknown))
    assert "spec.runtimeClassName: runc is not supported: there is one runtime" in seen["status"]["message"]
