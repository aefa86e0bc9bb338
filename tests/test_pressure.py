"""What the watch over memory reads, counts and keeps, on files with a kernel's own text. On real kernels:
tests/kernel/test_evictions.py and test_storms.py."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import Profile
from evenkeel.api.pod import EmptyDirVolumeSource, Pod, Volume
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_figures import CgroupMemory, NodeMemory
from evenkeel.journal.store import Decision as Recorded
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.headroom import LEAST_SECONDS, MOST_SECONDS, is_loose, is_tight, must_be_held
from evenkeel.policy.eviction.snapshot import MemoryFigures, NodeFigures, PodFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.decision_records import Step, eviction_given, eviction_said, replayed_eviction
from evenkeel.pressure.intents import Intent, Intents
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.memory_reports import UnrecordedEvictions
from evenkeel.pressure.memory.memory_watch import SWITCH_SECONDS, MemoryWatch
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import MemorySampler, byte_thresholds, levels_crossed
from evenkeel.pressure.targets import PodTarget, WatchTargets
from evenkeel.runtime.interface import Launch, StartFailed
from tests.agents import CountingKernel, Place, pods_of, until

MIB = 2**20
DEFAULT_SWITCH_SECONDS = sys.getswitchinterval()
PODS = """
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "batch", "uid": "u-batch"},
 "spec": {"containers": [{"name": "main", "image": "host", "command": ["x"]}]}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u-web"},
 "spec": {"containers": [{"name": "main", "image": "host", "command": ["x"],
   "resources": {"requests": {"memory": "64Mi"}}}]}}
"""


def v2(directory: Path, usage: int, **stat: int) -> Path:
    """A cgroup's files, amounts in MiB."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.current").write_text(f"{usage * MIB}\n")
    names = (
        "anon",
        "file",
        "shmem",
        "file_dirty",
        "file_writeback",
        "inactive_file",
        "active_file",
        "slab_reclaimable",
    )
    lines = "".join(f"{name} {stat.get(name, 0) * MIB}\n" for name in names)
    (directory / "memory.stat").write_text(lines)
    return directory


