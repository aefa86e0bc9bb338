"""Mitigations of a memory shortage: pods above their request are frozen or throttled."""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Version
from evenkeel.policy.eviction.headroom import is_loose, is_tight, must_be_held
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.memory.cgroup_writes import FreezeFile
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import MemorySampler, byte_thresholds
from evenkeel.pressure.watch.guard import NAME as GUARD
from evenkeel.pressure.watch.process import NAME as WATCH
from tests.models.agents import Place, pods_of, until
from tests.models.memory_files import (
    MIB,
    PODS,
    IgnoredReports,
    targets_in,
    write_v2_memory,
)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


@pytest.mark.req("A15", "E12")
def test_pods_above_their_request_are_frozen_when_half_of_the_reserve_is_gone_and_others_never():
    assert is_tight(49, 100)
    assert not is_tight(50, 100)
    assert not is_loose(74, 100)
    assert is_loose(75, 100)
    assert must_be_held(12 * MIB, 10 * MIB, 100 * MIB)
    assert not must_be_held(11 * MIB, 10 * MIB, 100 * MIB)  # the next look is soon enough
    assert not must_be_held(10 * MIB, 10 * MIB, 0)


def test_no_pod_is_frozen_for_longer_than_a_second_nor_again_at_once(tmp_path):
    files = {name: FreezeFile(str(tmp_path / name), b"1", b"0") for name in ("a", "b", "gone")}
    for name in "ab":
        (tmp_path / name).write_text("0")

    def frozen() -> set[str]:
        return {name for name in "ab" if (tmp_path / name).read_text() == "1"}

    freezer = Freezer(IgnoredReports())
    assert freezer.can_freeze(10.0)
    freezer.freeze({name: files[name] for name in ("a", "gone")}, 10.0)
    freezer.freeze({"b": files["b"]}, 10.5)
    assert frozen() == {"a", "b"}
    freezer.thaw_one("a")
    assert frozen() == {"b"}
    assert freezer.can_freeze(10.9)
    assert not freezer.can_freeze(11.0)
    freezer.thaw_all(11.0)
    assert not frozen()
    assert not freezer.is_freezing
    assert not freezer.can_freeze(11.5)
    assert freezer.can_freeze(12.0)
    freezer.freeze({"a": files["a"]}, 12.0)
    freezer.thaw_all(12.1)
    assert freezer.can_freeze(12.1)


