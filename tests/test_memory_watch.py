"""Turns of the memory watch, taken by the test. On real kernels: tests/kernel/test_evictions.py and test_storms.py."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.host.dying import Dying
from evenkeel.policy.eviction.decide import Settings, State
from evenkeel.policy.eviction.headroom import LEAST_SECONDS, MOST_SECONDS
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.cgroup_writes import AGENT, STANDBY
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_watch import MemoryWatch, WatchSettings
from evenkeel.pressure.memory.pod_usages import RECENT_SECONDS
from tests.models.agents import pods_of
from tests.models.memory_files import MIB, PODS, IgnoredReports, targets_in, write_v1_memory, write_v2_memory

LINE_MIB = 300
PATIENCE_SECONDS = 30.0


class Watched:
    """A memory watch on cgroup v1 with files instead of a kernel, and a clock of its own."""

    def __init__(self, directory: Path, *, is_freezing_victims: bool = False) -> None:
        thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
        own = tuple(one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
        self.triggers = KernelTriggers()
        ignored = IgnoredReports()
        given, intents = WatchSettings(own, Settings(), 2), Intents(str(directory), print)
        self.watch = MemoryWatch(
            given, State(), self.triggers, intents, ignored, ignored, is_freezing_victims=is_freezing_victims
        )
        self.root = write_v1_memory(directory / "root", 200)
        (self.root / "cgroup.event_control").touch()
        (self.root / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
        self.targets = targets_in(directory, LINE_MIB + 100)._replace(version=Version.V1)
        self.watch.follow(self.targets)
        self.now = time.monotonic()

    def uses(self, usage_mib: int, cache_mib: int = 0) -> float:
        """The result of a turn when the pods use so much."""
        write_v1_memory(self.root, usage_mib, total_inactive_file=cache_mib)
        return self.watch.turn()

    def crossed(self) -> None:
        """The kernel reports that levels were crossed."""
        for descriptor in self.triggers._usage:  # noqa: SLF001 in place of the kernel
            os.eventfd_write(descriptor, 1)
        self.triggers.wait(0)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    yield made
    made.watch.close()
    made.triggers.close()


@pytest.mark.req("E1")
def test_after_an_early_notification_samples_follow_with_very_short_pauses_for_a_moment(watched: Watched):
    assert watched.uses(200) == MOST_SECONDS  # the kernel will tell
    assert LEAST_SECONDS < watched.uses(LINE_MIB, cache_mib=1) < 0.01
    watched.crossed()
    assert 0 < watched.watch.turn() < LEAST_SECONDS
    watched.now += 0.005
    watched.crossed()
    assert watched.watch.turn() == LEAST_SECONDS
    assert not watched.triggers.wait(0)  # it does not wake again
    watched.now += 0.1
    watched.crossed()
    assert 0 < watched.watch.turn() < LEAST_SECONDS


@pytest.mark.req("E1")
def test_a_pause_that_is_too_short_for_epoll_is_as_short_as_it_should_be(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    triggers = KernelTriggers()
    ready = os.eventfd(0)
    called: list[int] = []
    try:
        triggers.call_when_ready(ready, lambda: called.append(os.eventfd_read(ready)))
        assert not triggers.wait(0.0001)
        os.eventfd_write(ready, 1)
        assert triggers.wait(0.0001)  # afterwards it looks for events
        assert (slept, called) == ([0.0001, 0.0001], [1])
    finally:
        triggers.close()
        os.close(ready)


@pytest.mark.req("E1")
def test_the_time_without_pauses_begins_at_the_line_and_not_at_a_mark_on_the_way(watched: Watched):
    watched.uses(200)
    watched.crossed()
    assert watched.uses(LINE_MIB - 60) == MOST_SECONDS
    watched.now += 0.05
    watched.crossed()
    assert 0 < watched.uses(LINE_MIB, cache_mib=1) < LEAST_SECONDS


@pytest.mark.req("E1")
def test_close_to_the_line_it_rehearses_again_and_again_as_long_as_the_pods_grow(watched: Watched):
    watched.uses(200)
    watched.now += 1
    assert watched.uses(LINE_MIB - 100) == MOST_SECONDS
    assert watched.uses(LINE_MIB - 20) == MOST_SECONDS
    for left in (7, 6, 5):
        assert watched.uses(LINE_MIB - left) < RECENT_SECONDS
        watched.now += 0.75 * RECENT_SECONDS
    assert watched.uses(LINE_MIB - 5) < RECENT_SECONDS  # they may only wait for a processor
    watched.now += 0.1
    assert watched.uses(LINE_MIB - 5) == MOST_SECONDS
    watched.now += 0.01
    assert watched.uses(LINE_MIB - 4) == MOST_SECONDS  # the kernel will tell


class SoftlyWatched:
    """A memory watch without an agent, with a soft threshold, and with pods that have 20 s to end."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        signal_ = Signal.ALLOCATABLE_MEMORY_AVAILABLE
        soft = parse_thresholds(soft={signal_: "100Mi"}, soft_grace_period={signal_: "1s"})
        self.directory = directory
        self.now = time.monotonic()
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        reports, self.triggers = IgnoredReports(), KernelTriggers()
        reports.is_heard = False
        given, intents = (
            WatchSettings(soft, Settings(max_pod_grace_period_seconds=20), 2),
            Intents(str(directory), print),
        )
        self.watch = MemoryWatch(given, State(), self.triggers, intents, reports, reports)
        batch, web = pods_of(PODS)
        write_v2_memory(directory / "root", 350)
        write_v2_memory(directory / "u-batch", 250)
        write_v2_memory(directory / "u-web", 90)
        self.targets = targets_in(directory, 400, (batch, 0), (web, 0))

    def noted_after(self, seconds: float) -> dict[str, float]:
        """By UID: the pods that are asked to end by then, and the time that they have."""
        self.now += seconds
        self.watch.turn()
        return {one.uid: one.grace_seconds for one in Intents(str(self.directory), print).found}


