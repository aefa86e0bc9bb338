"""Faults of the machine itself: processes that cannot be killed."""

from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, hostile
from tests.attacks.silent_fuse import silent_fuse
from tests.kernel.agents import MakeUp, pod

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

SLEEP = ["sleep", "100000"]


def test_a_process_that_cannot_be_killed_delays_no_other_pod(up: MakeUp, tmp_path: Path):
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
    assert agent.restarts("after") == 0