def v1(directory: Path, usage: int, **stat: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.usage_in_bytes").write_text(f"{usage * MIB}\n")
    names = (
        "cache",
        "dirty",
        "total_dirty",
        "total_writeback",
        "total_shmem",
        "total_inactive_file",
        "total_active_file",
    )
    (directory / "memory.stat").write_text("".join(f"{name} {stat.get(name, 0) * MIB}\n" for name in names))
    return directory


@pytest.mark.req("E3")
def test_cache_that_can_be_dropped_is_not_in_use_and_cache_to_be_written_is(tmp_path):
    stat = {"inactive_file": 30, "active_file": 10, "file_dirty": 5, "slab_reclaimable": 2, "shmem": 7}
    reading = CgroupMemory(str(v2(tmp_path, 100, **stat)), Version.V2).read()
    assert reading.working_set_bytes(Profile.DOCUMENTS) == (100 - 35) * MIB
    assert reading.working_set_bytes(Profile.KUBERNETES) == (100 - 30) * MIB
    assert (reading.reclaimable_bytes, reading.shmem_bytes) == (7 * MIB, 7 * MIB)


def test_version_1_counts_with_all_below(tmp_path):
    stat = {"total_inactive_file": 40, "total_dirty": 8, "dirty": 1}
    reading = CgroupMemory(str(v1(tmp_path, 100, **stat)), Version.V1).read()
    assert reading.working_set_bytes(Profile.DOCUMENTS) == (100 - 32) * MIB


def test_the_machine_s_memory_is_what_the_kernel_says_is_available(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nInactive(file): 50 kB\n")
    assert NodeMemory(Profile.DOCUMENTS, str(meminfo)).read() == MemoryFigures(Amount(614400), Amount(409600))
    assert NodeMemory(Profile.KUBERNETES, str(meminfo)).read().available_bytes == 150 * 1024


def targets(tmp_path: Path, limit_mib: int, *pods: tuple[Pod, int]) -> WatchTargets:
    pods = tuple(
        PodTarget(
            pod.metadata.uid, pod, f"/k/{pod.metadata.uid}", str(tmp_path / pod.metadata.uid), (), least * MIB
        )
        for pod, least in pods
    )
    return WatchTargets(Version.V2, "/k", str(tmp_path / "root"), limit_mib * MIB, pods)


@pytest.mark.req("B8", "E3")
def test_cache_that_memory_min_keeps_counts_as_used(tmp_path):
    _, web = pods_of(PODS)
    v2(tmp_path / "root", 200, inactive_file=80)
    v2(tmp_path / "u-web", 60, inactive_file=50)
    sampler = MemorySampler(Profile.DOCUMENTS)
    sampler.follow(targets(tmp_path, 400, (web, 64)))
    sample, snapshot = sampler.snapshot(1.0)
    # 80 could be dropped, but 50 of them are of a pod that uses no more than is kept for it.
    assert sample.pods == MemoryFigures(Amount(230 * MIB), Amount(170 * MIB))
    assert snapshot.pods[0].stats == PodFigures(memory_working_set_bytes=Amount(10 * MIB))
    assert sampler.sample(2.0).pods == sample.pods
    # More cache since then may be of the same pod, for all that is known without looking at it.
    v2(tmp_path / "root", 220, inactive_file=100)
    assert sampler.sample(3.0).pods == MemoryFigures(Amount(210 * MIB), Amount(190 * MIB))
    sampler.close()


@pytest.mark.req("E2")
def test_memory_on_its_way_back_counts_as_back_until_it_gets_stuck(tmp_path):
    batch, _ = pods_of(PODS)
    told = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: told.append(what))
    target = targets(tmp_path, 400, (batch, 0)).pods[0]
    v2(tmp_path / "u-batch", 100)
    pending.killed(target, Version.V2, 10.0)
    assert pending.pending_bytes(10.1) == 100 * MIB
    v2(tmp_path / "u-batch", 40)
    assert pending.pending_bytes(10.2) == 40 * MIB
    assert pending.killed_uids() == {"u-batch"}
    assert pending.pending_bytes(11.1) == 40 * MIB
    assert pending.pending_bytes(11.3) == 0  # nothing came for more than a second
    assert pending.killed_uids() == {"u-batch"}
    assert told == []


def with_memory_volume(pod: Pod) -> Pod:
    volume = Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="Memory"))
    return pod._replace(spec=pod.spec._replace(volumes=(volume,)))


def leaving_with_volume(tmp_path: Path) -> PendingMemory:
    """A pod was killed at 10.0 that used 100 MiB, 60 of them in a volume."""
    batch, _ = pods_of(PODS)
    pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
    v2(tmp_path / "u-batch", 100, shmem=60)
    target = targets(tmp_path, 400, (with_memory_volume(batch), 0)).pods[0]
    pending.killed(target, Version.V2, 10.0)
    return pending


@pytest.mark.req("E2")
def test_memory_in_volumes_counts_as_back_for_as_long_as_it_may_take_to_empty_them(tmp_path):
    batch, web = pods_of(PODS)
    batch = with_memory_volume(batch)
    told = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: told.append(what))
    for target in targets(tmp_path, 400, (batch, 0), (web, 0)).pods:
        v2(tmp_path / target.uid, 100, shmem=60)
        pending.killed(target, Version.V2, 10.0)
    assert pending.pending_bytes(10.9) == 200 * MIB
    # By now the processes should have ended. Without a volume what they share would be back with them.
    assert pending.pending_bytes(12.9) == 60 * MIB
    assert pending.in_volumes_bytes == 60 * MIB
    v2(tmp_path / "u-batch", 2)
    assert pending.pending_bytes(13.0) == 2 * MIB
    assert [target.uid for target, *_ in told] == ["u-batch"]
    assert pending.pending_bytes(14.1) == 0
    assert not pending.is_any_killed


