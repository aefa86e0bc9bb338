"""Pods whose containers see each other's processes, or the host's; with real containers of both runtimes."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, pod, up
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

# Seconds that only these processes sleep, also if the same tests run beside these.
STAYS, LEFT = f"57{os.getpid()}", f"51{os.getpid()}"
NAMESPACES = "readlink /proc/self/ns/pid; readlink /proc/self/ns/ipc"


def shell(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "image": "host", "command": ["sh", "-c", text]}


def together(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    made = pod(name, ["true"], **spec)
    made["spec"]["containers"] = list(containers)
    return made


def states(agent: Up, name: str) -> dict[str, Any]:
    return {one["name"]: one for one in agent.status(name).get("containerStatuses", ())}


def namespace(kind: str, pid: int | str = "self") -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def test_containers_that_share_processes_see_and_outlive_each_other(up: MakeUp):
    agent = up()
    agent.start()
    # Its grandchild loses its parent, and is in the namespace until its container ends.
    stays = f"(sleep {STAYS} &) ; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    # The brackets keep it from finding itself.
    wait = f"until grep -qs '[{STAYS[0]}]{STAYS[1:]}' /proc/[0-9]*/cmdline; do sleep 0.05; done"
    looks = f"{wait}; echo seen; cat /proc/1/comm; grep -c evenkeel /proc/1/cmdline; exit 3"
    probe = {
        "exec": {"command": ["sh", "-c", "test $(cat /proc/[0-9]*/comm | grep -c pause) = 1"]},
        "periodSeconds": 1,
        "timeoutSeconds": 30,
    }
    agent.apply(
        together(
            "both",
            {**shell("stays", stays), "readinessProbe": probe},
            {**shell("looks", looks), "restartPolicy": "OnFailure"},
            shareProcessNamespace=True,
            restartPolicy="OnFailure",
        ),
        together(
            "apart",
            shell("one", f"{NAMESPACES}; exec sleep 1000"),
            shell("two", f"{NAMESPACES}; exec sleep 1000"),
        ),
    )
    eventually(lambda: states(agent, "both").get("looks", {}).get("restartCount", 0) >= 1, within_seconds=60)
    eventually(lambda: states(agent, "both")["stays"]["ready"])
    assert states(agent, "both")["stays"]["restartCount"] == 0, "the end of one is not the end of the other"
    looks = states(agent, "both")["looks"]
    # While it is asked for again, its last end is its present state.
    seen = [one["terminated"] for one in (looks["state"], looks.get("lastState", {})) if "terminated" in one]
    assert {one["exitCode"] for one in seen} == {3}, looks
    # Its first process is no container's, and shows nothing of the node. A new attempt has a log of its own.
    eventually(lambda: agent.cli("logs", "both", "-c", "looks").split() == ["seen", "pause", "0"])
    agent.await_phase("apart", "Running")
    for name in ("one", "two"):
        eventually(lambda name=name: agent.cli("logs", "apart", "-c", name).count("\n") == 2)
    one, two = (agent.cli("logs", "apart", "-c", name).split()[0] for name in ("one", "two"))
    assert len({one, two, namespace("pid")}) == 3
    agent.client.delete("default", "both")
    agent.await_gone("both")
    assert not is_left(STAYS)


def is_left(seconds: str) -> bool:
    """Whether a process that sleeps so long is there."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                return True
    return False


@pytest.mark.parametrize("up", ["process"], indirect=True)
def test_a_shared_namespace_outlives_the_supervisor_and_ends_with_its_pod(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        together(
            "both",
            shell("one", "exec sleep 1000"),
            shell("two", "exec sleep 1000"),
            shareProcessNamespace=True,
        )
    )
    agent.await_phase("both", "Running")
    infrastructure = agent.container("both", "pod.infrastructure")
    (holder,) = infrastructure.processes()
    supervisor = agent.supervisor_pid()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: agent.supervisor_pid() not in (None, supervisor))
    (first,) = agent.container("both", "one").processes()
    os.kill(first, signal.SIGTERM)

    def is_started_again() -> bool:
        """It runs: before that, what makes the container is in its cgroup."""
        one = states(agent, "both")["one"]
        return one["restartCount"] == 1 and "running" in one["state"]

    eventually(is_started_again, details=lambda: agent.details_of("both"))
    (again,) = agent.container("both", "one").processes()
    assert namespace("pid", again) == namespace("pid", holder)
    assert states(agent, "both")["two"]["restartCount"] == 0
    agent.client.delete("default", "both", 0)
    agent.await_gone("both")
    eventually(lambda: not Path(f"/proc/{holder}").exists())


def test_a_pod_reaches_the_hosts_processes_only_if_the_operator_allows_it(up: MakeUp):
    agent = up("--allowed-host-access=hostPID,hostIPC")
    agent.start(stop_pods=False)
    look = f"{NAMESPACES}; (sleep {LEFT} &); exit 0"
    spec: dict[str, Any] = {"hostPID": True, "hostIPC": True, "restartPolicy": "Never"}
    agent.apply(pod("reaches", ["sh", "-c", look], **spec))
    agent.await_phase("reaches", "Succeeded")
    # A container runtime may know of the end before it has written the last line.
    eventually(lambda: agent.cli("logs", "reaches").split() == [namespace("pid"), namespace("ipc")])
    # Without a namespace of its own, what it left behind is ended all the same.
    eventually(lambda: not is_left(LEFT))
    agent.stop()
    agent.flags.remove("--allowed-host-access=hostPID,hostIPC")
    agent.start()
    for field in ("hostPID", "hostIPC"):
        reaching: dict[str, Any] = {field: True}
        agent.write(f"{field}.yaml".lower(), json.dumps(pod(field.lower(), ["true"], **reaching)))
        said = eventually(lambda field=field: agent.status(field.lower()).get("message"))
        assert f"spec.{field}: true reaches the host, and the operator" in said
