"""The drivers of cgroup v1 and v2 do the same: they make, fill, measure, freeze, kill and remove cgroups."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from tests.kernel import drivers
from tests.kernel.cgroups import Cgroup
from tests.kernel.drivers import made_driver, path_of, placed
from tests.kernel.processes import Program, Spawn, read_until
from tests.kernel.waiting import eventually

# Under systemd these cgroups would be made behind its back: its own driver has tests of its own.
pytestmark = pytest.mark.cgroup("v1", "v2")
MIB = 1 << 20

driver, path = drivers.driver, drivers.path


def times_it_gave_way(program: Program) -> int:
    """How often it has left its processor by itself. A time that it used there is counted by then."""
    lines = Path(f"/proc/{program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.req("B10", "D5")
def test_a_cgroup_is_made_with_those_above_it_in_every_hierarchy_and_takes_a_process(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    driver.create(path)  # one that is there is fine

    program = spawn("memory")
    program.ask("free")
    driver.add_process(path, program.pid)

    here = placed(cgroup_root, path)
    hierarchies = [Path(directory) for directory in set(driver.files(path).values())]
    assert set(hierarchies) <= set(here.paths())
    for directory in hierarchies:
        assert (directory / "cgroup.procs").read_text().split() == [str(program.pid)]
    assert driver.processes(path) == (program.pid,)
    assert driver.processes(path_of(cgroup_root)) == (program.pid,), "and everything above knows of it"


def test_a_process_that_has_ended_cannot_be_moved(driver: CgroupfsDriver, path: str, spawn: Spawn):
    driver.create(path)
    program = spawn("memory")
    program.kill()

    with pytest.raises(CgroupError, match="the process has ended") as refused:
        driver.add_process(path, program.pid)
    assert refused.value.reason == "ESRCH"


def test_removing_a_cgroup_ends_everything_in_it_and_leaves_nothing(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    driver.create(f"{path}/inner/most")  # as a container with cgroups of its own has
    program = spawn("family", "tree", 2, 3, cgroup=placed(cgroup_root, f"{path}/inner/most"))
    assert program.answer() == "ready 12"

    driver.remove(path)

    assert program.wait() == -signal.SIGKILL
    assert not any(directory.exists() for directory in placed(cgroup_root, path).paths())
    driver.remove(path)  # one that is gone is fine


@pytest.mark.parametrize("family", ["respawn", "zombies"])
def test_killing_keeps_up_with_processes_that_fork_or_are_dead_already(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn, family: str
):
    driver.create(path)
    program = spawn("family", family, 8, cgroup=placed(cgroup_root, path))
    assert program.answer() == "ready 8"

    driver.kill(path)

    assert driver.processes(path) == ()
    assert program.wait() == -signal.SIGKILL
    driver.remove(path)
    assert not any(directory.exists() for directory in placed(cgroup_root, path).paths())


def test_a_cgroup_full_of_zombies_that_nobody_waits_for_can_go(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    programs = [spawn("memory", cgroup=placed(cgroup_root, path)) for _ in range(5)]
    for program in programs:
        program.ask("free")
        os.kill(program.pid, signal.SIGKILL)
        eventually(lambda pid=program.pid: ") Z " in Path(f"/proc/{pid}/stat").read_text())

    driver.kill(path)
    driver.remove(path)

    assert not any(directory.exists() for directory in placed(cgroup_root, path).paths())
    assert all(") Z " in Path(f"/proc/{program.pid}/stat").read_text() for program in programs)


def test_a_frozen_cgroup_stands_still_until_it_is_thawed(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    other = f"{path}-other"
    programs = []
    for one in (path, other):
        driver.create(one)
        programs.append(spawn("spin", cgroup=placed(cgroup_root, one)))
        assert programs[-1].answer() == "spinning"
    switches = times_it_gave_way(programs[0])

    driver.freeze(path, frozen=True)

    # The kernel says so shortly before the process leaves its processor, which may be taken from both meanwhile.
    eventually(lambda: times_it_gave_way(programs[0]) > switches)
    used = driver.statistics(path).cpu_usage_us
    meanwhile = driver.statistics(other).cpu_usage_us
    eventually(lambda: driver.statistics(other).cpu_usage_us > meanwhile + 50_000)
    assert driver.statistics(path).cpu_usage_us == used
    driver.freeze(path, frozen=False)
    eventually(lambda: driver.statistics(path).cpu_usage_us > used + 20_000)


def test_who_knows_the_file_and_the_value_can_thaw_in_place_of_the_driver(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    assert spawn("spin", cgroup=placed(cgroup_root, path)).answer() == "spinning"
    driver.freeze(path, frozen=True)
    used = driver.statistics(path).cpu_usage_us

    file, value = driver.thaw_write(path)
    Path(file).write_text(value)

    eventually(lambda: driver.statistics(path).cpu_usage_us > used + 20_000)


def test_what_is_frozen_can_be_killed_also_where_a_cgroup_below_was_frozen_by_itself(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    inner = f"{path}/inner"
    driver.create(inner)
    program = spawn("spin", cgroup=placed(cgroup_root, inner))
    program.answer()
    driver.freeze(inner, frozen=True)
    driver.freeze(path, frozen=True)

    driver.remove(path)

    assert program.wait() == -signal.SIGKILL


def test_a_driver_does_not_kill_itself(cgroup_root: Cgroup, driver: CgroupfsDriver, path: str):
    driver.create(path)
    child = os.fork()
    if child == 0:  # the copy goes in, and tries to remove the cgroup it is in
        driver.add_process(path, os.getpid())
        try:
            driver.remove(path)
        except CgroupError as error:
            os._exit(7 if "this one is in it" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.req("D5")
def test_statistics_tell_memory_processor_and_processes(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    here = placed(cgroup_root, path)
    before = driver.statistics(path)
    assert (before.pids, before.memory_rss_bytes, before.cpu_usage_us) == (0, 0, 0)

    holder, spinner = spawn("memory", cgroup=here), spawn("spin", cgroup=here)
    spinner.answer()
    holder.ask(f"allocate {20 * MIB}")

    now = driver.statistics(path)
    assert now.pids == 2
    assert 20 * MIB <= now.memory_usage_bytes < 40 * MIB
    eventually(lambda: 20 * MIB <= driver.statistics(path).memory_rss_bytes < 40 * MIB)
    assert now.memory_working_set_bytes <= now.memory_usage_bytes
    assert now.page_faults >= 20 * MIB // 4096 // 16, "each page or so is a fault"
    eventually(lambda: driver.statistics(path).cpu_usage_us > 20_000)
    pod = driver.statistics(path.rpartition("/")[0])
    assert (pod.pids, pod.memory_usage_bytes >= 20 * MIB) == (2, True), "a pod has what its containers have"


def test_statistics_tell_throttling(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn):
    driver.create(path)
    here = placed(cgroup_root, path)
    if here.has("cpu.max"):
        driver.write(path, "cpu.max", "5000 50000")
    else:
        driver.write(path, "cpu.cfs_period_us", "50000")
        driver.write(path, "cpu.cfs_quota_us", "5000")
    spawn("spin", cgroup=here).answer()

    eventually(lambda: driver.statistics(path).cpu_throttled_us > 20_000)


@pytest.mark.req("E3")
def test_the_working_set_leaves_out_cache_that_was_not_used_lately(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn, tmp_path: Path
):
    driver.create(path)
    reader = spawn("cache", tmp_path / "data", cgroup=placed(cgroup_root, path))
    reader.ask(f"write {16 * MIB}")
    looks: list[Statistics] = []

    def is_in_cache() -> bool:
        looks.append(driver.statistics(path))
        return looks[-1].memory_droppable_bytes >= 16 * MIB

    read_until(reader, is_in_cache)
    assert looks[-1].memory_usage_bytes >= 16 * MIB
    assert looks[-1].memory_working_set_bytes < 8 * MIB


@pytest.mark.req("E6")
def test_statistics_count_oom_kills(driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn):
    driver.create(path)
    here = placed(cgroup_root, path)
    driver.write(path, "memory.max" if here.has("memory.max") else "memory.limit_in_bytes", str(16 * MIB))
    eater = spawn("memory", cgroup=here)
    eater.tell(f"allocate {32 * MIB}")
    assert eater.wait() == -signal.SIGKILL

    eventually(lambda: driver.statistics(path).oom_kills == 1)


def test_a_cgroup_that_was_removed_and_made_again_is_measured_anew(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    driver.create(path)
    assert driver.statistics(path).pids == 0
    placed(cgroup_root, path).remove()  # behind the driver's back

    with pytest.raises(CgroupError, match=f"there is no cgroup {path}"):
        driver.statistics(path)

    driver.create(path)
    spawn("memory", cgroup=placed(cgroup_root, path)).ask("free")
    assert driver.statistics(path).pids == 1


def test_descriptors_of_cgroups_that_are_gone_are_let_go(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    driver.create(path)
    driver.statistics(path)
    before = open_descriptors()
    for number in range(5):
        other = f"{path_of(cgroup_root)}/pod{number}"
        driver.create(other)
        driver.statistics(other)
        if number % 2:
            driver.remove(other)
        else:
            placed(cgroup_root, other).remove()
            with pytest.raises(CgroupError):
                driver.statistics(other)
    driver.remove(path)
    driver.create(path)
    driver.statistics(path)
    assert open_descriptors() <= before + 5 * len(set(driver.files(path).values())), "directories at most"


def test_the_whole_line_of_cgroups_may_be_replaced_behind_our_back(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str
):
    driver.create(path)
    driver.statistics(path)
    placed(cgroup_root, path.rpartition("/")[0]).remove()

    driver.create(path)

    driver.write(path, "pids.max", "77")
    assert placed(cgroup_root, path).read("pids.max") == "77"


def test_a_write_that_the_kernel_refuses_names_file_value_and_reason(driver: CgroupfsDriver, path: str):
    driver.create(path)
    with pytest.raises(
        CgroupError, match=rf"cannot write many to pids.max of cgroup {path}: .*\(EINVAL\)"
    ) as error:
        driver.write(path, "pids.max", "many")
    assert error.value.reason == "EINVAL"
    with pytest.raises(CgroupError, match="the cgroup vanished"):
        driver.write(f"{path}/none", "pids.max", "1")
    with pytest.raises(CgroupError, match=r"memory.nothing of cgroup .* is not available on this kernel"):
        driver.write(path, "memory.nothing", "1")


def test_nothing_is_made_where_a_file_is(driver: CgroupfsDriver, path: str):
    driver.create(path)
    with pytest.raises(CgroupError):
        driver.create(f"{path}/cgroup.procs/inner")


def test_processes_that_will_not_die_are_named(
    driver: CgroupfsDriver, cgroup_root: Cgroup, path: str, spawn: Spawn
):
    """Nothing can be killed that is frozen from above on cgroup v1; on v2 the frozen die too."""
    driver.create(path)
    program = spawn("spin", cgroup=placed(cgroup_root, path))
    program.answer()
    driver.freeze(path_of(cgroup_root), frozen=True)
    try:
        if "freezer" in driver.files(path):
            # It waits in vain. To freeze, and to die on v2, may take a busy machine longer than this one waits.
            with (
                contextlib.closing(made_driver(cgroup_root, patience_seconds=0.3)) as impatient,
                pytest.raises(CgroupError, match=rf"could not be emptied: process {program.pid} did not die"),
            ):
                impatient.kill(path)
        else:
            driver.kill(path)
    finally:
        driver.freeze(path_of(cgroup_root), frozen=False)
        driver.kill(path)
