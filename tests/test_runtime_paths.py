"""Names from outside become paths in the state directory, and never lead out of it; the mount table is read right."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.runtime.paths import StatePaths, UnsafeName, checked, state_paths
from evenkeel.runtime.process.launch import kernel_mounts
from evenkeel.runtime.procfs import Mounted, is_below, mounts_outside, other_ways, parse_mounts

PATHS = StatePaths("/state")
OUTSIDE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\0b",
    "a_b",
    ".hidden",
    "a\nb",
    "ä",
    "x" * 256,
    "a b",
    "-\x1b[2J",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    for make in (
        lambda: PATHS.pod(name),
        lambda: PATHS.pod_memory(name),
        lambda: PATHS.volume("uid", name),
        lambda: PATHS.memory_volume("uid", name),
        lambda: PATHS.attempt("uid", name, 1),
        lambda: PATHS.pod_logs("default", name, "uid"),
        lambda: PATHS.pod_logs("default", "pod", name),
        lambda: PATHS.log("default", "pod", "uid", name, 1),
        lambda: PATHS.image(name),
    ):
        with pytest.raises(UnsafeName):
            make()
    if name:  # no namespace is the default one
        with pytest.raises(UnsafeName):
            PATHS.pod_logs(name, "pod", "uid")


@given(name=st.text(max_size=300))
def test_whatever_is_accepted_is_one_component_below_its_directory(name: str) -> None:
    try:
        path = PATHS.pod(name)
    except UnsafeName as error:
        said = str(error)
    else:
        said = ""
        assert os.path.normpath(path) == path
        assert Path(path).parent == Path("/state/pods")
        assert len(Path(path).name.encode()) <= 255
    assert said.isprintable()


def test_kubernetes_own_names_are_accepted() -> None:
    uid = "0c9c9b6e-4f4a-4d8e-9d43-0f7f2b6c1a11"
    assert PATHS.log("kube-system", "web.example.org-0", uid, "app", 3) == (
        f"/state/logs/kube-system_web.example.org-0_{uid}/app/3.log"
    )
    assert PATHS.attempt(uid, "app", 3) == f"/state/pods/{uid}/app.3"
    assert PATHS.pod_logs("", "web", uid) == f"/state/logs/default_web_{uid}"


def test_an_attempt_is_a_number_whatever_is_given() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        PATHS.attempt("uid", "app", "../../x")  # type: ignore[arg-type]


def test_the_message_says_what_was_seen() -> None:
    with pytest.raises(UnsafeName, match=r"volume name '\.\./etc' cannot name a directory"):
        checked("../etc", "volume name")


def test_a_state_directory_is_known_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert state_paths(f"{tmp_path}/link/") == StatePaths(str(tmp_path / "real"))


MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw
40 27 254:0 /srv /mnt/a\\040b rw,relatime shared:1 master:2 - ext4 /dev/vda rw
41 27 0:40 / /cg rw - cgroup none rw,memory
42 27 0:41 / /mnt/proc rw - proc proc rw
a line that is none
"""


def test_the_mount_table_is_read_with_blanks_in_paths() -> None:
    mounts = parse_mounts(MOUNTINFO)
    assert len(mounts) == 6
    assert mounts[3] == Mounted("254:0", "/srv", "/mnt/a b", "ext4")


def test_kernel_interfaces_elsewhere_than_usual_are_found() -> None:
    assert kernel_mounts("/state", parse_mounts(MOUNTINFO)) == ("/cg", "/mnt/proc")


ROOT = Mounted("254:0", "/", "/", "ext4")


@pytest.mark.parametrize(
    "directory, mounts, ways",
    [
        ("/var/state", (ROOT,), ()),
        ("/var/state", (ROOT, Mounted("254:0", "/", "/mnt", "ext4")), ("/mnt/var/state",)),
        ("/var/state", (ROOT, Mounted("254:0", "/var", "/mnt", "ext4")), ("/mnt/state",)),
        ("/var/state", (ROOT, Mounted("254:0", "/var/state/pods", "/mnt", "ext4")), ("/mnt",)),
        ("/var/state", (ROOT, Mounted("254:0", "/home", "/mnt", "ext4")), ()),
        ("/var/state", (ROOT, Mounted("254:0", "/var/stateful", "/mnt", "ext4")), ()),
        # The state directory is on a filesystem of its own, which is mounted twice.
        (
            "/var/state",
            (ROOT, Mounted("8:1", "/", "/var/state", "xfs"), Mounted("8:1", "/", "/mnt", "xfs")),
            ("/mnt",),
        ),
        # It is itself below a bind mount of a part of the disk.
        ("/srv/state", (ROOT, Mounted("254:0", "/data/srv", "/srv", "ext4")), ("/data/srv/state",)),
        # What is mounted in it is covered with it.
        ("/var/state", (ROOT, Mounted("254:0", "/var/state/a", "/var/state/b", "ext4")), ()),
    ],
)
def test_every_other_way_to_the_state_directory_is_found(
    directory: str, mounts: tuple[Mounted, ...], ways: tuple[str, ...]
) -> None:
    assert other_ways(directory, mounts) == ways


def test_below_means_by_components() -> None:
    assert is_below("/a/b", "/a")
    assert is_below("/a", "/a")
    assert is_below("/a", "/")
    assert not is_below("/ab", "/a")


def test_mounts_below_a_directory_are_left_out_before_they_are_parsed():
    ours = b"90 22 0:50 / /state/memory rw - tmpfs tmpfs rw\n91 90 0:51 / /state/memory/u/token rw - tmpfs t rw\n"
    at_it, beside = (
        b"92 22 8:1 /s /state rw - ext4 /dev/x rw\n",
        b"93 22 8:1 / /states/x rw - ext4 /dev/x rw\n",
    )
    assert parse_mounts(mounts_outside("/state", MOUNTINFO + ours + at_it + beside)) == parse_mounts(
        MOUNTINFO + at_it + beside
    )
    assert mounts_outside("/state", MOUNTINFO + ours) == mounts_outside("/state", MOUNTINFO)
