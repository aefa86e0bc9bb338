"""What the machine itself does to an agent: processes that cannot be killed, numbers that are used again, clocks that
jump."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, hostile, not_ready
from tests.attacks.silent_fuse import silent_fuse
from tests.kernel.agents import MakeUp, Up, first_of, is_alive, pod
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

SLEEP = ["sleep", "100000"]


def restarts(agent: Up, name: str) -> int:
    return int(agent.status(name)["containerStatuses"][0].get("restartCount", 0))


def test_a_process_that_cannot_be_killed_keeps_nobody_else_waiting(up: MakeUp, tmp_path: Path):
    agent = up()
    agent.start()
    with silent_fuse(tmp_path / "silent") as asked:
        volumes = [{"name": "silent", "hostPath": {"path": str(tmp_path / "silent")}}]
        mounts = {"volumeMounts": [{"name": "silent", "mountPath": "/mnt"}]}
        script = "cat /mnt/file"
        agent.apply(
            hostile(
                agent, "stuck", "sh", "-c", script, container=mounts, volumes=volumes, restartPolicy="Never"
            ),
            pod("beside", SLEEP),
        )
        assert asked.wait(PATIENCE_SECONDS)
        agent.await_phase("beside", "Running")
        agent.client.delete("default", "stuck", 0)
        agent.apply(pod("after", SLEEP))
        agent.await_phase("after", "Running")
        agent.client.delete("default", "beside", 0)
        agent.await_gone("beside")
        assert agent.pod("stuck")["metadata"].get("deletionTimestamp")  # it is not said to be gone
        agent.kill()
        agent.start()
        assert agent.pod("stuck")
        agent.await_phase("after", "Running")
    agent.await_gone("stuck")
    assert restarts(agent, "after") == 0


@pytest.mark.cgroup("guest")
@pytest.mark.processes_only("it is about processes that the agent itself watches")
def test_a_stranger_with_the_number_of_a_container_is_left_alone(up: MakeUp):
    """The container and everything that knows of its end are killed, and another process gets its number."""
    agent = up()
    agent.start(stop_pods=False)
    agent.apply(pod("reused", SLEEP), pod("stays", SLEEP))
    for name in ("reused", "stays"):
        agent.await_phase(name, "Running")
    pid, stays = (first_of(agent.container(name)) for name in ("reused", "stays"))
    keeper = agent.keeper_pid()
    assert keeper is not None
    agent.kill()
    os.kill(keeper, 9)
    os.kill(pid, 9)
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    stranger = eventually(lambda: process_with_number(pid), within_seconds=PATIENCE_SECONDS)
    try:
        agent.start()
        eventually(lambda: agent.phase("reused") == "Running" and restarts(agent, "reused") == 1)
        agent.client.delete("default", "reused", 0)
        agent.await_gone("reused")
        assert stranger.poll() is None
        assert is_alive(stays)
        assert first_of(agent.container("stays")) == stays
    finally:
        stranger.kill()
        stranger.wait()


def process_with_number(pid: int) -> "subprocess.Popen[bytes] | None":
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    process = subprocess.Popen(["sleep", "100000"])
    if process.pid == pid:
        return process
    process.kill()
    process.wait()
    return None


@pytest.mark.cgroup("guest")
def test_a_clock_that_jumps_ends_no_pod_and_keeps_none_waiting(up: MakeUp):
    agent = up()
    agent.start()
    probe = {"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 20}}
    agent.apply(pod("stays", SLEEP, container=probe))
    agent.await_phase("stays", "Running")
    pid = first_of(agent.container("stays"))
    began, monotonic = time.time(), time.monotonic()
    try:
        for number, seconds in enumerate((86_400.0, -40 * 86_400.0, 3600.0, 0.0)):
            time.clock_settime(time.CLOCK_REALTIME, began + time.monotonic() - monotonic + seconds)
            name = f"after-{number}"
            agent.apply(pod(name, SLEEP))
            agent.await_phase(name, "Running")
            agent.client.delete("default", name, 0)
            agent.await_gone(name)
            assert not not_ready(agent)
    finally:
        time.clock_settime(time.CLOCK_REALTIME, began + time.monotonic() - monotonic)
    assert agent.phase("stays") == "Running"
    assert restarts(agent, "stays") == 0
    assert first_of(agent.container("stays")) == pid
