"""Seccomp profiles of the operator, with real containers of both runtimes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, pod, up
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

# Everything but mkdir.
NO_DIRECTORIES = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}],
}
TRIES = "mkdir /dev/shm/x 2>&1 | grep -o 'No space'; touch /dev/shm/y && echo touched; grep Seccomp: /proc/self/status"


def with_profile(name: str, profile: str, **security: Any) -> dict[str, Any]:
    context = {"seccompProfile": {"type": "Localhost", "localhostProfile": profile}, **security}
    return pod(name, ["sh", "-c", TRIES], container={"securityContext": context}, restartPolicy="Never")


def test_a_container_has_the_profile_that_it_names(up: MakeUp, tmp_path: Path):
    profiles = tmp_path / "profiles"
    (profiles / "team").mkdir(parents=True)
    (profiles / "team/no-directories.json").write_text(json.dumps(NO_DIRECTORIES))
    (profiles / "wrong.json").write_text('{"defaultAction": "SCMP_ACT_FLY"}')
    agent = up(f"--seccomp-profile-root={profiles}")
    agent.start()
    plain = {"allowPrivilegeEscalation": False}
    agent.apply(
        with_profile("root", "team/no-directories.json"),
        with_profile("user", "team/no-directories.json", runAsUser=1000, **plain),
        with_profile("wrong", "wrong.json"),
        with_profile("missing", "missing.json"),
    )
    for name in ("root", "user"):
        agent.await_phase(name, "Succeeded")
        # A container runtime may know of the end before it has written the last line.
        eventually(
            lambda name=name: agent.cli("logs", name).split() == ["No", "space", "touched", "Seccomp:", "2"],
            details=lambda name=name: agent.cli("logs", name),
        )
    # containerd reads a profile when it creates a container, and runc refuses its content when it starts it.
    for name in ("missing", *(() if agent.containerd else ("wrong",))):
        waiting = eventually(lambda name=name: waiting_of(agent, name))
        assert waiting["reason"] == "CreateContainerError", waiting
        assert agent.phase(name) == "Pending"
        assert agent.status(name)["containerStatuses"][0]["restartCount"] == 0
    eventually(lambda: agent.phase("wrong") == "Failed" or waiting_of(agent, "wrong"))
    assert not any(state["state"].get("running") for state in agent.status("wrong")["containerStatuses"])
    # As in kubelet it is tried again, whatever the restart policy is.
    (profiles / "missing.json").write_text(json.dumps(NO_DIRECTORIES))
    agent.await_phase("missing", "Succeeded")


def waiting_of(agent: Up, name: str) -> dict[str, str]:
    """Why the container waits, once it was tried."""
    (container,) = agent.status(name).get("containerStatuses") or [{}]
    waiting = container.get("state", {}).get("waiting", {})
    return waiting if waiting.get("message") else {}


@pytest.mark.parametrize("up", ["process"], indirect=True)
def test_root_keeps_the_default_filter_beside_a_profile(up: MakeUp, tmp_path: Path):
    (tmp_path / "all.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    agent = up(f"--seccomp-profile-root={tmp_path}")
    agent.start()
    command = ["sh", "-c", "unshare -U true && echo opened || echo kept"]
    root = with_profile("root", "all.json")
    user = with_profile("user", "all.json", runAsUser=1000)
    for one in (root, user):
        one["spec"]["containers"][0]["command"] = ["sh", "-c", "grep Seccomp_filters /proc/self/status"]
    root["spec"]["containers"][0]["command"] = command
    agent.apply(root, user)
    for name in ("root", "user"):
        agent.await_phase(name, "Succeeded")
    assert agent.cli("logs", "root").split()[-1] == "kept"
    assert agent.cli("logs", "user").split()[-1] == "1", "the profile alone"
