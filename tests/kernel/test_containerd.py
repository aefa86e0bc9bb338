"""The containerd that tests start, and the images they make for it: a container runs, and nothing is left of it."""

import asyncio
from pathlib import Path

import pytest

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection
from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import eventually
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd
from tests.machines.packages import require_containerd
from tests.machines.programs import programs


@pytest.mark.cgroup("v1", "v2")
def test_a_container_with_our_programs_runs_outlives_containerd_and_ends_with_us(cgroup_root: Cgroup):
    require_containerd()
    place = cgroup_root.paths()[0].name
    with Containerd() as containerd:
        grow = [str(programs() / "grow"), "anon", "0", "0"]
        own = ["--runc-root", str(containerd.directory / "runc"), "--cgroup", f"/{place}/one"]
        containerd.ctr("run", "--detach", "--null-io", *own, TEST, "one", *grow)
        one = Cgroup({key: path / "one" for key, path in cgroup_root.directories.items()})
        (before,) = eventually(lambda: [pid for pid in one.processes() if runs(pid, grow[0])])
        assert len(containerd.shims()) == 1
        containerd.kill()
        containerd.start()
        assert one.processes() == {before}
        assert containerd.containers() == ["one"]
    eventually(lambda: not one.processes())  # killed with its parent: another process reaps it
    assert not containerd.shims()
    assert not containerd.directory.exists()
    assert str(containerd.directory) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.cgroup("host")
def test_the_number_of_a_sandbox_that_was_not_made_is_known():
    """Its shim may have left a socket, which is named after it."""
    require_containerd()
    metadata = pb.PodSandboxMetadata(name="none", namespace="default", uid="u-none")
    config = pb.PodSandboxConfig(metadata=metadata)
    request = pb.RunPodSandboxRequest(config=config, runtime_handler="there-is-none")

    async def ask(endpoint: str) -> None:
        connection = Connection(endpoint)
        try:
            with pytest.raises(CallFailed, match="there-is-none"):
                await connection.ask(request, pb.RunPodSandboxResponse)
        finally:
            await connection.close()

    with Containerd() as containerd:
        before = containerd.logged_ids()
        asyncio.run(ask(containerd.endpoint))
        assert len(containerd.logged_ids() - before) == 1


def runs(pid: int, program: str) -> bool:
    """Not if it has ended, as what set the container up does."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().startswith(program)
    except (FileNotFoundError, ProcessLookupError):
        return False