class ShortNode:
    """A node whose pods, with so many MiB each, have left 10 of the 100 that are to be."""

    def __init__(self, directory: Path, reports: IgnoredReports, *pods: tuple[Pod, int]) -> None:
        targets = targets_in(directory, 400, *((pod, 0) for pod, _ in pods))
        self.targets = targets._replace(pods=tuple(one._replace(high="max") for one in targets.pods))
        self.sampler = MemorySampler(Profile.DOCUMENTS)
        self.pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
        write_v2_memory(directory / "root", 390)
        for pod, mib in pods:
            place = write_v2_memory(directory / pod.metadata.uid, mib)
            (place / "cgroup.freeze").write_text("0")
            (place / "memory.high").write_text("max")
        self.sampler.follow(self.targets)
        self.sample = self.sampler.sample(1.0)
        thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
        own = (one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
        self.mitigation = Mitigation(self.sampler, self.pending, reports, IgnoredReports())
        self.mitigation.follow(self.targets, byte_thresholds(own, self.sample))


@pytest.mark.req("A15")
def test_no_pod_is_frozen_where_no_pod_is_evicted(tmp_path):
    batch, web = pods_of(PODS)
    short = ShortNode(tmp_path, IgnoredReports(), (batch, 200), (web, 190))
    mitigation, sample = short.mitigation, short.sample
    assert mitigation.is_tight(sample)
    mitigation.freeze(sample, 1.0)
    assert (tmp_path / "u-web" / "cgroup.freeze").read_text() == "0"
    short.pending.killed(short.targets.pods[0], Version.V2, 1.0)
    mitigation.freeze(sample, 1.1)
    assert (tmp_path / "u-web" / "cgroup.freeze").read_text() == "1"
    assert (tmp_path / "u-batch" / "cgroup.freeze").read_text() == "0"  # it is on its way out
    mitigation.end(1.2)
    assert (tmp_path / "u-web" / "cgroup.freeze").read_text() == "0"
    short.sampler.close()


class ThrottleReports(IgnoredReports):
    def __init__(self) -> None:
        self.recorded: list[dict[str, int]] = []

    def throttling(self, most_bytes: dict[str, int]) -> None:
        self.recorded.append(most_bytes)


@pytest.mark.req("A15")
def test_a_pod_hardly_above_its_request_is_throttled_only_when_it_has_grown(tmp_path):
    batch, web = pods_of(PODS)
    tiny = batch._replace(metadata=batch.metadata._replace(name="tiny", uid="u-tiny"))
    reports = ThrottleReports()
    short = ShortNode(tmp_path, reports, (batch, 200), (web, 190), (tiny, 1))
    mitigation, sample = short.mitigation, short.sample
    mitigation.throttle(sample, 1.0)
    assert reports.recorded == []  # no pod is evicted
    short.pending.asked("u-batch", 1.0, 600)
    mitigation.evicted("/k/u-batch", 1.0)
    mitigation.throttle(sample, 1.01)
    assert reports.recorded == []  # most are gone by then
    mitigation.throttle(sample, 1.2)
    assert reports.recorded == [{"u-web": 190 * MIB}]
    assert (tmp_path / "u-web" / "memory.high").read_text() == str(190 * MIB)
    write_v2_memory(tmp_path / "u-web", 191)
    write_v2_memory(tmp_path / "u-tiny", 9)
    mitigation.throttle(sample, 1.21)
    assert len(reports.recorded) == 1
    mitigation.throttle(sample, 1.4)
    assert reports.recorded[1:] == [{"u-web": 190 * MIB, "u-tiny": 9 * MIB}]
    mitigation.throttle(sample, 1.6)
    assert len(reports.recorded) == 2
    write_v2_memory(tmp_path / "root", 200)
    mitigation.throttle(short.sampler.sample(1.7), 1.7)
    assert reports.recorded[2:] == [{}]
    assert [(tmp_path / name / "memory.high").read_text()[:3] for name in ("u-web", "u-tiny")] == ["max"] * 2
    short.sampler.close()


@pytest.mark.req("A15", "E9")
def test_throttling_survives_healing_and_ends_without_drift(place):
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
            await until(lambda: "ThrottleOver" in [one.reason for one in agent.events("default/web")])
            reported = [one.reason for one in agent.events("default/web")]
            assert reported.count("Throttled") == 1
            assert "DriftRepaired" not in [one.reason for one in agent.events()]
            throttle.set({"u-web": 96 * MIB})
            agent.watches.memory.throttle.set = lambda _: None  # the agent is killed: it releases no pod

    async def after() -> None:
        async with place.agent() as agent:
            assert kernel.cgroups[path]["memory.high"] == "max"
            assert agent.pod("default/web") is not None

    asyncio.run(live())
    assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
    asyncio.run(after())


class RecordedGuard:
    """Records the files that the guard would write, and whether it was informed of a frozen pod too late or too
    early."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.was_frozen_alone = False

    def hold(self, lets_go: Mapping[str, str]) -> None:
        self._look(lets_go)
        self.held.update(lets_go)

    def free(self, files: Iterable[str]) -> None:
        self._look(files)
        self.held.difference_update(files)

    def _look(self, files: Iterable[str]) -> None:
        self.was_frozen_alone |= any(Path(file).exists() and Path(file).read_text() == "1" for file in files)


class NoGuard:
    def hold(self, lets_go: Mapping[str, str]) -> None: ...

    def free(self, files: Iterable[str]) -> None: ...


@pytest.mark.req("E2", "E12")
def test_a_victim_stays_frozen_until_its_memory_is_free_and_the_guard_knows_it_all_the_time(tmp_path):
    files = {name: FreezeFile(str(tmp_path / name), b"1", b"0") for name in ("a", "b", "gone")}
    for name in "ab":
        (tmp_path / name).write_text("0")

    def frozen() -> set[str]:
        return {name for name in "ab" if (tmp_path / name).read_text() == "1"}

    guard = RecordedGuard()
    freezer = Freezer(guard)
    freezer.prepare_victim(files["a"])
    freezer.prepare_victim(files["b"])
    assert guard.held == {files["b"].file}
    freezer.freeze({name: files[name] for name in "ab"}, 10.0)
    freezer.freeze_victim("a", files["a"])  # it was frozen already
    freezer.freeze_victim("gone", files["gone"])
    freezer.thaw_one("a")
    freezer.thaw_all(10.1)
    assert frozen() == {"a"}
    freezer.freeze_victim("b", files["b"])
    assert frozen() == {"a", "b"}
    assert guard.held == {one.file for one in files.values()}
    for name in files:
        freezer.thaw_victim(name)
    assert not frozen()
    assert not guard.held
    assert not guard.was_frozen_alone
    freezer.prepare_victim(None)


def test_a_victim_whose_cgroup_was_made_anew_since_it_was_prepared_is_frozen(tmp_path):
    path = tmp_path / "freezer.state"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    freezer = Freezer(NoGuard())
    file = FreezeFile(str(path), b"1", b"0")
    freezer.prepare_victim(file)
    os.close(reader)  # as with a cgroup that is gone, what is open cannot be written any more
    path.unlink()
    path.write_text("0")
    freezer.freeze_victim("pod", file)
    assert path.read_text() == "1"
    freezer.thaw_victim("pod")
    assert path.read_text() == "0"


@pytest.mark.req("A15", "E9")
def test_no_pod_stays_throttled_or_frozen_when_the_watch_and_its_guard_are_killed(tmp_path, monkeypatch):
    place = Place(str(tmp_path), KubeletConfiguration(eviction_hard={"memory.available": "100Mi"}))
    kernel = place.kernel
    path = "/evenkeel/kubepods/burstable/podu-web"
    thawed: list[str] = []

    def send_freeze(path: str, *, frozen: bool) -> None:
        assert not frozen
        thawed.append(path)

    monkeypatch.setattr(kernel, "send_freeze", send_freeze)

    async def live() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: len(place.runtime.records) == 2)
            # Before, the watch that is there may still have to say which pods it throttles.
            await until(lambda: not agent.watches.memory.not_ready and bool(_watches_and_guards()))
            agent.watches.memory.throttle.set({"u-web": 96 * MIB})
            assert kernel.cgroups[path]["memory.high"] == str(96 * MIB)
            thawed.clear()
            for pid in _watches_and_guards():
                os.kill(pid, signal.SIGKILL)
            await until(lambda: kernel.cgroups[path]["memory.high"] == "max")
            agent.cgroups.heal()
            assert kernel.cgroups[path]["memory.high"] == "max"
            assert path in thawed
            await agent.watches.memory.close(end=True)

    asyncio.run(live())


def _watches_and_guards() -> list[int]:
    """Waits for the watches and guards of this process. The guard is a child of the watch."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = stat.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")
            found.append((int(pid), name, int(fields.split()[1])))
    watches = [pid for pid, name, parent in found if name == WATCH and parent == os.getpid()]
    guards = [pid for pid, name, parent in found if name == GUARD and parent in watches]
    return [*guards, *watches] if guards else []
