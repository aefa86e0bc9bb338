"""The machines themselves: each has what the other kernel tests build on, and the fixtures keep their word."""

import os
import select
import signal
from pathlib import Path

import pytest

from tests.kernel import systemd
from tests.kernel.cgroups import UNIFIED, Cgroup, hierarchies
from tests.kernel.live_tree import content
from tests.kernel.processes import Spawn, read_until
from tests.kernel.waiting import eventually

MIB = 1 << 20


def set_memory_limit(cgroup: Cgroup, limit_bytes: int) -> None:
    cgroup.write("memory.max" if cgroup.has("memory.max") else "memory.limit_in_bytes", limit_bytes)


def oom_kills(cgroup: Cgroup) -> int:
    return cgroup.counters("memory.events" if cgroup.has("memory.events") else "memory.oom_control")[
        "oom_kill"
    ]


def test_a_process_above_its_memory_limit_is_killed_and_counted_in_its_own_cgroup(
    cgroup_root: Cgroup, spawn: Spawn
):
    small, roomy = cgroup_root.child("small"), cgroup_root.child("roomy")
    set_memory_limit(small, 16 * MIB)
    set_memory_limit(roomy, 64 * MIB)
    eater, neighbour = spawn("memory", cgroup=small), spawn("memory", cgroup=roomy)
    assert neighbour.ask(f"allocate {32 * MIB}") == f"allocated {32 * MIB}"

    eater.tell(f"allocate {32 * MIB}")

    assert eater.wait() == -signal.SIGKILL
    assert oom_kills(small) == 1
    assert neighbour.ask("touch") == f"touched {32 * MIB}"
    assert oom_kills(roomy) == 0


