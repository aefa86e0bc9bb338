"""Containers of an agent that is not root, in a part of the cgroup tree that was handed to its user."""

import os
import tempfile
import traceback
from pathlib import Path

import pytest

from evenkeel.runtime.interface import ExecResult
from tests.kernel.cgroups import Cgroup
from tests.kernel.containers import Containers
from tests.kernel.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.cgroup("v2")

USER = 65534


def test_a_user_with_a_delegated_cgroup_runs_containers(cgroup_root: Cgroup):
    delegated = cgroup_root.child("delegated")
    agent = delegated.child("agent")
    for path in (delegated.paths()[0], agent.paths()[0]):
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(path / name, USER, USER)
    with tempfile.TemporaryDirectory(prefix="evenkeel-") as directory:
        os.chown(directory, USER, USER)
        pid = os.fork()
        if pid == 0:
            try:
                agent.write("cgroup.procs", os.getpid())
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)
                world = Containers(f"/{cgroup_root.paths()[0].name}/delegated", Path(directory))
                world.run(_as_user)
                os._exit(0)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        cgroup_root.kill()


async def _as_user(world: Containers) -> None:
    spec = "volumes: [{name: data, emptyDir: {}}]"
    mounts = "volumeMounts: [{name: data, mountPath: /mnt}]"
    script = "id -u; echo $$; cat /proc/self/cgroup; echo x > /mnt/file && cat /mnt/file; grep CapEff /proc/self/status"
    lines = await world.ran("own", script, container=mounts, spec=spec)
    assert lines == [str(USER), "1", "0::/", "x", "CapEff:\t0000000000000000"]
    record = await world.start("probed", "sleep", "600")
    result = await world.runtime.execute(record.attempt, ("sh", "-c", "id -u; hostname"), PATIENCE_SECONDS)
    assert result == ExecResult(0, f"{USER}\nprobed\n")
    await world.runtime.stop(record.attempt, 0)
    assert not world.processes("probed")
    other = world.pod("other", ["true"], "securityContext: {runAsUser: 7}")
    refusal = world.runtime.refusal(other)
    assert refusal is not None
    assert "runAsUser 7 is not 65534" in refusal.message
