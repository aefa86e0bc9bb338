"""The watch over disk and processes: a thread that reads figures, decides, and evicts (B12, B16).

A reading takes two system calls, and is as rare as the headroom allows. When a threshold is crossed, every pod is
measured and garbage is collected. A pod is evicted only if that is not enough. The next pod is evicted only when the
resources of the first are free, or are no longer being freed (E2). Process numbers run out faster than disk. So they
are read between the slices of every walk, and the victim is kept from starting processes before it is killed.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.policy.eviction.conditions import observations, thresholds_met, with_containerfs
from evenkeel.policy.eviction.decide import Decision, Eviction, Settings, State, decide
from evenkeel.policy.eviction.headroom import MOST_SECONDS, disk_polling_seconds
from evenkeel.policy.eviction.snapshot import NodeFigures, PodFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Threshold
from evenkeel.policy.eviction.usage import Resource, limit_exceeded, resource_of
from evenkeel.pressure.disk.brief_freeze import frozen
from evenkeel.pressure.disk.disk_readings import DiskTargets, Measured, NodeReading, Storage
from evenkeel.pressure.disk.garbage_collection import (
    Collected,
    Collector,
    GarbageCollection,
    PendingDisk,
    is_disk,
)
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.intents import Intent, Intents
from evenkeel.pressure.targets import PodTarget
from evenkeel.pressure.watch_thread import Latest, Stopped, WatchThread
from evenkeel.runtime.interface import Directories

THREAD = "evenkeel-disk"

_LIMITS_SECONDS = 1.0  # the longest wait if pods have limits of their own
_IDLE_SECONDS = 600.0  # if there is nothing to watch
_AGAIN_DISK_SECONDS, _AGAIN_PROCESSES_SECONDS = 1.0, 0.1  # between two decisions on one shortage
_MEASURE_SECONDS = 10.0  # for all pods together, while a decision waits for it
_AFTER_FAILURE_SECONDS = 1.0


class DiskWatchSink(Protocol):
    """Takes the reports of the disk watch. The watch must not wait for the agent, so each call returns at once."""

    def evicting(self, uid: str, eviction: Eviction, at: float) -> None: ...
    def stepped(self, step: Step, after: State, more: Mapping[str, object]) -> None: ...
    def collected(self, collected: Collected) -> None: ...
    def noted(self, text: str) -> None: ...


class DiskWatch:
    """`start` and `stop` control the thread. `follow`, `wake`, `cleaned` and `measure` are for the agent's loop."""

    def __init__(
        self,
        thresholds: tuple[Threshold, ...],
        settings: Settings,
        state: State,
        *,
        most_processes: int,
        storage_path: str,
        images_path: str,
        directories: Callable[[Pod], Directories],
        collectors: Sequence[Collector],
        make_driver: Callable[[], Driver],
        intents: Intents,
        reports: DiskWatchSink,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._thresholds = thresholds
        self._settings = settings
        self._state = state
        self._reading = NodeReading(storage_path, images_path, most_processes, settings.profile)
        self._collecting = GarbageCollection(collectors, self._reading.read)
        self._intents = intents
        self._reports = reports
        self._clock = clock
        device = os.stat(storage_path).st_dev
        self._storage = Storage(directories, device, self._between, frozen=self._frozen)
        self._pending = PendingDisk()
        self._targets = DiskTargets()
        self._given_targets: Latest[DiskTargets] = Latest()
        self._driver: Driver | None = None  # the thread's own driver, set by the current turn
        self._target_of: dict[str, PodTarget] = {}
        self._met: tuple[Threshold, ...] = ()
        self._decided_at = 0.0
        self._asked: deque[Future[Measured]] = deque()
        self._wanted = threading.Event()
        self._thread = WatchThread(
            THREAD,
            "the watch over disk and processes",
            begin=self._begin,
            turn=self.turn,
            end=self._end,
            wait=self._wait,
            wake=self._wanted.set,
            make_driver=make_driver,
            noted=reports.noted,
            after_failure_seconds=_AFTER_FAILURE_SECONDS,
        )

    # The loop's side

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def follow(self, targets: DiskTargets) -> None:
        """Each turn that begins after this call has the new targets. `wake` brings one."""
        self._given_targets.put(targets)

    def wake(self) -> None:
        self._wanted.set()

    def cleaned(self, uid: str) -> None:
        """The pod's directories and volumes are removed."""
        self._pending.cleaned(uid)
        self._wanted.set()

    def measure(self) -> "Future[Measured]":
        """Measures every pod now."""
        asked: Future[Measured] = Future()
        self._asked.append(asked)
        self._wanted.set()
        return asked

    # The thread

    def _begin(self) -> Iterable[str]:
        return ()

    def _end(self, _: Driver) -> None:
        for asked in self._asked:
            asked.cancel()

    def _wait(self, seconds: float) -> None:
        self._wanted.wait(seconds)
        self._wanted.clear()

    def turn(self, driver: Driver) -> float:
        """Reads figures, acts on them, and returns the seconds until the next turn."""
        self._driver = driver
        if (targets := self._given_targets.take()) is not None:
            self._targets = targets
            self._reading.follow(targets)
            self._target_of = {target.uid: target for target in self._targets.pods}
            self._storage.follow(self._targets.pods)
            self._pending.follow(self._target_of.keys())
        while self._asked:
            self._answer(self._asked.popleft())
        now = time.monotonic()
        node = self._read_node(now)
        met = self._crossed(node)
        if self._is_due(met, now):
            self._step(with_disk=any(is_disk(one) for one in met))
        elif self._settings.local_storage_capacity_isolation:
            self._check_limits(node)
        return self._wait_seconds(node, time.monotonic())

    def _between(self) -> None:
        """Called between two slices of a walk: checks the process thresholds."""
        if self._thread.is_stopping:
            raise Stopped
        if not any(resource_of(one.signal) is Resource.PIDS for one in self._thresholds):
            return
        now = time.monotonic()
        seen = observations(NodeFigures(processes=self._reading.processes()))
        met = [one for one in thresholds_met(self._thresholds, seen) if one.hard]
        is_again = now - self._decided_at >= _AGAIN_PROCESSES_SECONDS
        if met and is_again and not self._pending.is_any(Resource.PIDS, now):
            self._step(with_disk=False)

    def _frozen(self, target: PodTarget) -> AbstractContextManager[bool]:
        assert self._driver is not None
        return frozen(self._driver, target.path, self._reports.noted)

    def _answer(self, asked: "Future[Measured]") -> None:
        if not asked.set_running_or_notify_cancel():
            return
        try:
            until = time.monotonic() + _MEASURE_SECONDS
            for target in self._targets.pods:
                self._storage.measure(target, until)
            pods = {target.uid: self._figures(target) for target in self._targets.pods}
            asked.set_result(Measured(self._read_node(time.monotonic()), pods))
        except BaseException as error:
            asked.set_exception(error)
            raise

    # Figures

    def _read_node(self, now: float) -> NodeFigures:
        node = self._reading.read()
        assert node.nodefs is not None
        self._storage.saw(node.nodefs)
        self._pending.saw(node.nodefs, now)
        return node

    def _figures(self, target: PodTarget) -> PodFigures:
        figures = self._reading.pod(target)
        disk = self._storage.known(target.uid)
        return figures if disk is None else disk.figures(figures)

    def _crossed(self, node: NodeFigures) -> tuple[Threshold, ...]:
        seen = observations(node)
        met = thresholds_met(with_containerfs(self._thresholds, node), seen)
        still = thresholds_met(self._state.unresolved, seen, enforce_min_reclaim=True)
        return met + tuple(one for one in still if one not in met)

    # When to decide

    def _is_due(self, met: tuple[Threshold, ...], now: float) -> bool:
        if met != self._met:
            return True
        since = now - self._decided_at
        for one in met:
            begun = self._state.first_crossed.get(one, now)
            is_lasting = now - begun >= one.grace_period_seconds
            if is_lasting and since >= _again_seconds(one) and not self._is_coming_back(one, now):
                return True
        if not met and self._state.first_crossed:
            return True  # the shortage is over, and this has to be recorded
        period = self._settings.pressure_transition_period_seconds
        seen_at = [self._state.pressure_seen[one] for one in self._state.conditions]
        return not met and any(now >= at + period for at in seen_at)

    def _is_coming_back(self, threshold: Threshold, now: float) -> bool:
        return self._pending.is_any(resource_of(threshold.signal), now)

    def _check_limits(self, node: NodeFigures) -> None:
        """Checks the limits of one pod per call (B12)."""
        target = self._storage.due(self._pending.uids)
        if target is not None:
            self._storage.measure(target)
            if limit_exceeded(PodSnapshot(target.pod, self._figures(target)), node) is not None:
                self._step(with_disk=False)

    def _wait_seconds(self, node: NodeFigures, now: float) -> float:
        if not self._thresholds and not self._storage.has_limits:
            return _IDLE_SECONDS
        soonest = _LIMITS_SECONDS if self._storage.has_limits else MOST_SECONDS
        seen = observations(node)
        for one in with_containerfs(self._thresholds, node):
            if one in self._met:
                soonest = min(soonest, _again_seconds(one) / 2)
            elif one.signal in seen:
                soonest = min(soonest, disk_polling_seconds(one, *seen[one.signal]))
        period = self._settings.pressure_transition_period_seconds
        ends = [self._state.pressure_seen[one] + period - now for one in self._state.conditions]
        ends += [at + one.grace_period_seconds - now for one, at in self._state.first_crossed.items()]
        return min(soonest, *(seconds for seconds in ends if seconds > 0), soonest)

    # Acting

    def _step(self, *, with_disk: bool) -> None:
        """Decides on current figures, and carries out the decision."""
        began = time.monotonic()
        if with_disk:
            self._measure_all()
        now = time.monotonic()
        node = self._read_node(now)
        out = self._pending.uids
        pods = tuple(
            PodSnapshot(target.pod, self._figures(target))
            for target in self._targets.pods
            if target.uid not in out
        )
        before = self._state
        snapshot = Snapshot(now, node, pods)
        after, decision = decide(before, snapshot, self._thresholds, self._settings)
        self._state, self._decided_at = after, now
        self._met = self._crossed(node)
        step = Step(before, snapshot, self._thresholds, self._settings, decision)
        more: dict[str, object] = {"beganAt": began}
        evictions = list(decision.over_limit)
        if decision.victim is not None:
            acting_on = decision.acting_on
            assert acting_on is not None
            if self._is_coming_back(acting_on, now):
                step = step._replace(is_done=False)  # a pod was already evicted for this threshold
            elif self._is_relieved_by_collecting(decision, more):
                step = step._replace(is_done=False)
            else:
                evictions.append(decision.victim)
        elif decision.reclaim:
            self._is_relieved_by_collecting(decision, more)
        for eviction in evictions:
            self._evict(eviction, decision, time.monotonic())
        is_news = (decision.crossed, decision.conditions) != (tuple(before.first_crossed), before.conditions)
        if evictions or is_news or "collected" in more:
            self._reports.stepped(step, after, more)

    def _measure_all(self) -> None:
        until = time.monotonic() + _MEASURE_SECONDS
        out = self._pending.uids
        for target in self._targets.pods:
            if target.uid not in out:
                self._storage.measure(target, until)

    def _is_relieved_by_collecting(self, decision: Decision, more: dict[str, object]) -> bool:
        collected, is_relieved = self._collecting.collect(decision, time.monotonic())
        for one in collected:
            if one.failure:
                self._reports.noted(f"cannot remove {one.what}: {one.failure}")
            elif one.bytes or one.inodes:
                self._reports.collected(one)
        if collected:
            more["collected"] = [one._asdict() for one in collected]
        return is_relieved

    def _evict(self, eviction: Eviction, decision: Decision, now: float) -> None:
        target = self._target_of[eviction.pod.metadata.uid]
        resource = Resource.STORAGE
        if eviction.limit is None and decision.acting_on is not None:
            resource = resource_of(decision.acting_on.signal)
        grace = eviction.grace_period_seconds
        at = self._clock()
        if grace == 0:
            self._intents.write(Intent(target.uid, eviction.message, at))
        self._reports.evicting(target.uid, eviction, at)
        if grace == 0:
            self._kill(target, resource)
        self._pending.add(
            target.uid, resource, now + grace, lambda: bool(self._reading.process_count(target.path))
        )
        self._collecting.a_pod_has_gone()

    def _kill(self, target: PodTarget, resource: Resource) -> None:
        assert self._driver is not None
        if resource is Resource.PIDS:
            with suppress(CgroupError):
                self._driver.write(target.path, "pids.max", "0")  # the victim can start no more processes
        try:
            self._driver.send_kill(target.path)
        except CgroupError as error:
            self._reports.noted(str(error))


def _again_seconds(threshold: Threshold) -> float:
    return _AGAIN_DISK_SECONDS if is_disk(threshold) else _AGAIN_PROCESSES_SECONDS