@pytest.fixture
def softly_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SoftlyWatched]:
    made = SoftlyWatched(tmp_path, monkeypatch)
    yield made
    made.watch.close()
    made.triggers.close()


@pytest.mark.req("A20", "B16")
def test_without_an_agent_the_intent_says_how_long_a_pod_has_that_is_asked_to_end(
    softly_watched: SoftlyWatched,
):
    softly_watched.watch.follow(softly_watched.targets)
    assert softly_watched.noted_after(0) == {}
    assert softly_watched.noted_after(1.1) == {"u-batch": 20}
    softly_watched.now += 5
    assert softly_watched.watch.evicted == {"u-batch": pytest.approx(15)}


@pytest.mark.req("B16", "E2")
def test_no_other_pod_is_asked_to_end_while_one_has_time_that_a_former_watch_has_asked(
    softly_watched: SoftlyWatched,
):
    softly_watched.watch.follow(softly_watched.targets, {"u-batch": 15.0})
    assert softly_watched.noted_after(0) == {}
    for seconds in (1.1, 5, 8):  # its memory no longer counts as available
        assert softly_watched.noted_after(seconds) == {}
    assert softly_watched.noted_after(5) == {"u-web": 20}


@pytest.mark.req("E1")
@pytest.mark.parametrize("is_freezing_victims", [True, False])
def test_where_victims_are_frozen_an_empty_cgroup_is_frozen_before_while_a_threshold_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_freezing_victims: bool
):
    watched = Watched(tmp_path, is_freezing_victims=is_freezing_victims)
    monkeypatch.setattr("time.monotonic", lambda: watched.now)
    state = tmp_path / "freezer" / AGENT / STANDBY / "freezer.state"
    state.parent.mkdir(parents=True)
    state.write_text("FROZEN")  # by a watch that was killed
    wide = watched.targets._replace(limit_bytes=1000 * MIB, freezer_mount=str(tmp_path / "freezer"))
    near = "FROZEN" if is_freezing_victims else "THAWED"
    try:
        watched.watch.follow(wide)
        watched.uses(200)
        assert state.read_text() == "THAWED"
        watched.uses(850)
        assert state.read_text() == near
        for seconds in (0.0, 9.0):  # the same pods may soon be near again
            watched.now += seconds
            watched.uses(200)
            assert state.read_text() == near
        watched.now += 2.0
        watched.uses(200)
        assert state.read_text() == "THAWED"
        watched.uses(850)
        assert state.read_text() == near
    finally:
        watched.watch.close()
        watched.triggers.close()
    assert state.read_text() == "THAWED"