@pytest.mark.req("E2")
def test_volumes_that_are_not_emptied_are_not_waited_for_for_ever(tmp_path):
    pending = leaving_with_volume(tmp_path)
    assert pending.pending_bytes(13.1) == 0
    assert not pending.is_any_killed
    assert pending.in_volumes_bytes == 0


@pytest.mark.req("E2")
@pytest.mark.parametrize("is_emptied_first", [True, False])
def test_volumes_that_were_emptied_are_not_counted_twice_when_the_pods_cgroup_is_gone(
    tmp_path, is_emptied_first
):
    pending = leaving_with_volume(tmp_path)
    if is_emptied_first:
        pending.emptied("u-batch")
    next(iter(pending._killed.values())).close()  # as of a cgroup that is gone
    assert pending.pending_bytes(10.1) == (0 if is_emptied_first else 60 * MIB)
    pending.emptied("u-batch")
    assert pending.pending_bytes(10.2) == 0
    assert not pending.is_any_killed


@pytest.mark.req("A20", "E16")
def test_a_pod_that_has_left_may_come_back_and_go_again(tmp_path):
    """Also where something of it stays in its cgroup after it has left, as a container runtime's sandbox does."""
    batch, _ = pods_of(PODS)
    pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
    target = targets(tmp_path, 400, (batch, 0)).pods[0]
    v2(tmp_path / "u-batch", 100)
    pending.follow({"u-batch"})
    pending.killed(target, Version.V2, 10.0)
    pending.follow(set())
    v2(tmp_path / "u-batch", 1)
    pending.pending_bytes(10.1)
    pending.pending_bytes(12.0)
    pending.follow({"u-batch"})
    assert pending.killed_uids() == set()


@pytest.mark.req("E2")
def test_memory_that_is_back_is_told_with_its_time(tmp_path):
    batch, _ = pods_of(PODS)
    told = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: told.append(what))
    v2(tmp_path / "u-batch", 100)
    target = targets(tmp_path, 400, (batch, 0)).pods[0]
    pending.killed(target, Version.V2, 10.0)
    v2(tmp_path / "u-batch", 2)
    pending.pending_bytes(10.5)
    assert told == [(target, 100 * MIB, 0.5)]


