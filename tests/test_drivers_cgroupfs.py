"""Reading and writing through directories that stand in for cgroup hierarchies: errors, and what is kept open."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.cgroupfs import Bounds, Cgroupfs
from evenkeel.cgroup.drivers.kernel_refusals import MissingController, NotAvailable, refusal
from evenkeel.cgroup.drivers.mounts import Mounts
from evenkeel.cgroup.drivers.v1 import V1Driver
from evenkeel.cgroup.drivers.v2 import V2Driver
from evenkeel.cgroup.tree import Cgroup, Kind, Version
from tests.descriptors import alone, descriptors
from tests.models.cgroup_files import V1, V2, cgroup_at, crowd, setting, tree


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    root = tmp_path / "cgroup2"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (root / "cgroup.procs").write_text("")
    return root


@pytest.fixture
def driver(mount: Path) -> Iterator[V2Driver]:
    made = V2Driver(str(mount), Bounds("/top"), patience_seconds=0.01)
    yield made
    made.close()


def test_observing_tells_files_that_are_set_and_cgroups_that_should_not_be_there(
    driver: V2Driver, mount: Path
):
    cgroup_at(mount, "/top/kubepods/podx/c", memory__max="4096\n", memory__min="0\n")
    cgroup_at(mount, "/top/kubepods/podx/stranger")
    cgroup_at(mount, "/top/kubepods/pody/c")
    wanted = tree(
        Cgroup("/top/kubepods", Kind.ROOT, ()),
        Cgroup("/top/kubepods/podx", Kind.POD, ()),
        Cgroup("/top/kubepods/podx/c", Kind.CONTAINER, (setting("memory.max"), setting("pids.max"))),
        Cgroup("/top/kubepods/podx/d", Kind.CONTAINER, (setting("memory.max"),)),
    )

    assert driver.observe(wanted) == {
        "/top/kubepods": {},
        "/top/kubepods/podx": {},
        "/top/kubepods/podx/c": {"memory.max": "4096"},
        "/top/kubepods/podx/stranger": {},
        "/top/kubepods/pody": {},
    }


def test_in_the_hierarchys_own_root_only_pods_can_be_too_many(mount: Path):
    cgroup_at(mount, "/podx")
    cgroup_at(mount, "/pody")
    cgroup_at(mount, "/system.slice")
    driver = V2Driver(str(mount), Bounds("/"))

    observed = driver.observe(tree(Cgroup("/podx", Kind.POD, ())))

    assert set(observed) == {"/podx", "/pody"}
    driver.close()


def test_an_observation_is_the_same_object_until_something_changes(driver: V2Driver, mount: Path):
    cgroup_at(mount, "/top/kubepods", memory__max="4096\n")
    wanted = tree(Cgroup("/top/kubepods", Kind.ROOT, (setting("memory.max"),)))
    first = driver.observe(wanted)
    assert driver.observe(wanted) is first

    (mount / "top/kubepods/memory.max").write_text("8192\n")
    second = driver.observe(wanted)
    assert second == {"/top/kubepods": {"memory.max": "8192"}}

    cgroup_at(mount, "/top/kubepods/stranger")
    assert driver.observe(wanted) == {**second, "/top/kubepods/stranger": {}}
    assert driver.observe(wanted) is not second


@alone
def test_files_of_cgroups_that_left_the_plan_are_closed(driver: V2Driver, mount: Path):
    both = []
    for name in ("podx", "pody"):
        cgroup_at(mount, f"/top/kubepods/{name}", memory__max="4096\n")
        both.append(Cgroup(f"/top/kubepods/{name}", Kind.POD, (setting("memory.max"),)))
    root = Cgroup("/top/kubepods", Kind.ROOT, ())
    driver.observe(tree(root, both[0]))
    before = descriptors()
    driver.observe(tree(root, *both))
    assert descriptors() > before

    driver.observe(tree(root, both[0]))

    assert descriptors() == before


@alone
def test_looking_for_a_cgroup_that_is_not_there_yet_keeps_the_directories_above_it_open(mount: Path):
    cgroup_at(mount, "/top/kubepods")
    hierarchy = Cgroupfs(str(mount))
    above = hierarchy.entered("/top/kubepods")

    assert not hierarchy.exists("/top/kubepods/podx/c")
    with pytest.raises(FileNotFoundError):
        hierarchy.open("/top/kubepods/podx", "memory.max")

    assert hierarchy.closings == 0
    assert hierarchy.entered("/top/kubepods") == above
    hierarchy.close()


def test_a_cgroup_that_was_removed_and_made_again_is_found_with_what_is_below_it(mount: Path):
    top = mount / "top"
    cgroup_at(mount, "/top/kubepods")
    hierarchy = Cgroupfs(str(mount))
    assert hierarchy.exists("/top/kubepods")
    (top / "kubepods/cgroup.procs").unlink()  # as in a cgroup that was removed
    top.rename(mount / "removed")

    cgroup_at(mount, "/top/kubepods/podx", memory__max="4096\n")

    assert hierarchy.exists("/top/kubepods/podx")
    assert hierarchy.read("/top/kubepods/podx", "memory.max") == b"4096\n"
    hierarchy.close()


def test_closing_a_driver_leaves_nothing_open(mount: Path):
    cgroup_at(mount, "/top/kubepods", **{name.replace(".", "__"): text.decode() for name, text in V2.items()})
    before = descriptors()
    driver = V2Driver(str(mount), Bounds("/top"))
    driver.observe(tree(Cgroup("/top/kubepods", Kind.ROOT, (setting("memory.stat"),))))
    driver.statistics("/top/kubepods")
    assert descriptors() > before

    driver.close()

    assert descriptors() == before


def test_a_long_setting_is_read_whole(driver: V2Driver, mount: Path):
    cpus = ",".join(map(str, range(0, 1000, 2)))
    cgroup_at(mount, "/top/kubepods", cpuset__cpus=cpus + "\n")
    wanted = tree(Cgroup("/top/kubepods", Kind.ROOT, (setting("cpuset.cpus"),)))
    assert driver.observe(wanted)["/top/kubepods"]["cpuset.cpus"] == cpus


def test_statistics_of_both_versions_are_read_from_their_files(driver: V2Driver, mount: Path, tmp_path: Path):
    cgroup_at(mount, "/top/c", **{name.replace(".", "__"): text.decode() for name, text in V2.items()})
    mounts = {}
    for controller in ("memory", "cpu", "cpuacct", "pids"):
        mounts[controller] = str(tmp_path / controller)
        files = {n.replace(".", "__"): t.decode() for n, t in V1.items() if n.startswith(f"{controller}.")}
        cgroup_at(tmp_path / controller, "/top/c", **files)
    old = V1Driver(Mounts(mounts), Bounds("/top"))

    assert driver.statistics("/top/c") == old.statistics("/top/c")
    old.close()


def test_statistics_of_no_cgroup_or_without_a_controller_are_an_error(
    driver: V2Driver, mount: Path, tmp_path: Path
):
    with pytest.raises(CgroupError, match="there is no cgroup /top/none"):
        driver.statistics("/top/none")
    cgroup_at(mount, "/top/c")
    with pytest.raises(
        MissingController, match=r"cgroup /top does not hand on .* \(echo \+memory > .*/top/cgroup.sub"
    ):
        driver.statistics("/top/c")
    assert not (mount / "top/cgroup.subtree_control").exists()
    (mount / "cgroup.controllers").write_text("cpu\n")
    driver.close()
    with pytest.raises(MissingController, match="has no controller memory"):
        driver.statistics("/top/c")
    (tmp_path / "cpu").mkdir()
    cgroup_at(tmp_path / "cpu", "/top/c")
    old = V1Driver(Mounts({"cpu": str(tmp_path / "cpu")}), Bounds("/top"))
    with pytest.raises(MissingController, match="controller memory of cgroup v1 is not mounted"):
        old.statistics("/top/c")
    old.close()


def test_statistics_that_make_no_sense_are_an_error_and_no_traceback(driver: V2Driver, mount: Path):
    cgroup_at(mount, "/top/c", memory__current="a lot\n")
    with pytest.raises(CgroupError, match="the figures of cgroup /top/c cannot be read"):
        driver.statistics("/top/c")


def test_writing_names_the_file_the_value_and_the_reason(driver: V2Driver, mount: Path):
    cgroup_at(mount, "/top/c", memory__max="max\n")
    with pytest.raises(
        CgroupError, match=r"cannot write 5 to memory.max of cgroup /top/gone: the cgroup vanished"
    ) as gone:
        driver.write("/top/gone", "memory.max", "5")
    assert (gone.value.path, gone.value.file, gone.value.reason) == ("/top/gone", "memory.max", "ENOENT")

    (mount / "top/c/memory.high").mkdir()
    with pytest.raises(CgroupError, match=r"memory.high of cgroup /top/c: .*\(EISDIR\)"):
        driver.write("/top/c", "memory.high", "5")


@pytest.mark.parametrize(
    ("number", "file", "words"),
    [
        (errno.EBUSY, "memory.limit_in_bytes", "more than that is in use"),
        (errno.EBUSY, "cgroup.subtree_control", "move them to a cgroup of their own"),
        (errno.EINVAL, "memory.memsw.limit_in_bytes", "must not be below memory.limit_in_bytes"),
        (errno.EACCES, "cpu.weight", "run as root"),
        (errno.EROFS, "cpu.weight", "remount,rw"),
        (errno.ENOSPC, "cgroup.procs", "no CPUs or no memory nodes"),
        (errno.ENODEV, "cpu.weight", "made again on the next pass"),
        (errno.EIO, "cpu.weight", "input/output error"),
        (9999, "cpu.weight", "unknown error 9999"),
    ],
)
def test_what_the_kernel_means_is_reported_with_the_mend(number: int, file: str, words: str):
    said = refusal(OSError(number, os.strerror(number)), "write", "/top/c", file, "7")
    assert words in str(said)
    assert f"7 to {file} of cgroup /top/c" in str(said)
    assert said.reason == errno.errorcode.get(number, "")


def test_a_file_the_kernel_does_not_have_names_the_kernel_that_does(driver: V2Driver, mount: Path):
    cgroup_at(mount, "/top/c", cgroup__controllers="cpu memory\n")
    assert driver.lacking("cpu.max.burst") is None

    with pytest.raises(NotAvailable, match=r"is not available on this kernel \(it came with Linux 5.14\)"):
        driver.write("/top/c", "cpu.max.burst", "5")

    assert isinstance(driver.lacking("cpu.max.burst"), NotAvailable)


def test_a_controller_the_machine_does_not_have_is_named_with_the_mend(driver: V2Driver, mount: Path):
    cgroup_at(mount, "/top/c", cgroup__controllers="cpu memory\n")
    with pytest.raises(
        MissingController, match=r"has no controller cpuset \(if cgroup v1 has it, boot with"
    ) as lost:
        driver.write("/top/c", "cpuset.cpus", "0")
    assert (lost.value.controller, lost.value.where) == ("cpuset", "/")
    assert isinstance(driver.lacking("hugetlb.2MB.max"), NotAvailable), "optional, as for kubelet"


def test_hierarchies_of_v1_are_looked_up_by_the_files_controller(tmp_path: Path):
    for directory in ("cpu,cpuacct", "memory"):
        cgroup_at(tmp_path / directory, "/top/c")
    together = str(tmp_path / "cpu,cpuacct")
    driver = V1Driver(
        Mounts({"cpu": together, "cpuacct": together, "memory": str(tmp_path / "memory")}), Bounds("/top")
    )
    (tmp_path / "cpu,cpuacct/top/c/cpu.shares").write_text("")

    driver.write("/top/c", "cpu.shares", "512")

    assert (tmp_path / "cpu,cpuacct/top/c/cpu.shares").read_text() == "512"
    assert driver.files("/top/c") == {
        "cpu": f"{together}/top/c",
        "cpuacct": f"{together}/top/c",
        "memory": str(tmp_path / "memory/top/c"),
    }
    assert isinstance(driver.lacking("pids.max"), MissingController)
    assert isinstance(driver.lacking("hugetlb.2MB.limit_in_bytes"), NotAvailable)
    driver.close()


def test_a_cgroup_that_one_hierarchy_lacks_is_not_there(tmp_path: Path):
    for directory in ("cpu", "memory"):
        cgroup_at(tmp_path / directory, "/top/kubepods")
    cgroup_at(tmp_path / "cpu", "/top/kubepods/podx", cpu__shares="2\n")
    driver = V1Driver(Mounts({name: str(tmp_path / name) for name in ("cpu", "memory")}), Bounds("/top"))
    wanted = tree(
        Cgroup("/top/kubepods", Kind.ROOT, ()),
        Cgroup("/top/kubepods/podx", Kind.POD, (setting("cpu.shares"),)),
        version=Version.V1,
    )

    assert set(driver.observe(wanted)) == {"/top/kubepods"}
    cgroup_at(tmp_path / "memory", "/top/kubepods/podx")
    assert set(driver.observe(wanted)) == {"/top/kubepods", "/top/kubepods/podx"}
    driver.close()


class Leaving(V1Driver):
    """A driver under which the last process leaves a cgroup after its removal has begun."""

    process: Path

    def _before_removal(self, path: str) -> None:
        super()._before_removal(path)
        self.process.rmdir()


def test_a_cgroup_leaves_the_hierarchies_of_others_too_when_its_last_process_leaves_meanwhile(tmp_path: Path):
    for directory in ("memory", "systemd"):
        (tmp_path / directory / "top/c").mkdir(parents=True)
    driver = Leaving(
        Mounts({"memory": str(tmp_path / "memory")}, others=(str(tmp_path / "systemd"),)), Bounds("/top")
    )
    driver.process = tmp_path / "systemd/top/c/process"  # what keeps a directory from being removed
    driver.process.mkdir()

    driver.remove("/top/c")

    assert not (tmp_path / "memory/top/c").exists()
    assert not (tmp_path / "systemd/top/c").exists()
    driver.close()


def test_a_low_limit_on_open_files_is_raised(mount: Path):
    wanted = crowd(mount)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    driver = V2Driver(str(mount), Bounds("/top"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 30, hard))
        assert len(driver.observe(wanted)) == len(wanted.cgroups)
    finally:
        driver.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_the_limit_on_open_files_cannot_be_raised_fewer_are_kept_open(mount: Path):
    crowd(mount)
    script = (
        "import resource; from pathlib import Path\n"
        "from evenkeel.cgroup.drivers.cgroupfs import Bounds; from evenkeel.cgroup.drivers.v2 import V2Driver\n"
        "from tests.models.cgroup_files import crowd\n"
        f"mount = Path({str(mount)!r}); driver = V2Driver(str(mount), Bounds('/top'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))\n"
        "for _ in range(2): print(len(driver.observe(crowd(mount, make=False))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("101\n101\n", "")
