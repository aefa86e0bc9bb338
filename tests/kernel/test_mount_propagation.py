"""mountPropagation with a real container runtime: which containers see a mount that the host makes later."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.runtime import syscalls
from tests.kernel.agents import MakeUp, pod, up, with_host_path
from tests.kernel.sessions import done

__all__ = ["up"]
pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.parametrize("up", ["cri"], indirect=True)]

MS_SHARED = 0x10_0000
SIZE = "size=64k"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts are shared, as all of a machine with systemd are. Mounts below it end with it."""
    place = tmp_path / "shared"
    place.mkdir()
    syscalls.mount("tmpfs", str(place), "tmpfs", data=SIZE)
    syscalls.mount(None, str(place), flags=MS_SHARED)
    try:
        yield place
    finally:
        syscalls.umount(str(place), syscalls.MNT_DETACH)


def test_a_mount_that_the_host_makes_later_is_seen_where_the_manifest_asks_for_it(up: MakeUp, shared: Path):
    agent = up()
    agent.start()
    for name, propagation in (("plain", "None"), ("watcher", "HostToContainer")):
        one = with_host_path(pod(name, ["sleep", "100000"]), shared, at="/mnt")
        for mount in one["spec"]["containers"][0]["volumeMounts"]:
            mount["mountPropagation"] = propagation
        agent.apply(one)
        agent.await_phase(name, "Running")
    late = shared / "late"
    late.mkdir()
    syscalls.mount("tmpfs", str(late), "tmpfs", data=SIZE)
    (late / "word").write_text("here")
    seen = done(agent, "exec", "watcher", "--", "cat", "/mnt/late/word")
    assert (seen.stdout, seen.returncode) == (b"here", 0), seen.stderr
    assert done(agent, "exec", "plain", "--", "ls", "/mnt").stdout == b"late\n"
    assert done(agent, "exec", "plain", "--", "cat", "/mnt/late/word").returncode == 1
