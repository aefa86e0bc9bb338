"""A driver stays where it belongs, whatever a path or a file is called."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.v2 import V2Driver

BOUNDS = Bounds("/top/ours", reserved=("/kube",), readable=("/system",))
CHECKS = ("to_read", "to_set", "to_remove")


def allowed(path: str, bounds: Bounds = BOUNDS) -> set[str]:
    found = set()
    for check in CHECKS:
        try:
            getattr(bounds, check)(path)
            found.add(check)
        except CgroupError:
            pass
    return found


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("/top/ours", {"to_read", "to_set", "to_remove"}),
        ("/top/ours/kubepods/pod1", {"to_read", "to_set", "to_remove"}),
        ("/top", {"to_read", "to_set"}),  # above ours: weight and protection pass through it
        ("/kube", {"to_read", "to_set"}),
        ("/kube/daemon", {"to_read", "to_set"}),
        ("/system/sshd", {"to_read"}),
        ("/", {"to_read"}),
        ("/top/ours2", set()),
        ("/top/other", set()),
        ("/elsewhere", set()),
    ],
)
def test_what_may_be_done_depends_on_where(path: str, checks: set[str]):
    assert allowed(path) == checks


@pytest.mark.parametrize(
    "path",
    [
        "",
        "top/ours",
        "/top/ours/..",
        "/top/ours/../../etc",
        "/top/ours/./x",
        "/top/ours//x",
        "/top/ours/",
        "/top/ours/a\0b",
        "/top/ours/\ud800",
        "/top/ours/" + "n" * 256,
        "/top/ours" + "/n" * 3000,
    ],
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str):
    assert allowed(path) == set()


@given(st.text(max_size=40), st.sampled_from(["/", "/a", "/a/b"]))
def test_no_text_is_a_way_out(text: str, root: str):
    path = root.rstrip("/") + "/" + text
    if allowed(path, Bounds(root)):
        assert os.path.normpath(path) == path
        assert "\0" not in path


def test_with_a_root_of_slash_the_hierarchy_itself_is_still_not_removed():
    assert allowed("/", Bounds("/")) == {"to_read"}
    assert allowed("/podx", Bounds("/")) == set(CHECKS)


@pytest.fixture
def driver(tmp_path: Path):
    """A directory stands in for the hierarchy: there is no kernel behind it."""
    (tmp_path / "mount" / "ours").mkdir(parents=True)
    (tmp_path / "mount" / "cgroup.controllers").write_text("memory\n")
    made = V2Driver(str(tmp_path / "mount"), Bounds("/ours"), patience_seconds=0.01)
    yield made
    made.close()


@pytest.mark.parametrize("file", ["", ".", "..", "../x", "/etc/passwd", "a/b", "x\0y"])
def test_a_file_is_a_name_and_not_a_path(driver: V2Driver, file: str):
    with pytest.raises(CgroupError, match="is not a file of cgroup /ours"):
        driver.write("/ours", file, "1")


def test_every_change_outside_is_refused_before_anything_is_touched(driver: V2Driver, tmp_path: Path):
    (tmp_path / "mount" / "other").mkdir()
    for change in (
        lambda: driver.create("/other/new"),
        lambda: driver.write("/other", "memory.max", "1"),
        lambda: driver.remove("/other"),
        lambda: driver.kill("/other"),
        lambda: driver.freeze("/other", frozen=True),
        lambda: driver.thaw_write("/other"),
        lambda: driver.add_process("/other", os.getpid()),
        lambda: driver.processes("/other"),
        lambda: driver.statistics("/other"),
        lambda: driver.files("/other"),
    ):
        with pytest.raises(CgroupError, match=r"cgroup /other.* is not ours: everything of ours is in /ours"):
            change()
    assert list((tmp_path / "mount" / "other").iterdir()) == []


def test_a_symbolic_link_is_not_followed(driver: V2Driver, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "memory.max").write_text("untouched")
    (tmp_path / "mount" / "ours" / "link").symlink_to(outside)
    (tmp_path / "mount" / "ours" / "memory.max").symlink_to(outside / "memory.max")

    with pytest.raises(CgroupError):
        driver.write("/ours/link", "memory.max", "1")
    with pytest.raises(CgroupError):
        driver.write("/ours", "memory.max", "1")
    with pytest.raises(CgroupError):
        driver.create("/ours/link/new")
    with pytest.raises(CgroupError):
        driver.remove("/ours/link")
    with pytest.raises(CgroupError):
        driver.remove("/ours/link/anything")

    assert (outside / "memory.max").read_text() == "untouched"
    assert [path.name for path in outside.iterdir()] == ["memory.max"]
