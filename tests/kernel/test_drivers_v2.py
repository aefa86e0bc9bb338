"""cgroup v2: what is different there."""

import signal

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.kernel_refusals import MissingController, NotAvailable
from evenkeel.cgroup.drivers.v2 import V2Driver
from tests.kernel import drivers
from tests.kernel.cgroups import UNIFIED, Cgroup
from tests.kernel.drivers import made_driver, path_of, placed
from tests.kernel.processes import Spawn

pytestmark = pytest.mark.cgroup("v2")
MIB = 1 << 20

driver, path = drivers.driver, drivers.path


@pytest.mark.req("D5", "C1", "C3")
def test_every_file_that_plans_set_takes_its_value(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str):
    driver.create(path)
    values = {
        "cpu.weight": "50",
        "cpu.max": "25000 50000",
        "cpu.max.burst": "12500",
        "cpuset.cpus": "0",
        "memory.min": str(16 * MIB),
        "memory.low": str(32 * MIB),
        "memory.high": str(48 * MIB),
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "42",
    }
    for file, value in values.items():
        driver.write(path, file, value)
    here = placed(cgroup_root, path)
    assert {file: here.read(file) for file in values} == values
    driver.write(f"{path_of(cgroup_root)}/pod", "cpu.idle", "1")
    assert placed(cgroup_root, f"{path_of(cgroup_root)}/pod").read("cpu.idle") == "1"


def test_controllers_reach_down_to_the_last_cgroup_and_no_further(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    offered = set((cgroup_root.paths()[0].parent / "cgroup.controllers").read_text().split())
    wanted = offered & {"cpu", "cpuset", "memory", "pids", "hugetlb"}

    driver.create(path)

    container, pod = placed(cgroup_root, path), placed(cgroup_root, path.rpartition("/")[0])
    assert wanted <= set(container.read("cgroup.controllers").split())
    assert wanted <= set(pod.read("cgroup.subtree_control").split())
    assert container.read("cgroup.subtree_control") == "", "or no process could live in it"


def test_controllers_that_somebody_took_away_are_handed_on_again(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    driver.create(path)
    pod = placed(cgroup_root, path.rpartition("/")[0])
    for controller in pod.read("cgroup.subtree_control").split():
        pod.write("cgroup.subtree_control", f"-{controller}")

    driver.write(path, "memory.max", str(64 * MIB))

    assert placed(cgroup_root, path).read("memory.max") == str(64 * MIB)


@pytest.mark.req("E7")
def test_a_cgroup_with_processes_cannot_hand_on_controllers_and_that_is_reported(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    pod = path.rpartition("/")[0]
    driver.create(pod)
    intruder = spawn("memory", cgroup=placed(cgroup_root, pod))
    intruder.ask("free")

    driver.create(path)
    with pytest.raises(MissingController, match="processes run in it") as refused:
        driver.write(path, "memory.max", str(64 * MIB))

    assert (refused.value.controller, refused.value.where) == ("memory", pod)
    assert "move them to a cgroup of their own" in refused.value.hint
    assert intruder.is_alive()
    assert placed(cgroup_root, pod).read("cgroup.type") == "domain", "and did not become threaded"
    intruder.kill()
    driver.write(path, "memory.max", str(64 * MIB))


def test_a_cgroup_that_hands_on_controllers_takes_no_process(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    program = spawn("memory")
    program.ask("free")
    with pytest.raises(CgroupError, match="processes live in the cgroups at the ends of the tree") as refused:
        driver.add_process(path.rpartition("/")[0], program.pid)
    assert refused.value.reason == "EBUSY"


class OldKernel(V2Driver):
    """A driver as on a kernel before 5.14, which has no cgroup.kill."""

    def _kill_at_once(self, path: str) -> bool:
        return False


@pytest.mark.parametrize("family", ["respawn", "zombies"])
def test_killing_does_without_cgroup_kill(cgroup_root: Cgroup, path: str, spawn: Spawn, family: str):
    bounds = made_driver(cgroup_root)._bounds  # noqa: SLF001 those of this test
    driver = OldKernel(str(cgroup_root.directories[UNIFIED].parent), bounds)
    driver.create(path)
    program = spawn("family", family, 8, cgroup=placed(cgroup_root, path))
    program.answer()

    driver.kill(path)

    assert program.wait() == -signal.SIGKILL
    assert driver.processes(path) == ()
    assert placed(cgroup_root, path).read("cgroup.freeze") == "0"
    driver.close()


def test_a_file_that_no_kernel_has_is_known_to_be_missing_afterwards(driver: CgroupfsDriver, path: str):
    driver.create(path)
    assert driver.lacking("memory.nothing") is None
    with pytest.raises(NotAvailable):
        driver.write(path, "memory.nothing", "1")
    assert isinstance(driver.lacking("memory.nothing"), NotAvailable)


def test_a_limit_on_the_number_of_cgroups_is_named(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str):
    cgroup_root.write("cgroup.max.descendants", "1")
    with pytest.raises(CgroupError, match="a limit on the number of cgroups is reached") as refused:
        driver.create(path)
    assert (refused.value.reason, refused.value.path) == ("EAGAIN", path)
    assert "cgroup.max.descendants" in refused.value.hint


def test_where_no_cgroup_fits_below_a_limit_on_memory_the_limit_is_suspected(
    driver: CgroupfsDriver, path: str
):
    pod = path.rpartition("/")[0]
    driver.create(pod)
    driver.write(pod, "memory.max", "0")
    with pytest.raises(CgroupError, match="a limit on memory above it may be too small") as refused:
        driver.create(path)
    assert refused.value.reason == "ENOMEM"