def test_a_spawned_process_is_in_its_cgroup_in_every_hierarchy(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    program = spawn("memory", cgroup=place)
    program.ask("free")

    assert set(place.directories) == set(hierarchies())
    for path in place.paths():
        assert (path / "cgroup.procs").read_text().split() == [str(program.pid)]


def test_freed_memory_is_given_back_to_the_cgroup(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    usage = "memory.current" if place.has("memory.current") else "memory.usage_in_bytes"
    program = spawn("memory", cgroup=place)
    program.ask(f"allocate {20 * MIB}")
    assert int(place.read(usage)) >= 20 * MIB

    program.ask("free")

    eventually(lambda: int(place.read(usage)) < 10 * MIB)


def test_page_cache_is_charged_to_its_reader_and_can_be_dropped(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    place = cgroup_root.child("place")
    cached_key = "file" if place.has("memory.current") else "cache"
    program = spawn("cache", tmp_path / "data", cgroup=place)
    program.ask(f"write {16 * MIB}")
    program.ask("drop")
    eventually(lambda: place.counters("memory.stat")[cached_key] < MIB)

    assert program.ask("read") == f"read {16 * MIB}"

    read_until(program, lambda: place.counters("memory.stat")[cached_key] >= 16 * MIB)


def test_a_spinning_process_uses_processor_time(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    assert spawn("spin", cgroup=place).answer() == "spinning"

    if place.has("cpuacct.usage"):
        eventually(lambda: int(place.read("cpuacct.usage")) > 20_000_000)
    else:
        eventually(lambda: place.counters("cpu.stat")["usage_usec"] > 20_000)


@pytest.mark.parametrize(
    ("family", "ready"),
    [(("tree", 2, 3), "ready 12"), (("zombies", 5), "ready 5"), (("respawn", 4), "ready 4")],
)
def test_a_cgroup_is_removed_with_whatever_lives_in_it(
    cgroup_root: Cgroup, spawn: Spawn, family: tuple[str | int, ...], ready: str
):
    place = cgroup_root.child("place")
    program = spawn("family", *family, cgroup=place)
    assert program.answer() == ready

    # A zombie leaves its cgroup's list of processes with the parent that did not wait for it.
    place.remove()

    assert not any(path.exists() for path in place.paths())
    assert program.wait() == -signal.SIGKILL


@pytest.mark.cgroup("v1")
def test_a_frozen_process_is_killed_with_its_cgroup(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    program = spawn("spin", cgroup=place)
    program.answer()
    place.write("freezer.state", "FROZEN")
    eventually(lambda: place.read("freezer.state") == "FROZEN")

    place.remove()

    assert program.wait() == -signal.SIGKILL


@pytest.mark.cgroup("v2", "systemd")
def test_cgroup_v2_is_the_only_hierarchy(cgroup_root: Cgroup):
    assert set(hierarchies()) == {UNIFIED}
    controllers = set(cgroup_root.read("cgroup.controllers").split())
    assert {"cpu", "memory", "pids"} <= controllers


@pytest.mark.cgroup("v2")
def test_the_memory_files_of_cgroup_v2_take_values(cgroup_root: Cgroup):
    place = cgroup_root.child("place")
    for file, value in {
        "memory.min": 4 * MIB,
        "memory.low": 8 * MIB,
        "memory.high": 12 * MIB,
        "memory.max": 16 * MIB,
        "memory.oom.group": 1,
    }.items():
        place.write(file, value)
        assert place.read(file) == str(value)


@pytest.mark.cgroup("v2")
def test_all_controllers_reach_a_cgroup_below_the_root(cgroup_root: Cgroup):
    offered = set((hierarchies()[UNIFIED] / "cgroup.controllers").read_text().split())
    assert set(cgroup_root.child("place").read("cgroup.controllers").split()) == offered


@pytest.mark.cgroup("v2")
def test_a_whole_container_is_killed_where_the_cgroup_asks_for_it(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    place.write("memory.oom.group", 1)
    place.write("memory.max", 16 * MIB)
    bystander, eater = spawn("memory", cgroup=place), spawn("memory", cgroup=place)
    bystander.ask("free")

    eater.tell(f"allocate {32 * MIB}")

    assert eater.wait() == -signal.SIGKILL
    assert bystander.wait() == -signal.SIGKILL


@pytest.mark.cgroup("v2")
def test_an_oom_score_may_be_negative(cgroup_root: Cgroup, spawn: Spawn):
    program = spawn("memory", cgroup=cgroup_root.child("place"), oom_score_adj=-997)
    program.ask("free")

    assert Path(f"/proc/{program.pid}/oom_score_adj").read_text() == "-997\n"


@pytest.mark.cgroup("v2")
def test_cgroup_kill_ends_a_whole_tree(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    program = spawn("family", "tree", 2, 3, cgroup=place)
    assert program.answer() == "ready 12"
    assert len(place.processes()) == 13

    place.write("cgroup.kill", 1)

    assert program.wait() == -signal.SIGKILL
    eventually(lambda: not place.processes())


@pytest.mark.cgroup("v2")
def test_a_pressure_trigger_fires_when_processes_wait_for_the_processor(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    place.write("cpu.max", "10000 100000")
    trigger = os.open(place.file("cpu.pressure"), os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(trigger, b"some 50000 1000000\0")
        spawn("spin", cgroup=place).answer()

        watch = select.poll()
        watch.register(trigger, select.POLLPRI)
        assert watch.poll(30_000) == [(trigger, select.POLLPRI)]
    finally:
        os.close(trigger)


@pytest.mark.cgroup("systemd")
def test_systemd_answers_over_d_bus_and_makes_a_slice(cgroup_root: Cgroup):
    directory = cgroup_root.paths()[0]
    name = f"{directory.stem}-below.slice"
    systemd.start_slice(name, {"MemoryMax": ("t", str(64 * MIB)), "CPUWeight": ("t", "50")})
    below = directory / name

    def values() -> list[str | None]:
        return [content(below / file) for file in ("memory.max", "cpu.weight")]

    eventually(lambda: values() == [str(64 * MIB), "50"])
    assert systemd.call("GetUnit", "s", name).startswith('o "/org/freedesktop/systemd1/unit/')