@pytest.mark.req("E2", "E12")
@pytest.mark.parametrize("is_released", [True, False], ids=["released", "stuck"])
def test_where_real_time_has_a_budget_a_victim_is_frozen_from_its_kill_until_its_memory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_released: bool
):
    may_release = threading.Event()
    monkeypatch.setattr(Dying, "release", lambda _: may_release.wait(PATIENCE_SECONDS))
    closed, close = threading.Event(), Dying.close

    def closing(dying: Dying) -> None:
        close(dying)
        closed.set()

    monkeypatch.setattr(Dying, "close", closing)
    batch, _ = pods_of(PODS)
    watched = Watched(tmp_path, is_freezing_victims=True)
    monkeypatch.setattr("time.monotonic", lambda: watched.now)
    process = subprocess.Popen(["sleep", "1000"])
    try:
        target = targets_in(tmp_path, 0, (batch, 0)).pods[0]
        main = write_v1_memory(tmp_path / "u-batch" / "main", 250)
        (main / "cgroup.procs").write_text(f"{process.pid}\n")
        write_v1_memory(tmp_path / "u-batch", 250)
        state = tmp_path / "freezer" / "k" / "u-batch" / "freezer.state"
        state.parent.mkdir(parents=True)
        state.write_text("THAWED")
        pods = (target._replace(containers=(("main", str(main)),)),)
        watched.watch.follow(watched.targets._replace(pods=pods, freezer_mount=str(tmp_path / "freezer")))
        watched.uses(200)
        assert state.read_text() == "THAWED"
        assert watched.uses(LINE_MIB + 1) == 0
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert state.read_text() == "FROZEN"
        assert 0 < watched.watch.turn() <= LEAST_SECONDS  # it looks again soon
        assert state.read_text() == "FROZEN"
        if is_released:
            closed.clear()
            may_release.set()
            assert closed.wait(PATIENCE_SECONDS)
        else:
            watched.now += 0.2
        watched.watch.turn()
        assert state.read_text() == "THAWED"
    finally:
        may_release.set()
        process.kill()
        process.wait()
        watched.watch.close()
        watched.triggers.close()


@pytest.mark.req("E2")
def test_queues_of_sockets_bring_the_line_nearer_and_no_second_pod_is_evicted_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    watched = Watched(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: watched.now)
    processes = {f"u-{name}": subprocess.Popen(["sleep", "1000"]) for name in ("batch", "web")}
    try:
        targets = targets_in(tmp_path, 0, *((pod, 0) for pod in pods_of(PODS))).pods
        for target in targets:
            pod = write_v1_memory(tmp_path / target.uid, 10 if target.uid == "u-batch" else 180)
            (pod / "cgroup.procs").write_text(f"{processes[target.uid].pid}\n")
        pods = tuple(target._replace(containers=(("main", target.directory),)) for target in targets)
        watched.watch.follow(watched.targets._replace(pods=pods))
        assert watched.uses(190) > 0
        watched.watch.count_queues({"u-batch": 150 << 20})
        assert watched.watch.turn() == 0
        assert processes["u-batch"].wait(PATIENCE_SECONDS) == -signal.SIGKILL
        write_v1_memory(tmp_path / "u-batch", 0)
        (tmp_path / "u-batch" / "cgroup.procs").write_text("")
        for seconds in (0.01, 0.2, 0.5, 2.0):
            watched.now += seconds
            # An agent may have looked before the pod was killed.
            watched.watch.count_queues({"u-batch": 150 << 20})
            assert watched.uses(180) > 0
        assert processes["u-web"].poll() is None
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        watched.watch.close()
        watched.triggers.close()
