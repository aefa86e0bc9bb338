"""`kubectl debug` on nodes of either runtime: ephemeral containers in pods that run in a real cluster."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl_sessions import Running
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import SLEEP, Workspace, condition, is_ready, restarts, shell
from tests.kernel.agents import RUNTIMES
from tests.kernel.live_tree import cgroups_below, processes_in
from tests.kernel.sessions import Terminal
from tests.kernel.waiting import eventually

MARK = "50031"  # the seconds that the pod's own program sleeps


@pytest.fixture(scope="module", params=RUNTIMES)
def node(request: pytest.FixtureRequest, make_node: MakeNode) -> Iterator[Node]:
    with make_node(f"debugging-{request.param}", with_containerd=request.param == "cri") as one:
        one.start()
        yield one


@pytest.fixture
def pods(plane: ControlPlane, workspace: Workspace, node: Node) -> Running:
    return Running(plane, workspace, node)


def debugger(one: dict[str, Any], name: str = "look") -> dict[str, Any]:
    """The state of the ephemeral container; empty if the status does not have it."""
    statuses: list[dict[str, Any]] = one["status"].get("ephemeralContainerStatuses", [])
    return next((each["state"] for each in statuses if each["name"] == name), {})


def debug(pods: Running, name: str, *command: str, interactive: bool = False) -> list[str]:
    """The words after `kubectl` that debug the container main of the pod."""
    flags = (f"--image={pods.image}", "--target=main", "--container=look", *(["-it"] if interactive else []))
    return ["debug", name, *flags, "--", *command]


def test_a_terminal_beside_the_processes_of_a_container(pods: Running, workspace: Workspace):
    before = pods.start("web", "sleep", MARK)
    terminal = Terminal(pods.command(*debug(pods, "web", "sh", interactive=True)))
    try:
        # The typed text must differ from the awaited output. A process that was just forked still runs its parent's
        # program.
        terminal.type(
            "until grep -q $((50030 + 1)) /proc/1/cmdline; do sleep 0.1; done; echo that is $((40 + 2))\n"
        )
        terminal.await_shown("that is 42")
        terminal.type("exit 5\n")
        terminal.exit_code()
    finally:
        terminal.close()
    ended = workspace.until("web", lambda one: "terminated" in debugger(one))
    assert debugger(ended)["terminated"]["exitCode"] == 5
    assert is_ready(ended)
    assert ended["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert ended["status"]["observedGeneration"] == ended["metadata"]["generation"] == 2


def test_logs_commands_and_a_restart_of_the_agent(pods: Running, workspace: Workspace):
    uid = pods.start("web", *SLEEP)["metadata"]["uid"]
    pods.done(*debug(pods, "web", *shell("echo here; sleep infinity")))
    before = workspace.until("web", lambda one: "running" in debugger(one))
    eventually(lambda: pods.done("logs", "web", "--container=look") == b"here\n")
    assert pods.done("exec", "web", "--container=look", "--", "echo", "out") == b"out\n"
    described = pods.node.agent.cli("describe", "pod", "web", "--namespace", workspace.name)
    assert "Ephemeral Containers:\n  look:" in described

    top = pods.node.agent.root.paths()[0]
    (of_pod,) = [path for path in cgroups_below(top) if path.name.endswith(f"pod{uid}")]
    within = [path for path in cgroups_below(of_pod) if path != of_pod and processes_in(path)]
    assert len(within) >= 2, "it is in a cgroup of its own below that of the pod"

    pods.node.agent.kill()
    pods.node.agent.start()
    pods.node.await_serving()
    after = workspace.until("web", is_ready)
    assert after["status"]["ephemeralContainerStatuses"] == before["status"]["ephemeralContainerStatuses"]
    assert pods.done("exec", "web", "--container=look", "--", "echo", "again") == b"again\n"
    pods.done("delete", "pod", "web", "--wait=true", "--grace-period=1")
    eventually(lambda: uid not in pods.node.pods())


def test_a_debugger_is_never_started_again_and_keeps_no_pod_from_ending(pods: Running, workspace: Workspace):
    pods.start(
        "ends",
        *shell("until test -e /tmp/go; do sleep 0.1; done"),
        restartPolicy="Never",
        volumes=[{"name": "tmp", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
    )
    pods.done(*debug(pods, "ends", "false"))
    failed = workspace.until("ends", lambda one: "terminated" in debugger(one))
    assert debugger(failed)["terminated"]["exitCode"] == 1
    stays = ("--container=stays", f"--image={pods.image}", "--", *SLEEP)
    pods.done("debug", "ends", *stays)
    workspace.until("ends", lambda one: "running" in debugger(one, "stays"))
    # The container ends with all its processes, this one too if it is still there: its exit code may be that of a kill.
    pods.kubectl("exec", "ends", "--container=main", "--", "touch", "/tmp/go")
    ended = workspace.until_phase("ends", "Succeeded")
    assert "terminated" in debugger(ended, "stays")
    assert debugger(ended) == debugger(failed), "it was not started again"
    assert (restarts(ended), condition(ended, "Ready")) == (0, "False")


def test_what_a_debugger_cannot_have_is_reported_and_the_pod_runs_on(pods: Running, workspace: Workspace):
    pods.start("web", *SLEEP)
    if pods.node.agent.containerd is not None:
        pytest.skip("a container runtime gives privileges that the operator allows")
    privileged = ("--profile=sysadmin", "--container=look", f"--image={pods.image}", "--", *SLEEP)
    pods.done("debug", "web", *privileged)
    refused = workspace.until("web", lambda one: "terminated" in debugger(one))
    assert "privileged" in debugger(refused)["terminated"]["message"]
    assert is_ready(refused)
