"""Evenkeel as a node of a real cluster: what it says of itself, and what the controllers make of it."""

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode, Node
from tests.kernel.waiting import eventually


def node_object(plane: ControlPlane, node: Node) -> dict:
    return plane.get("node", node.name)


def test_a_node_says_what_it_is_and_has(plane: ControlPlane, nodes: list[Node]):
    seen = node_object(plane, nodes[0])
    status = seen["status"]
    assert seen["metadata"]["labels"]["kubernetes.io/hostname"] == nodes[0].name
    assert {"type": "InternalIP", "address": nodes[0].place.address} in status["addresses"]
    assert status["capacity"]["cpu"] == "2"
    assert {"cpu", "memory", "pods", "ephemeral-storage"} <= status["allocatable"].keys()
    states = {one["type"]: one["status"] for one in status["conditions"]}
    assert states == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    version = status["nodeInfo"]["kubeletVersion"]
    assert version.startswith("v1."), version


def test_the_controllers_take_away_the_taint_of_a_new_node(plane: ControlPlane, nodes: list[Node]):
    eventually(lambda: all(not node_object(plane, node)["spec"].get("taints") for node in nodes))


def lease(plane: ControlPlane, node: Node) -> dict:
    """Empty if there is none."""
    return plane.reader.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}")


def renewed(plane: ControlPlane, node: Node, before: str) -> str:
    """When the lease was renewed, as soon as that is later than `before`."""

    def later() -> str:
        now = lease(plane, node)["spec"]["renewTime"]
        return now if now > before else ""

    return eventually(later)


def test_a_node_renews_its_lease_and_keeps_its_object_as_it_is(plane: ControlPlane, nodes: list[Node]):
    first = eventually(lambda: lease(plane, nodes[0]))  # a node is ready with or without it
    assert first["spec"]["holderIdentity"] == nodes[0].name
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Node"

    at, versions = first["spec"]["renewTime"], [node_object(plane, nodes[0])["metadata"]["resourceVersion"]]
    for _ in range(2):
        at = renewed(plane, nodes[0], at)
        versions.append(node_object(plane, nodes[0])["metadata"]["resourceVersion"])
    assert len(set(versions)) <= 2  # the regular report, every few minutes, may fall between


def test_a_node_that_was_rebooted_says_so(plane: ControlPlane, make_node: MakeNode):
    with make_node("rebooted") as node:
        node.start()
        info = node_object(plane, node)["status"]["nodeInfo"]
        assert all(info[name] for name in ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"))
        assert info["containerRuntimeVersion"].startswith("evenkeel://")
        node.agent.stop()
        before = '{"status":{"nodeInfo":{"bootID":"11111111-2222-3333-4444-555555555555"}}}'
        plane.kubectl("patch", "node", node.name, "--subresource=status", "--patch", before)
        node.start()

        def event() -> list:
            about = f"--field-selector=involvedObject.name={node.name},reason=Rebooted"
            return plane.get("events", "--namespace=default", about)["items"]

        (reported,) = eventually(event)
        assert info["bootID"] in reported["message"]
        assert node_object(plane, node)["status"]["nodeInfo"]["bootID"] == info["bootID"]
