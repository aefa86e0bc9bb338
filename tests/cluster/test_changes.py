"""Changes of running pods in a real cluster: another image, deletion by force, eviction under pressure."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import SLEEP, Workspace, condition, is_ready, pod
from tests.kernel.agents import MIB
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

# Not faster than a memory watch on a busy machine, before which the kernel would kill.
RUNAWAY_BYTES_A_SECOND = 200 * MIB
# The period is long enough for the agent to send the condition, however busy the machine is.
PRESSURE = ("--eviction-hard=memory.available<48Mi", "--eviction-pressure-transition-period=20s")
SHORT, ENOUGH = "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"


def container_of(one: dict[str, Any]) -> dict[str, Any]:
    return one["status"]["containerStatuses"][0]


def test_another_image_restarts_its_container_and_no_other(
    workspace: Workspace, nodes: list[Node], tmp_path: Path
):
    two = pod("changes", *SLEEP)
    two["spec"]["containers"].append({**two["spec"]["containers"][0], "name": "other"})
    workspace.apply(two)
    before = {one["name"]: one for one in workspace.until("changes", is_ready)["status"]["containerStatuses"]}

    missing = str(tmp_path / "nothing")
    workspace.kubectl("set", "image", "pod/changes", f"main={missing}")

    def is_broken(one: dict[str, Any]) -> bool:
        """It waits, and not for its first start with that image."""
        ended = container_of(one).get("lastState", {}).get("terminated", {})
        return "waiting" in container_of(one)["state"] and missing in ended.get("message", "")

    broken = workspace.until("changes", is_broken)
    assert condition(broken, "Ready") == "False"

    workspace.kubectl("set", "image", "pod/changes", "main=host")
    after = {one["name"]: one for one in workspace.until("changes", is_ready)["status"]["containerStatuses"]}
    assert after["main"]["containerID"] != before["main"]["containerID"]
    assert after["other"] == before["other"]


def test_a_pod_deleted_by_force_makes_room_for_the_next_of_its_name(workspace: Workspace, nodes: list[Node]):
    """The API server forgets it at once, whatever still runs; the node has to end that by itself."""
    stubborn = pod(
        "same",
        *("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"),
        nodeName=nodes[0].name,
        terminationGracePeriodSeconds=300,
    )
    workspace.apply(stubborn)
    first = workspace.until("same", is_ready)["metadata"]["uid"]
    workspace.kubectl("delete", "pod", "same", "--force", "--grace-period=0", "--wait=false")
    eventually(lambda: workspace.get("pod", "same").get("metadata", {}).get("uid") != first)
    workspace.apply(stubborn)
    second = workspace.until("same", is_ready)["metadata"]["uid"]
    assert second != first
    assert nodes[0].pods() & {first, second} == {second}
    # The workspace does not wait for what has a grace of minutes.
    workspace.kubectl("delete", "pod", "same", "--grace-period=1", "--wait=false")


@contextlib.contextmanager
def reasons_of(plane: ControlPlane, node: Node, kind: str, file: Path) -> Iterator[Callable[[], list[str]]]:
    """The reasons that a condition of the node has had from now on, also those that have passed."""
    each = f'{{.status.conditions[?(@.type=="{kind}")].reason}}{{"\\n"}}'
    command = [str(plane.kubectl_program), f"--kubeconfig={plane.admin_kubeconfig}"]
    command += ["get", "node", node.name, "--watch", f"--output=jsonpath={each}"]
    with file.open("wb") as output, subprocess.Popen(command, stdout=output) as watching:
        try:
            eventually(file.read_text)
            yield lambda: file.read_text().split()
        finally:
            watching.kill()


def test_a_pod_that_takes_too_much_memory_is_evicted_as_a_disruption(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode, tmp_path: Path
):
    with contextlib.ExitStack() as opened:
        fourth = opened.enter_context(make_node("node4", *PRESSURE, size="384Mi,2cpu"))
        fourth.start()
        pressure = opened.enter_context(reasons_of(plane, fourth, "MemoryPressure", tmp_path / "reasons"))
        here: dict[str, Any] = {"nodeName": fourth.name, "restartPolicy": "Never"}

        def grows(name: str, mib: int, request_mib: int) -> dict[str, Any]:
            resources = {"requests": {"memory": f"{request_mib}Mi"}}
            command = (str(programs() / "grow"), "anon", str(mib * MIB), str(RUNAWAY_BYTES_A_SECOND))
            return pod(name, *command, container={"resources": resources}, **here)

        workspace.apply(grows("within", 64, 96))
        workspace.until("within", is_ready)
        workspace.apply(grows("runaway", 1024, 16))
        evicted = workspace.until_phase("runaway", "Failed")
        assert evicted["status"]["reason"] == "Evicted"
        assert "memory" in evicted["status"]["message"]
        (disruption,) = [one for one in evicted["status"]["conditions"] if one["type"] == "DisruptionTarget"]
        assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")
        eventually(lambda: SHORT in pressure() and pressure()[-1] == ENOUGH)
        assert set(pressure()) == {SHORT, ENOUGH}
        assert is_ready(workspace.get("pod", "within"))
        workspace.kubectl("delete", "pods", "--all", "--wait=false")
        workspace.until_gone()
