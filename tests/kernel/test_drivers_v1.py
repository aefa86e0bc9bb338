"""cgroup v1: what is different there."""

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.kernel_refusals import MissingController
from tests.kernel import drivers
from tests.kernel.cgroups import Cgroup
from tests.kernel.drivers import made_driver, path_of, placed
from tests.kernel.processes import Spawn

pytestmark = pytest.mark.cgroup("v1")
MIB = 1 << 20

driver, path = drivers.driver, drivers.path


@pytest.mark.req("D5")
def test_every_file_that_plans_set_takes_its_value(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str):
    driver.create(path)
    values = {
        "cpu.shares": "512",
        "cpu.cfs_period_us": "50000",
        "cpu.cfs_quota_us": "25000",
        "cpu.cfs_burst_us": "12500",
        "cpuset.cpus": "0",
        "memory.limit_in_bytes": str(64 * MIB),
        "memory.soft_limit_in_bytes": str(32 * MIB),
        "memory.memsw.limit_in_bytes": str(64 * MIB),
        "pids.max": "42",
    }
    for file, value in values.items():
        driver.write(path, file, value)
    here = placed(cgroup_root, path)
    assert {file: here.read(file) for file in values} == values


def test_a_cpuset_has_cpus_and_memory_nodes_from_those_above_it(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    bare = cgroup_root.directories["cpuset"] / "pod"
    bare.mkdir()  # made by another program, and left empty
    assert (bare / "cpuset.cpus").read_text().strip() == ""

    driver.create(path)
    driver.create(f"{path}-second")

    for one in (path, f"{path}-second"):
        here = placed(cgroup_root, one)
        assert here.read("cpuset.cpus") == cgroup_root.read("cpuset.cpus") != ""
        assert here.read("cpuset.mems") == cgroup_root.read("cpuset.mems") != ""
        spawn("memory", cgroup=here).ask("free")


def test_a_cpuset_that_was_narrowed_hands_on_no_more_than_it_has(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    pod = path.rpartition("/")[0]
    driver.create(pod)
    driver.write(pod, "cpuset.cpus", "1")
    driver.create(path)
    assert placed(cgroup_root, path).read("cpuset.cpus") == "1"


def test_memory_is_charged_up_the_tree(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str):
    driver.create(path)
    here = placed(cgroup_root, path)
    assert not here.has("memory.use_hierarchy") or here.read("memory.use_hierarchy") == "1"


@pytest.mark.req("D5")
def test_a_limit_below_what_is_used_is_refused_in_words(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    spawn("memory", cgroup=placed(cgroup_root, path)).ask(f"allocate {24 * MIB}")

    with pytest.raises(CgroupError, match="more than that is in use and cannot be reclaimed") as refused:
        driver.write(path, "memory.limit_in_bytes", str(8 * MIB))

    assert refused.value.reason == "EBUSY"
    assert "let it be evicted" in refused.value.hint


def test_memory_and_swap_are_tied_together(driver: CgroupfsDriver, path: str):
    driver.create(path)
    with pytest.raises(CgroupError, match=r"must not be below memory.limit_in_bytes") as refused:
        driver.write(path, "memory.memsw.limit_in_bytes", str(8 * MIB))
    assert refused.value.reason == "EINVAL"


def test_a_quota_above_the_one_of_the_cgroup_above_is_refused(driver: CgroupfsDriver, path: str):
    driver.create(path)
    driver.write(path.rpartition("/")[0], "cpu.cfs_quota_us", "20000")
    with pytest.raises(CgroupError, match="must not be above the quota of the cgroup above it"):
        driver.write(path, "cpu.cfs_quota_us", "50000")


@pytest.mark.req("E7")
def test_a_controller_that_is_not_mounted_is_named_with_the_command_that_mounts_it(
    cgroup_root: Cgroup, path: str
):
    driver = made_driver(cgroup_root, without=("pids",))
    driver.create(path)
    with pytest.raises(
        MissingController, match=r"controller pids of cgroup v1 is not mounted .*mount -t cgroup"
    ):
        driver.write(path, "pids.max", "5")
    driver.close()


@pytest.mark.parametrize("without", [("freezer",), ("freezer", "unified")])
def test_killing_does_without_a_freezer(
    cgroup_root: Cgroup, path: str, spawn: Spawn, without: tuple[str, ...]
):
    driver = made_driver(cgroup_root, without=without)
    driver.create(path)
    ours = placed(cgroup_root, path)
    here = Cgroup({key: place for key, place in ours.directories.items() if place.exists()})
    spawn("family", "respawn", 8, cgroup=here).answer()

    driver.remove(path)

    assert not any(directory.exists() for directory in here.paths())
    with pytest.raises(MissingController, match="controller freezer of cgroup v1 is not mounted"):
        driver.freeze(path_of(cgroup_root), frozen=True)
    driver.close()


def test_a_process_that_is_in_one_hierarchy_only_is_killed_too(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    only_memory = Cgroup({"memory": placed(cgroup_root, path).directories["memory"]})
    program = spawn("spin", cgroup=only_memory)
    program.answer()

    driver.remove(path)

    assert program.wait() == -9


@pytest.mark.req("D3")
def test_a_quota_falls_below_that_of_a_cgroup_that_was_just_removed(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    """As when an init container is done: the kernel counts its quota for a moment longer."""
    pod = path.rpartition("/")[0]
    for _ in range(5):
        driver.create(path)
        driver.write(pod, "cpu.cfs_quota_us", "-1")
        driver.write(path, "cpu.cfs_quota_us", "50000")
        driver.remove(path)
        driver.write(pod, "cpu.cfs_quota_us", "20000")
        assert placed(cgroup_root, pod).read("cpu.cfs_quota_us") == "20000"


def test_a_cpuset_without_cpus_takes_no_process_and_that_is_reported(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    pod = path.rpartition("/")[0]
    for directory in placed(cgroup_root, pod).paths():
        directory.mkdir()  # made by another program, and left empty
    program = spawn("memory")
    program.ask("free")

    with pytest.raises(CgroupError, match="its cpuset has no CPUs or no memory nodes") as refused:
        driver.add_process(pod, program.pid)

    assert refused.value.reason == "ENOSPC"
    driver.create(pod)
    driver.add_process(pod, program.pid)