@pytest.mark.req("B16")
def test_a_threshold_once_crossed_is_over_with_its_minimum_reclaim(tmp_path):
    thresholds = parse_thresholds(
        hard={"memory.available": "10%"},
        minimum_reclaim={"memory.available": "50Mi"},
        enforce_node_allocatable=("pods",),
    )
    own = tuple(one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    v2(tmp_path / "root", 350)
    sampler = MemorySampler(Profile.DOCUMENTS)
    sampler.follow(targets(tmp_path, 400))
    sample = sampler.sample(1.0)
    levels = byte_thresholds(own, sample)
    assert [(level.due_bytes, level.over_bytes) for level in levels] == [(40 * MIB, 90 * MIB)]
    assert levels_crossed(levels, sample, ()) == ()
    assert levels_crossed(levels, sample, own) == own
    sampler.close()


def step() -> Step:
    pods = pods_of(PODS)
    thresholds = parse_thresholds(
        hard={"memory.available": "100Mi"},
        soft={"memory.available": "20%"},
        soft_grace_period={"memory.available": "1m30s"},
        minimum_reclaim={"memory.available": "5%"},
        enforce_node_allocatable=("pods",),
    )
    settings = Settings(local_storage_capacity_isolation=False)
    seen = tuple(PodSnapshot(pod, PodFigures(memory_working_set_bytes=Amount(200 * MIB))) for pod in pods)
    figures = MemoryFigures(Amount(50 * MIB), Amount(400 * MIB))
    snapshot = Snapshot(10.0, NodeFigures(memory=figures, pods_cgroup_memory=figures), seen)
    state, _ = decide(State(), snapshot._replace(time_seconds=1.0), thresholds, settings)
    _, decision = decide(state, snapshot, thresholds, settings)
    return Step(state, snapshot, thresholds, settings, decision)


@pytest.mark.req("E14")
def test_a_recorded_decision_is_made_again_from_its_record():
    made = step()
    assert made.decision.victim is not None
    plain = json.loads(json.dumps(eviction_given(made)))
    again, outcome = replayed_eviction(Recorded(1, 0.0, "eviction", plain, eviction_said(made.decision)))
    assert outcome == eviction_said(made.decision)
    assert (again.state, again.snapshot, again.settings) == (made.state, made.snapshot, made.settings)
    assert again.thresholds == made.thresholds


@pytest.mark.req("E14")
def test_a_record_that_was_changed_is_seen_to_differ():
    made = step()
    plain = json.loads(json.dumps(eviction_given(made)))
    plain["snapshot"]["pods"] = plain["snapshot"]["pods"][1:]
    _, outcome = replayed_eviction(Recorded(1, 0.0, "eviction", plain, eviction_said(made.decision)))
    assert outcome != eviction_said(made.decision)


def test_an_intent_about_what_the_pod_was_before_it_came_back_is_not_carried_out(place):
    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running")
            uid = agent.pod("default/web").metadata.uid
        noted = Intents(place.directory)
        noted.write(Intent(uid, "long ago", place.now - 1))
        noted.close()
        async with place.agent() as agent:
            assert phase(agent, "web") == "Running"
        assert not Intents(place.directory).found

    asyncio.run(story())


class Unheard:
    """Whom nobody asks."""

    def __getattr__(self, name: str):
        return lambda *_: None


@pytest.mark.req("E1")
def test_a_crossing_that_is_told_a_moment_early_is_looked_for_until_it_is_there(tmp_path, monkeypatch):
    thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
    own = tuple(one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    watch = MemoryWatch(
        own, Settings(), State(), 2, CountingKernel, Unheard(), Unheard(), UnrecordedEvictions()
    )
    kernel = CountingKernel()  # the thread is not started: turns are taken here
    watch._haste = Unheard()
    root = v1(tmp_path / "root", 200)
    (root / "cgroup.event_control").touch()
    (root / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    watch.follow(targets(tmp_path, 400)._replace(version=Version.V1))
    try:
        assert watch.turn(kernel) == MOST_SECONDS  # the kernel will tell
        v1(root, 300, total_inactive_file=1)
        assert LEAST_SECONDS < watch.turn(kernel) < 0.01

        def told() -> None:
            for descriptor in watch._triggers._usage:
                os.eventfd_write(descriptor, 1)
            watch._triggers.wait(0)

        told()
        assert watch.turn(kernel) == 0
        monkeypatch.setattr("evenkeel.pressure.memory.memory_watch._AT_ONCE_SECONDS", 0)  # it has passed
        told()
        assert watch.turn(kernel) == LEAST_SECONDS
        assert not watch._triggers.wait(0)  # it does not wake again
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(DEFAULT_SWITCH_SECONDS)
        watch._sampler.close()
        watch._triggers.close()


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


@pytest.mark.req("E14")
def test_a_decision_for_which_the_disk_has_no_room_is_written_when_it_has(place, monkeypatch):
    """And nothing waits for it: it may be what makes room."""
    made = step()

    def full(*_: object) -> None:
        raise JournalError("the disk is full")

    async def story() -> None:
        async with place.agent() as agent:
            with monkeypatch.context() as patched:
                patched.setattr(Journal, "record", full)
                agent.watches.memory.recorder.stepped(made, made.state, {})
                await agent.apply(pods_of(PODS))
                await until(lambda: phase(agent, "web") == "Running")
                assert "NodeHasMemoryPressure" in {one.reason for one in agent.happenings()}
                assert not decisions(place)
            place.now += 60
            agent.steps.want_step()
            await until(lambda: bool(decisions(place)))
            agent.steps.want_step()
            await agent.pod_loop.stepped()
            (record,) = decisions(place)
            assert record.at == place.now - 60  # when it was made
            assert replayed_eviction(record)[0].decision == made.decision

    asyncio.run(story())


def decisions(place: Place) -> list[Recorded]:
    with Journal.read(f"{place.directory}/journal.db") as journal:
        return list(journal.decisions())


@pytest.mark.req("A20", "E2")
def test_what_a_killed_pod_has_in_memory_is_removed_at_once_and_before_the_pod(place):
    uids = ("killed", "asked", "plain")
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": uid, "uid": uid},
            "spec": {
                "containers": [{"name": "main", "image": "host", "command": ["x"]}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "" if uid == "plain" else "Memory"}}],
            },
        }
        for uid in uids
    ]

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})))
            await until(lambda: len(place.runtime.starts) == 3)
            place.runtime.may_empty.clear()
            for uid in uids:
                grace = 30.0 if uid == "asked" else 0.0
                agent.watches.memory.recorder.evict(uid, "for the test", place.now, grace)
            await until(lambda: "plain" in place.runtime.removed)
            assert phase(agent, "killed") == "Failed"
            assert "killed" not in place.runtime.removed
            place.runtime.may_empty.set()
            await until(lambda: "killed" in place.runtime.removed)
            assert place.runtime.emptied == ["killed"]

    asyncio.run(story())


