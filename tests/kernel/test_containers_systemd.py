"""Containers of containerd below systemd's slices: both make cgroups through systemd, and mean the same by them."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.kernel.agents import READY_SECONDS, MakeUp, pod, up
from tests.kernel.live_tree import cgroups_below, content
from tests.kernel.waiting import eventually
from tests.machines.containerd import Containerd

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("systemd")

AMOUNTS = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}}


@pytest.mark.emulated_containers
@pytest.mark.parametrize("up", ["cri"], indirect=True)
@pytest.mark.req("A24", "C6", "C7", "E9")
def test_a_container_is_a_scope_in_its_pods_slice_with_what_the_plan_says(up: MakeUp):
    agent = up("--cgroup-driver", "systemd")
    agent.start()
    agent.apply(pod("one", ["sleep", "100000"], container={"resources": AMOUNTS}))
    agent.await_phase("one", "Running")
    (scope,) = eventually(
        lambda: [
            path
            for path in cgroups_below(agent.root.paths()[0], "cri-containerd-*.scope")
            if path.parent.suffix == ".slice" and content(path / "memory.max") == str(64 << 20)
        ]
    )
    wanted = {"memory.min": f"{32 << 20}\n", "memory.oom.group": "1\n"}
    eventually(lambda: {file: (scope / file).read_text() for file in wanted} == wanted)
    (scope / "memory.min").write_text("0")
    eventually(
        lambda: (scope / "memory.min").read_text() == wanted["memory.min"], within_seconds=READY_SECONDS
    )
    before = (scope / "cgroup.procs").read_text()
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    agent.kill()
    agent.start()
    agent.await_phase("one", "Running")
    eventually(lambda: {file: (scope / file).read_text() for file in wanted} == wanted)
    assert (scope / "cgroup.procs").read_text() == before
    os.kill(int(before), signal.SIGKILL)
    eventually(
        lambda: agent.status("one")["containerStatuses"][0]["restartCount"] == 1, within_seconds=READY_SECONDS
    )


def test_two_cgroup_drivers_on_one_tree_are_refused(containerd: Containerd):
    command = [sys.executable, "-m", "evenkeel", "doctor", "-o", "json"]
    done = subprocess.run(
        [*command, "--cgroup-driver=cgroupfs", "--runtime-endpoint", containerd.endpoint],
        check=False,
        capture_output=True,
        text=True,
    )
    (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "container runtime"]
    assert check["stopsAgent"]
    assert "makes cgroups by systemd" in check["seen"]
    assert "--cgroup-driver systemd" in check["mends"][0]
