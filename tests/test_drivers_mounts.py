"""Finding cgroup hierarchies in /proc/self/mountinfo, and what is made of them."""

from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.detect import bounds_of, detect, driver_for
from evenkeel.cgroup.drivers.mounts import Mounts, parse_mountinfo
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.errors import EvenkeelError

UNIFIED = (
    "26 23 0:24 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
)
HYBRID = """\
24 22 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw
31 24 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw
33 31 0:30 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/net_cls,net_prio rw shared:17 - cgroup cgroup rw,net_cls,net_prio
39 31 0:36 / /sys/fs/cgroup/pids rw shared:18 - cgroup cgroup rw,pids
"""


def test_a_unified_machine_has_one_hierarchy():
    assert parse_mountinfo(UNIFIED) == Mounts({}, "/sys/fs/cgroup")


def test_controllers_mounted_together_share_a_mount_point_and_the_rest_is_only_known_of():
    assert parse_mountinfo(HYBRID) == Mounts(
        {
            "cpu": "/sys/fs/cgroup/cpu,cpuacct",
            "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
            "memory": "/sys/fs/cgroup/memory",
            "pids": "/sys/fs/cgroup/pids",
        },
        "/sys/fs/cgroup/unified",
        ("/sys/fs/cgroup/net_cls,net_prio", "/sys/fs/cgroup/systemd"),
    )


def test_of_two_mounts_the_one_that_shows_the_whole_hierarchy_is_taken():
    text = """\
40 31 0:34 /docker/abc /var/lib/x/memory rw - cgroup cgroup rw,memory
41 31 0:34 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
42 31 0:34 / /mnt/memory rw - cgroup cgroup rw,memory
"""
    assert parse_mountinfo(text).v1 == {"memory": "/sys/fs/cgroup/memory"}


def test_inside_a_container_a_part_of_the_hierarchy_has_to_do():
    text = "40 31 0:34 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw"
    assert parse_mountinfo(text).v2 == "/sys/fs/cgroup"


def test_a_mount_that_another_covers_is_not_there():
    text = f"{UNIFIED}\n50 26 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw"
    assert parse_mountinfo(text) == Mounts({}, "")


def test_blanks_in_a_mount_point_are_written_in_octal():
    text = r"40 31 0:34 / /mnt/my\040cgroups rw - cgroup2 cgroup rw"
    assert parse_mountinfo(text).v2 == "/mnt/my cgroups"


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3 - cgroup", "a b c d e f - cgroup2", " - - - "])
def test_lines_that_make_no_sense_are_passed_over(text: str):
    assert parse_mountinfo(text) == Mounts({}, "")


def write_machine(tmp_path: Path, v1: tuple[str, ...], v2_controllers: str | None) -> str:
    """A mountinfo file of hierarchies that are directories below `tmp_path`."""
    lines = []
    for controllers in v1:
        (tmp_path / controllers).mkdir()
        lines.append(f"1 2 0:1 / {tmp_path / controllers} rw - cgroup cgroup rw,{controllers}")
    if v2_controllers is not None:
        (tmp_path / "unified").mkdir()
        (tmp_path / "unified" / "cgroup.controllers").write_text(v2_controllers + "\n")
        lines.append(f"1 2 0:1 / {tmp_path / 'unified'} rw - cgroup2 cgroup2 rw")
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join(lines) + "\n")
    return str(mountinfo)


def test_a_hybrid_machine_is_version_1_with_the_unified_hierarchy_beside(tmp_path: Path):
    machine = detect(write_machine(tmp_path, ("cpu,cpuacct", "memory"), "hugetlb"))

    assert machine.version == Version.V1
    assert machine.is_hybrid
    assert machine.controllers == {
        "cpu": str(tmp_path / "cpu,cpuacct"),
        "cpuacct": str(tmp_path / "cpu,cpuacct"),
        "memory": str(tmp_path / "memory"),
    }


def test_a_v2_machine_tells_which_controllers_it_has(tmp_path: Path):
    machine = detect(write_machine(tmp_path, (), "cpuset cpu io memory pids"))

    assert machine.version == Version.V2
    assert not machine.is_hybrid
    assert set(machine.controllers) == {"cpu", "cpuset", "memory", "pids"}


def test_a_few_v1_controllers_without_memory_leave_resources_to_v2(tmp_path: Path):
    assert detect(write_machine(tmp_path, ("freezer",), "cpu memory pids")).version == Version.V2


def test_a_machine_without_cgroups_gets_the_command_that_mounts_them(tmp_path: Path):
    with pytest.raises(EvenkeelError, match="mount -t cgroup2"):
        detect(write_machine(tmp_path, (), None))
    with pytest.raises(EvenkeelError, match=r"cannot read .*nothing-here"):
        detect(str(tmp_path / "nothing-here"))


@pytest.mark.parametrize(
    ("config", "root"),
    [
        ({"cgroup_root": "/evenkeel"}, "/evenkeel"),
        ({"cgroup_root": "/"}, "/kubepods"),
        ({"cgroup_root": "/", "cgroups_per_qos": False}, "/"),
        ({"cgroup_root": "/a/b/"}, "/a/b"),
    ],
)
def test_what_is_ours_follows_from_the_configuration(config: dict[str, Any], root: str):
    full = defaulted(KubeletConfiguration(**config, kube_reserved_cgroup="/kube"))
    assert bounds_of(full, Naming.CGROUPFS, ("/user",)) == Bounds(root, ("/kube",), ("/user",))


def test_under_systemd_our_root_is_a_slice():
    full = defaulted(KubeletConfiguration(cgroup_root="/a/b"))
    assert bounds_of(full, Naming.SYSTEMD).root == "/a.slice/a-b.slice"


def test_systemd_slices_need_version_2(tmp_path: Path):
    machine = detect(write_machine(tmp_path, ("memory",), None))
    with pytest.raises(EvenkeelError, match="cgroupDriver systemd needs cgroup v2"):
        driver_for(machine, defaulted(KubeletConfiguration(cgroup_driver="systemd")))