@pytest.mark.req("E16")
def test_an_evicted_pod_comes_back_when_pressure_and_back_off_are_over(place):
    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: place.runtime.running() == {"main"} and len(place.runtime.starts) == 2)
            agent.watches.conditions.set("test", ["MemoryPressure"])
            evict(agent, place, "u-batch")
            await until(lambda: phase(agent, "batch") == "Failed")
            await until(lambda: "BackOff" in told(agent, "batch"))
            place.now += 11
            look_at_the_clock(agent)
            await asyncio.sleep(0.05)
            assert phase(agent, "batch") == "Failed"  # the node is still under pressure
            agent.watches.conditions.set("test", [])
            await until(lambda: phase(agent, "batch") == "Running")
            assert "Returning" in told(agent, "batch")
            # The second time it waits for longer, and a restart of the agent does not change that.
            evict(agent, place, "u-batch")
            await until(lambda: told(agent, "batch").count("BackOff") == 2)
        async with place.agent() as agent:
            place.now += 15
            look_at_the_clock(agent)
            await asyncio.sleep(0.05)
            assert phase(agent, "batch") == "Failed"
            place.now += 6
            look_at_the_clock(agent)
            await until(lambda: phase(agent, "batch") == "Running")

    asyncio.run(story())


@pytest.mark.req("B12", "E16")
def test_a_pod_whose_disk_is_limited_comes_back_without_its_old_logs(place):
    storage = '"resources": {"requests": {"ephemeral-storage": "0"}, "limits": {"ephemeral-storage": "4Mi"}}'
    limited = PODS.replace('["x"]}]', f'["x"], {storage}}}]')

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(limited))
            await until(lambda: len(place.runtime.starts) == 2)
            for uid in ("u-batch", "u-web"):
                evict(agent, place, uid)
            await until(lambda: "BackOff" in told(agent, "batch") and "BackOff" in told(agent, "web"))
            assert place.runtime.removed_logs == []
            place.now += 11
            look_at_the_clock(agent)
            await until(lambda: len(place.runtime.starts) == 4)
            assert place.runtime.removed_logs == ["u-batch"]  # of the other they may be read for longer

    asyncio.run(story())


@pytest.mark.req("E14")
def test_an_eviction_while_a_container_starts_is_not_taken_for_a_failure_of_its_own(place):
    async def story() -> None:
        async with place.agent() as agent:

            def killed(launch: Launch) -> None:
                if launch.attempt.uid == "u-batch":
                    evict(agent, place, "u-batch")
                    raise StartFailed("its memory limit may be too small")

            place.runtime.on_start = killed
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "batch") == "Failed")
            (failed,) = [one for one in agent.happenings("default/batch") if one.reason == "Failed"]
            assert failed.message == (
                "cannot start container main: the pod was stopped while it was being set up: Evicted"
            )

    asyncio.run(story())


