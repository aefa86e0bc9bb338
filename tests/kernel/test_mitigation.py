"""Mitigations on a real kernel: memory is reclaimed, pods are frozen or throttled. No pod stays frozen or throttled,
whatever happens to the agent and the watch."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.host.dying import Dying
from evenkeel.host.protection import has_realtime_budgets
from evenkeel.pressure.memory.cgroup_writes import AGENT, STANDBY, freeze_file, reclaim_write, send_kill
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.mitigation import Reclaimer
from evenkeel.pressure.targets import PodTarget, WatchTargets
from tests.kernel.agents import MIB, MakeUp, Up, is_alive, pod, up
from tests.kernel.cgroups import Cgroup
from tests.kernel.evictions import events, grow, reasons
from tests.kernel.live_tree import content
from tests.kernel.planned import memory_bytes
from tests.kernel.processes import Spawn, read_until
from tests.kernel.waiting import eventually
from tests.models.memory_files import IgnoredReports

__all__ = ["up"]


def making_drivers(root: Cgroup) -> Callable[[], Driver]:
    name = root.paths()[0].name.removesuffix(".slice")
    return lambda: driver_for(detect(), KubeletConfiguration(cgroup_root=f"/{name}"))


def targets_at(root: Cgroup, *places: Cgroup) -> WatchTargets:
    """The cgroups of pods as the watch gets them."""
    driver = making_drivers(root)()
    try:
        top = root.path_in_hierarchy(root)
        files = driver.files(top)
        mounts = [files.get(key, "").removesuffix(top) for key in ("unified", "freezer")]
        pods = []
        for place in places:
            path = place.path_in_hierarchy(root)
            pods.append(PodTarget(path, Pod(), path, driver.files(path)["memory"], ()))
        return WatchTargets(driver.version, top, files["memory"], 0, tuple(pods), *mounts)
    finally:
        driver.close()


def below(root: Cgroup, *names: str) -> Cgroup:
    for name in names:
        root = root.child(name)
    return root


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A15", "E3")
def test_cache_is_taken_back_from_a_pod_and_its_processes_live_on(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    inside = below(cgroup_root, "kubepods", "besteffort", "podx", "main")
    place = Cgroup({key: path.parent for key, path in inside.directories.items()})
    reader = spawn("cache", str(tmp_path / "file"), cgroup=inside)
    reader.ask(f"write {64 * MIB}")
    holder = spawn("memory", cgroup=inside)
    holder.ask(f"allocate {16 * MIB}")
    read_until(reader, lambda: memory_bytes(place) > 80 * MIB)
    targets = targets_at(cgroup_root, place)
    hands = Reclaimer()
    hands.start()
    try:
        hands.reclaim([reclaim_write(targets.version, targets.pods[0], 60 * MIB)])
        eventually(lambda: memory_bytes(place) < 32 * MIB)
    finally:
        hands.stop()
    assert holder.ask("touch") == f"touched {16 * MIB}"
    assert reader.is_alive()


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A15", "E12")
def test_who_stands_still_uses_no_more_can_be_killed_and_goes_on_when_it_is_over(
    cgroup_root: Cgroup, spawn: Spawn
):
    branch = below(cgroup_root, "kubepods", "besteffort")
    pods = [below(branch, f"pod{number}", "main") for number in range(2)]
    growing = [spawn("memory", cgroup=inside) for inside in pods]
    paths = [inside.path_in_hierarchy(cgroup_root).rpartition("/")[0] for inside in pods]
    for program in growing:
        program.tell(f"allocate {256 * MIB} {4 * MIB}")  # for a minute: it is to grow still when it goes on
    for inside in pods:
        eventually(lambda inside=inside: memory_bytes(inside) > 4 * MIB)
    driver = making_drivers(cgroup_root)()
    places = [Cgroup({key: path.parent for key, path in inside.directories.items()}) for inside in pods]
    targets = targets_at(cgroup_root, *places)
    found = ((target.path, freeze_file(targets, target)) for target in targets.pods)
    files = {path: file for path, file in found if file is not None}
    assert len(files) == len(pods)
    freezer = Freezer(IgnoredReports())
    try:
        freezer.freeze(files, 0.0)
        for path in paths:
            driver.freeze(path, frozen=True)  # waits until it is so
        held = [memory_bytes(inside) for inside in pods]
        assert freezer.is_freezing
        assert not freezer.can_freeze(2.0)
        # It may be less: the kernel charges some pages ahead, and gives them back when the processor is another's.
        assert all(memory_bytes(inside) <= before for inside, before in zip(pods, held, strict=True))
        send_kill(targets, targets.pods[0])
        freezer.thaw_one(paths[0])
        assert growing[0].wait() == -9
        assert memory_bytes(pods[1]) <= held[1]
        freezer.thaw_all(0.5)
        assert not freezer.is_freezing
        eventually(lambda: memory_bytes(pods[1]) > held[1])
    finally:
        freezer.thaw_all(0.5)
        driver.close()


@pytest.mark.cgroup("v1")
@pytest.mark.req("E2", "E12")
def test_the_memory_of_a_frozen_victim_is_free_before_it_has_come_to_its_turn(
    cgroup_root: Cgroup, spawn: Spawn
):
    inside = below(cgroup_root, "kubepods", "besteffort", "podx", "main")
    place = Cgroup({key: path.parent for key, path in inside.directories.items()})
    growing = spawn("memory", cgroup=inside)
    growing.tell(f"allocate {256 * MIB}")  # it runs when it is killed, and would end at once
    eventually(lambda: memory_bytes(place) > 32 * MIB)
    targets = targets_at(cgroup_root, place)
    target = targets.pods[0]
    file = freeze_file(targets, target)
    assert file is not None
    freezer = Freezer(IgnoredReports())
    dying = Dying(lambda: {growing.pid})
    try:
        freezer.prepare_victim(file)
        freezer.freeze_victim(target.path, file)
        dying.kill()
        send_kill(targets, target)
        freezer.thaw_one(target.path)  # this is for other pods
        eventually(lambda: Path(file.file).read_text() == "FROZEN\n")
        assert dying.release() == 1
        assert growing.is_alive()
        eventually(lambda: memory_bytes(place) < 8 * MIB)
        assert growing.is_alive()
    finally:
        freezer.thaw_victim(target.path)
        dying.close()
    assert growing.wait() == -signal.SIGKILL


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.whole_kernel("a race for memory")
@pytest.mark.req("A15")
def test_a_pod_that_stood_still_when_the_agent_was_killed_goes_on_when_it_starts_again(up: MakeUp):
    agent = up()
    place = started_sleeper(agent)
    agent.kill()
    freeze(agent, place)
    agent.start()
    assert not is_frozen(place)
    assert "DriftRepaired" not in reasons(agent)


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A15")
def test_a_pod_that_stood_still_when_watch_and_guard_were_killed_goes_on_though_the_agent_runs(up: MakeUp):
    agent = up("--eviction-hard=memory.available<48Mi")
    place = started_sleeper(agent)
    watch, guard = agent.await_watch(), eventually(agent.guard_pid)
    freeze(agent, place)
    os.kill(guard, signal.SIGKILL)
    os.kill(watch, signal.SIGKILL)
    eventually(lambda: not is_frozen(place))
    eventually(lambda: agent.watch_pid(other_than=watch))
    assert "DriftRepaired" not in reasons(agent)


@pytest.mark.cgroup("v1")
@pytest.mark.processes_only("nothing runs")
@pytest.mark.skipif(not has_realtime_budgets(), reason="no pod is frozen before its kill")
@pytest.mark.req("A15", "E1")
def test_near_a_threshold_an_empty_cgroup_of_the_agent_is_frozen_until_the_watch_ends(up: MakeUp):
    agent = up("--eviction-hard=memory.available<48Mi")  # the whole node is so small that it is near
    agent.start()
    state = agent.root.directories["freezer"] / AGENT / STANDBY / "freezer.state"
    watch = agent.await_watch()
    eventually(lambda: state.read_text() == "FROZEN\n")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        os.kill(watch, signal.SIGKILL)
        eventually(lambda: state.read_text() == "THAWED\n")  # by the guard
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    eventually(lambda: state.read_text() == "FROZEN\n")
    assert "DriftRepaired" not in reasons(agent)
    assert agent.stop() == 0
    assert not state.parent.parent.exists()


def started_sleeper(agent: Up) -> Cgroup:
    """Starts the agent with a pod that does nothing. Returns the pod's cgroup."""
    agent.start()
    agent.apply(pod("batch", ["sleep", "1000"]))
    agent.await_phase("batch", "Running")
    return agent.cgroup("besteffort", f"pod{agent.pod('batch')['metadata']['uid']}")


