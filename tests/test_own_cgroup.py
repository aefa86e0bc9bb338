"""Where the agent's own cgroup is, where there is none, and how it is left."""

import os
from pathlib import Path

import pytest

from evenkeel.agent.node import own_cgroup
from evenkeel.agent.node.own_cgroup import OwnCgroup, parse_own, path_for
from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.errors import EvenkeelError
from tests.models.kernel import Kernel

SESSION = "0::/user.slice/user-0.slice/session-1.scope\n"
SERVICE = "0::/system.slice/evenkeel.service\n"
V1 = "12:cpu,cpuacct:/a\n4:memory:/b\n1:name=systemd:/c\n0::/d\n"


def test_the_cgroup_of_a_process_is_found_by_controller():
    assert parse_own(V1) == {"cpu": "/a", "cpuacct": "/a", "memory": "/b", "name=systemd": "/c", "": "/d"}


@pytest.mark.parametrize(
    ("settings", "naming", "own", "path"),
    [
        ({}, Naming.CGROUPFS, SESSION, "/evenkeel/agent"),
        ({"cgroup_root": "/a/b"}, Naming.CGROUPFS, SESSION, "/a/b/agent"),
        ({}, Naming.CGROUPFS, SERVICE, None),  # a unit's own
        ({}, Naming.SYSTEMD, SESSION, None),  # systemd's to make
        ({"cgroups_per_qos": False}, Naming.CGROUPFS, SESSION, None),  # pods are right below the root
        ({"cgroup_root": "/"}, Naming.CGROUPFS, SESSION, None),  # nothing beside the pods is ours
    ],
)
def test_it_is_beside_the_pods_where_that_is_ours(
    settings: dict[str, object], naming: Naming, own: str, path: str | None
):
    kernel = Kernel()
    kernel.naming = naming  # type: ignore[misc]
    assert path_for(KubeletConfiguration(**settings), kernel, own) == path  # type: ignore[arg-type]


def test_on_v1_a_unit_shares_what_controls_it_with_others():
    assert path_for(KubeletConfiguration(), Kernel(Version.V1), SERVICE) == "/evenkeel/agent"


def test_it_is_left_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Directories in place of cgroups: a process is in the one whose file has its number."""
    own, origin = tmp_path / "evenkeel" / "agent", tmp_path / "session"
    for directory in (own, origin):
        directory.mkdir(parents=True)
    (own / "cgroup.procs").write_text("11\n12\n")
    moved: list[tuple[int, str]] = []

    def move(pid: int, goals: tuple[str, ...]) -> None:
        moved.append((pid, goals[0]))
        if len(moved) == 2:
            (own / "cgroup.procs").unlink()  # which a cgroup's directory can be removed with

    monkeypatch.setattr(own_cgroup, "_move", move)
    assert OwnCgroup("/evenkeel/agent", (str(own),), (str(origin),)).leave() == ""
    assert moved == [(11, str(origin)), (12, str(origin))]
    assert not own.exists()


def test_two_agents_are_not_below_one_root(tmp_path: Path):
    first = own_cgroup.claimed("/evenkeel", {"memory": str(tmp_path)})
    with pytest.raises(EvenkeelError, match="another agent has its pods below /evenkeel"):
        own_cgroup.claimed("/evenkeel", {"memory": str(tmp_path)})
    os.close(first)  # as the kernel does it for a killed process
    os.close(own_cgroup.claimed("/evenkeel", {"memory": str(tmp_path)}))


def test_what_cannot_be_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "agent"
    own.mkdir()
    (own / "kept").touch()
    monkeypatch.setattr(own_cgroup, "_LEAVE_SECONDS", 0.0)
    assert OwnCgroup("/agent", (str(own),), (str(tmp_path),)).leave() == (
        "the agent's cgroup /agent stays: directory not empty"
    )