@pytest.mark.req("E16")
def test_a_pod_that_is_never_restarted_stays_away(place):
    never = PODS.replace('"spec": {"containers"', '"spec": {"restartPolicy": "Never", "containers"')

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(never))
            await until(lambda: len(place.runtime.starts) == 2)
            await until(lambda: phase(agent, "batch") == "Running")
            evict(agent, place, "u-batch")
            await until(lambda: phase(agent, "batch") == "Failed")
            place.now += 1000
            look_at_the_clock(agent)
            await asyncio.sleep(0.05)
            assert phase(agent, "batch") == "Failed"
            assert "BackOff" not in told(agent, "batch")

    asyncio.run(story())


@pytest.mark.req("B16")
def test_under_memory_pressure_best_effort_pods_wait_and_are_let_in_when_it_is_over(place):
    async def story() -> None:
        async with place.agent() as agent:
            agent.watches.conditions.set("test", ["MemoryPressure"])
            conditions = {one.type: one.status for one in agent.node().status.conditions}
            assert conditions["MemoryPressure"] == "True"
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running" and phase(agent, "batch") == "Failed")
            agent.watches.conditions.set("test", [])
            await until(lambda: phase(agent, "batch") == "Running")

    asyncio.run(story())


def evict(agent: Agent, place: Place, uid: str) -> None:
    agent.watches.memory.recorder.evict(uid, "for the test", place.now)


def look_at_the_clock(agent: Agent) -> None:
    """Evicted pods are looked at whenever the node's conditions change."""
    agent.watches.conditions.set("clock", ["PIDPressure"])
    agent.watches.conditions.set("clock", [])


