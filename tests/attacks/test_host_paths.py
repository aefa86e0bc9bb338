"""A hostPath volume shows what it names, whatever pods have made of the directories around it; and never the agent's
state."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import (
    PATIENCE_SECONDS,
    await_refused,
    await_refused_or_done,
    await_said,
    hostile,
    outside,
    said,
)
from tests.attacks.silent_fuse import fuse_that_falls_silent, silent_fuse
from tests.kernel.agents import MIB, MakeUp, Up, pod, with_host_path

pytestmark = pytest.mark.cgroup("v1", "v2")

SLEEP = ["sleep", "100000"]
RACES = 5
HUNG_PODS = 20  # more than the agent has threads
# Links that a pod makes in a directory that it may write to, and that are named as volumes afterwards.
LINKS = ("absolute", "relative", "nested/link", "to-root")


def looking(agent: Up, name: str, path: str | Path, **mount: Any) -> dict[str, Any]:
    """A pod that says which files it finds in a hostPath volume, a few levels deep."""
    script = (
        "find /mnt -maxdepth 6 -name marker -o -maxdepth 6 -name journal.db; echo done; exec sleep 100000"
    )
    volumes = [{"name": "v", "hostPath": {"path": str(path)}}]
    container = {"volumeMounts": [{"name": "v", "mountPath": "/mnt", **mount}]}
    return hostile(agent, name, "sh", "-c", script, container=container, volumes=volumes)


def test_a_symlink_that_a_pod_made_takes_no_volume_elsewhere(agent: Up, tmp_path: Path):
    marker = outside(tmp_path / "outside")
    shared = tmp_path / "shared"
    (shared / "own").mkdir(parents=True)
    script = (
        f"cd {shared}; mkdir nested; ln -s {marker.parent} absolute; ln -s ../outside relative; "
        "ln -s ../../outside nested/link; ln -s / to-root; ln -s own inside; echo x > own/marker; "
        "echo done; exec sleep 100000"
    )
    agent.apply(with_host_path(hostile(agent, "links", "sh", "-c", script), shared))
    await_said(agent, "links")
    for number, link in enumerate(LINKS):
        agent.apply(looking(agent, f"follows-{number}", shared / link))
        agent.apply(looking(agent, f"makes-{number}", shared / link / "made"))
    agent.apply(looking(agent, "inside", shared / "inside"))
    for number in range(len(LINKS)):
        for name in (f"follows-{number}", f"makes-{number}"):
            await_refused(agent, name)
            assert said(agent, name) == []
    assert not (marker.parent / "made").exists()
    assert await_said(agent, "inside") == ["/mnt/marker", "done"]


@pytest.mark.whole_kernel("a race of system calls")
def test_a_directory_that_becomes_a_symlink_and_back_takes_no_volume_elsewhere(agent: Up, tmp_path: Path):
    """The pod swaps them while volumes below are looked for. So what was found to be a directory need not be one when
    it is mounted."""
    marker = outside(tmp_path / "outside")
    shared = tmp_path / "shared"
    (shared / "inner" / "deep").mkdir(parents=True)
    (shared / "link").symlink_to(marker.parent)
    (marker.parent / "deep").symlink_to(".")
    limits = {"resources": {"limits": {"cpu": "300m"}}}
    swapping = hostile(agent, "swaps", "swap", f"{shared}/inner", f"{shared}/link", container=limits)
    agent.apply(with_host_path(swapping, shared))
    await_said(agent, "swaps")
    names = []
    for number in range(RACES):
        for kind, one in (
            ("path", looking(agent, f"path-{number}", shared / "inner")),
            ("deep", looking(agent, f"deep-{number}", shared / "inner" / "deep")),
            ("part", looking(agent, f"part-{number}", shared, subPath="inner")),
            ("made", looking(agent, f"made-{number}", shared, subPath="inner/made")),
        ):
            agent.apply(one)
            names.append(f"{kind}-{number}")
    for name in names:
        await_refused_or_done(agent, name)
    assert [line for name in names for line in said(agent, name) if line != "done"] == []
    assert not (marker.parent / "made").exists()


def test_the_agents_state_is_in_no_volume_whatever_way_leads_there(agent: Up, tmp_path: Path):
    top = agent.state.parent
    for name in ("alias", "part"):
        (top / name).mkdir(exist_ok=True)
    (top / "way").symlink_to(".")
    (top / "marker").write_text("x")
    with mounted(agent.state, top / "alias"), mounted(agent.state / "pods", top / "part"):
        agent.apply(
            looking(agent, "above", top),
            looking(agent, "higher", top.parent, subPath=top.name),
            looking(agent, "linked", top.parent, subPath=f"{top.name}/way"),
            looking(agent, "straight", agent.state),
            looking(agent, "alias", top / "alias"),
            looking(agent, "part", top / "part"),
            looking(agent, "inner", top, subPath="state/pods"),
            looking(agent, "inner-alias", top, subPath="alias"),
        )
        for name in ("above", "higher", "linked"):
            assert [line for line in await_said(agent, name) if "journal" in line] == []
            assert "/mnt/marker" in said(agent, name)
        for name in ("straight", "alias", "part", "inner", "inner-alias"):
            await_refused_or_done(agent, name)
            assert [line for line in said(agent, name) if line != "done"] == []
        agent.delete_all(within_seconds=PATIENCE_SECONDS)


@contextmanager
def mounted(source: Path, point: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, point], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.mark.long
@pytest.mark.processes_only("volumes are examined in the same way with either")
def test_a_filesystem_that_does_not_answer_delays_no_other_pod(agent: Up, tmp_path: Path):
    (tmp_path / "answers").mkdir()
    with silent_fuse(tmp_path / "silent") as asked:
        names = [f"hung-{number}" for number in range(HUNG_PODS)]
        for name in names:
            agent.apply(with_host_path(pod(name, SLEEP), tmp_path / "silent/file"))
        assert asked.wait(PATIENCE_SECONDS)
        agent.apply(with_host_path(pod("beside", SLEEP), tmp_path / "answers"))
        agent.await_phase("beside", "Running")
        agent.client.delete("default", "beside", 0)
        agent.await_gone("beside")
        for name in names:
            agent.client.delete("default", name, 0)
        for name in names:
            agent.await_gone(name)


@pytest.mark.long
@pytest.mark.processes_only("a container runtime looks at files of its containers itself")
def test_a_filesystem_that_falls_silent_keeps_no_pod_from_its_limit_and_no_agent_from_its_end(
    up: MakeUp, tmp_path: Path
):
    """A pod has a file there open, called as the kernel calls deleted ones. The disk measurement must not ask for its
    status."""
    limits = {"resources": {"limits": {"ephemeral-storage": "8Mi"}}}
    agent = up()
    with fuse_that_falls_silent(tmp_path / "fuse") as silenced:
        agent.start(stop_pods=False)
        script = f"exec 9<'{tmp_path}/fuse/x (deleted)'; echo done; exec sleep 100000"
        holding = hostile(agent, "holds", "sh", "-c", script, image="host", container=limits)
        agent.apply(with_host_path(holding, tmp_path / "fuse"))
        await_said(agent, "holds")
        silenced.set()
        filling = hostile(
            agent, "fills", "fill", str(24 * MIB), "0:0", "/tmp/x", image="host", container=limits
        )
        agent.apply({**filling, "spec": {**filling["spec"], "restartPolicy": "Never"}})
        agent.await_evicted("fills")
        agent.kill()
        agent.start(stop_pods=False)
        agent.await_phase("holds", "Running")