def freeze(agent: Up, place: Cgroup) -> None:
    """Freezes the pod as a watch does, without its guard."""
    driver = making_drivers(agent.root)()
    try:
        driver.freeze(place.path_in_hierarchy(agent.root), frozen=True)
    finally:
        driver.close()
    assert is_frozen(place)


HOLDING = """
import sys, time
from evenkeel.pressure.memory.cgroup_writes import FreezeFile
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.watch.guard_client import GuardClient

file, frozen, thawed = sys.argv[1:]
guard = GuardClient(KernelTriggers(), print)
guard.start()
Freezer(guard).freeze({"it": FreezeFile(file, frozen.encode(), thawed.encode())}, 0.0)
print(guard.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A15")
def test_a_pod_that_stands_still_when_the_watch_is_killed_goes_on_without_any_agent(
    cgroup_root: Cgroup, spawn: Spawn
):
    place = below(cgroup_root, "kubepods", "besteffort", "podx")
    program = spawn("memory", cgroup=place.child("main"))
    targets = targets_at(cgroup_root, place)
    file, frozen, thawed = freeze_file(targets, targets.pods[0])
    command = [sys.executable, "-c", HOLDING, file, frozen.decode(), thawed.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        guard = int(watch.stdout.readline())
        assert is_frozen(place)
        watch.kill()
    eventually(lambda: not is_alive(guard))
    assert not is_frozen(place)
    assert program.ask(f"allocate {MIB}") == f"allocated {MIB}"


def is_frozen(place: Cgroup) -> bool:
    if "freezer" in place.directories:
        return (place.directories["freezer"] / "freezer.state").read_text().strip() != "THAWED"
    return place.read("cgroup.freeze").strip() == "1"


@pytest.mark.cgroup("v2")
@pytest.mark.whole_kernel("a race for memory")
@pytest.mark.req("A15", "E9")
def test_pods_above_their_request_are_throttled_while_one_goes_and_let_go_by_the_next_agent(
    up: MakeUp, tmp_path: Path
):
    agent = up(
        "--eviction-hard=memory.available<8Mi",
        "--eviction-soft=memory.available<100Gi",  # the machine has less
        "--eviction-soft-grace-period=memory.available=1s",
        "--eviction-max-pod-grace-period=600",
        "--eviction-pressure-transition-period=1s",
    )
    agent.start()
    end = tmp_path / "end"
    script = f"trap 'while [ ! -e {end} ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done"
    leaving = pod("leaving", ["sh", "-c", script], container=requesting("64Ki"), restartPolicy="Never")
    leaving["spec"]["terminationGracePeriodSeconds"] = 600
    within = grow("within", "anon", 16, request_mib=64)
    greedy = grow("greedy", "anon", 64, request_mib=32)
    # The first in rank is evicted. A pod that uses more is admitted only when that one is already ending.
    agent.apply(leaving, within)
    eventually(lambda: "Evicted" in reasons(agent, "leaving"), within_seconds=120)
    agent.apply(greedy)
    place = eventually(lambda: throttled(agent, "greedy"), within_seconds=120)
    high = int(place.read("memory.high"))
    assert abs(high - memory_bytes(place)) < 80 * MIB
    assert high > 32 * MIB
    assert of_pod(agent, "within").read("memory.high").strip() == "max"
    eventually(lambda: "Throttled" in reasons(agent, "greedy"))  # it is recorded afterwards
    # The pass that repairs drift keeps it: it repairs changes by other programs, and this value is planned.
    sibling = of_pod(agent, "within")
    sibling.write("cpu.weight", 77)
    eventually(lambda: sibling.read("cpu.weight").strip() != "77", within_seconds=60)
    assert int(place.read("memory.high")) == high
    drift = [one["message"] for one in events(agent) if one["reason"] == "DriftRepaired"]
    assert not [message for message in drift if "memory.high" in message]

    # The agent is killed, and the next one hears from the watch that the pod is throttled.
    agent.kill()
    agent.start()
    assert int(place.read("memory.high")) == high
    # Agent and watch are killed, and the guard releases the pod. Then the value is written again, as if the guard had
    # been killed before that.
    guard, watch = eventually(agent.guard_pid), agent.watch_pid()
    assert watch is not None
    agent.kill()
    os.kill(watch, signal.SIGKILL)
    eventually(lambda: place.read("memory.high").strip() == "max")  # by the guard
    eventually(lambda: not is_alive(guard))
    place.write("memory.high", high)
    end.write_text("")
    agent.start("--eviction-soft=memory.available<1Mi")  # no other pod may be evicted
    assert place.read("memory.high").strip() == "max"


def requesting(memory: str) -> dict:
    return {"resources": {"requests": {"memory": memory}}}


def of_pod(agent: Up, name: str) -> Cgroup:
    return agent.cgroup("burstable", f"pod{agent.pod(name)['metadata']['uid']}")


def throttled(agent: Up, name: str) -> Cgroup | None:
    place = of_pod(agent, name)
    return place if content(place.paths()[0] / "memory.high") not in (None, "max") else None