def phase(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    return shown.status.phase if shown else ""


def told(agent: Agent, name: str) -> list[str]:
    return [one.reason for one in agent.happenings(f"default/{name}")]


# Standing still, and being throttled


@pytest.mark.req("A15", "E12")
def test_those_above_their_request_stand_still_when_half_of_the_reserve_is_gone_and_others_never():
    assert is_tight(49, 100)
    assert not is_tight(50, 100)
    assert not is_loose(74, 100)
    assert is_loose(75, 100)
    assert must_be_held(12 * MIB, 10 * MIB, 100 * MIB)
    assert not must_be_held(11 * MIB, 10 * MIB, 100 * MIB)  # the next look is soon enough
    assert not must_be_held(10 * MIB, 10 * MIB, 0)


class FreezingKernel(CountingKernel):
    def __init__(self) -> None:
        super().__init__()
        self.frozen: set[str] = set()

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        if frozen and path.endswith("gone"):
            raise CgroupError("gone", path=path, reason="ENODEV")
        (self.frozen.add if frozen else self.frozen.discard)(path)


def test_nobody_stands_still_for_longer_than_a_second_nor_again_at_once():
    kernel, freezer = FreezingKernel(), Freezer()
    assert freezer.can_freeze(10.0)
    freezer.freeze(kernel, ["/a", "/gone"], 10.0)
    freezer.freeze(kernel, ["/b"], 10.5)
    assert kernel.frozen == {"/a", "/b"}
    freezer.thaw_one(kernel, "/a")
    assert kernel.frozen == {"/b"}
    assert freezer.can_freeze(10.9)
    assert not freezer.can_freeze(11.0)
    freezer.thaw_all(kernel, 11.0)
    assert not kernel.frozen
    assert not freezer.is_freezing
    assert not freezer.can_freeze(11.5)
    assert freezer.can_freeze(12.0)
    freezer.freeze(kernel, ["/a"], 12.0)
    freezer.thaw_all(kernel, 12.1)
    assert freezer.can_freeze(12.1)


class Short:
    """A node whose pods, with so many MiB each, have left 10 of the 100 that are to be."""

    def __init__(self, directory: Path, reports: Unheard, *pods: tuple[Pod, int]) -> None:
        self.targets = targets(directory, 400, *((pod, 0) for pod, _ in pods))
        self.sampler = MemorySampler(Profile.DOCUMENTS)
        self.pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
        v2(directory / "root", 390)
        for pod, mib in pods:
            v2(directory / pod.metadata.uid, mib)
        self.sampler.follow(self.targets)
        self.sample = self.sampler.sample(1.0)
        thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
        own = (one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
        self.mitigation = Mitigation(self.sampler, self.pending, CountingKernel, reports)
        self.mitigation.follow(self.targets, byte_thresholds(own, self.sample))


@pytest.mark.req("A15")
def test_nobody_stands_still_where_nobody_goes(tmp_path):
    batch, web = pods_of(PODS)
    kernel, short = FreezingKernel(), Short(tmp_path, Unheard(), (batch, 200), (web, 190))
    mitigation, sample = short.mitigation, short.sample
    assert mitigation.is_tight(sample)
    mitigation.freeze(kernel, sample, 1.0)
    assert not kernel.frozen
    short.pending.killed(short.targets.pods[0], Version.V2, 1.0)
    mitigation.freeze(kernel, sample, 1.1)
    assert kernel.frozen == {"/k/u-web"}
    short.sampler.close()


class Throttling(Unheard):
    def __init__(self) -> None:
        self.told: list[dict[str, int]] = []

    def throttling(self, most_bytes: dict[str, int]) -> None:
        self.told.append(most_bytes)


@pytest.mark.req("A15")
def test_who_is_hardly_above_his_request_is_throttled_only_when_he_has_grown(tmp_path):
    batch, web = pods_of(PODS)
    tiny = batch._replace(metadata=batch.metadata._replace(name="tiny", uid="u-tiny"))
    reports = Throttling()
    short = Short(tmp_path, reports, (batch, 200), (web, 190), (tiny, 1))
    mitigation, sample = short.mitigation, short.sample
    mitigation.throttle(sample, 1.0)
    assert reports.told == []  # nobody goes
    short.pending.asked("u-batch", 1.0, 600)
    mitigation.evicted(CountingKernel(), "/k/u-batch", 1.0)
    mitigation.throttle(sample, 1.01)
    assert reports.told == []  # most are gone by then
    mitigation.throttle(sample, 1.2)
    assert reports.told == [{"u-web": 190 * MIB}]
    v2(tmp_path / "u-web", 191)
    v2(tmp_path / "u-tiny", 9)
    mitigation.throttle(sample, 1.21)
    assert len(reports.told) == 1
    mitigation.throttle(sample, 1.4)
    assert reports.told[1:] == [{"u-web": 190 * MIB, "u-tiny": 9 * MIB}]
    mitigation.throttle(sample, 1.6)
    assert len(reports.told) == 2
    v2(tmp_path / "root", 200)
    mitigation.throttle(short.sampler.sample(1.7), 1.7)
    assert reports.told[2:] == [{}]
    short.sampler.close()


@pytest.mark.req("A15", "E9")
def test_a_throttled_pod_is_kept_so_by_the_pass_that_heals_and_let_go_without_drift(place):
    kernel = place.kernel
    path = "/evenkeel/kubepods/burstable/podu-web"

    async def live() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: len(place.runtime.records) == 2)
            throttle = agent.watches.memory.throttle
            throttle.set({"u-web": 96 * MIB, "u-gone": 5})
            assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
            agent.cgroups.heal()
            assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
            throttle.set({"u-web": 96 * MIB, "u-batch": 5 * MIB})  # one more
            assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
            throttle.set({})
            assert kernel.cgroups[path]["memory.high"] == "max"
            agent.cgroups.heal()
            await until(lambda: "ThrottleOver" in [one.reason for one in agent.happenings("default/web")])
            told = [one.reason for one in agent.happenings("default/web")]
            assert told.count("Throttled") == 1
            assert "DriftRepaired" not in [one.reason for one in agent.happenings()]
            throttle.set({"u-web": 96 * MIB})
            agent.watches.memory.throttle.set = lambda _: None  # the agent is killed: it lets go of nobody

    async def after() -> None:
        async with place.agent() as agent:
            assert kernel.cgroups[path]["memory.high"] == "max"
            assert agent.pod("default/web") is not None

    asyncio.run(live())
    assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
    asyncio.run(after())
