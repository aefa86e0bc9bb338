"""The memory watch: a thread that samples memory, decides, and kills, even while the rest of the agent is busy.

The watch takes a sample when the kernel wakes it. Otherwise it takes one at the earliest time at which the headroom
could be used up (`policy.eviction.headroom`). When a threshold is crossed, the watch reads every pod, decides
(`policy.eviction.decide`), writes its intent, and kills the victim. All this takes a few milliseconds. The agent's loop
does the rest: status, volumes and cgroups. Another pod is evicted only if the memory of the first is not enough (E2).
While that memory is being freed, other mitigations keep the kernel's OOM killer from acting (`mitigation`).
"""

import gc
import sys
import time
from collections.abc import Callable, Iterable

from evenkeel.cgroup.driver import Driver
from evenkeel.host.protection import Haste, run_before_others
from evenkeel.policy.eviction.decide import Settings, State, decide, ranking
from evenkeel.policy.eviction.headroom import (
    LEAST_SECONDS,
    MOST_SECONDS,
    Distance,
    fastest_growth,
    polling_interval_seconds,
    will_be_notified,
)
from evenkeel.policy.eviction.rank import TraitCache
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.pressure.decision_records import Step
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.evictor import Evictor
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_reports import MemoryWatchSink, Timing, UnrecordedEvictions
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    byte_thresholds,
    left_without_pending,
    levels_crossed,
)
from evenkeel.pressure.protocol import WatchTargets
from evenkeel.pressure.watch_thread import Latest, WatchThread

THREAD = "evenkeel-memory"  # the name in top and /proc

SWITCH_SECONDS = 0.0005  # how long another thread may keep the GIL while the watch waits for it
_DECIDING_SECONDS = 0.005  # how long other threads wait for the GIL while the watch samples and decides
# How long other threads have the GIL at each system call of the watch, from its decision to the kill.
_PASSING_SECONDS = 0.0001

_SOFT_SECONDS = 1.0  # the largest delay in noticing that a soft threshold is crossed
_AGAIN_SECONDS = 0.1  # between two decisions on a hard threshold if no pod may be evicted
_PENDING_SECONDS = 0.001  # between two samples while memory is being freed
_AFTER_FAILURE_SECONDS = 0.1
_RECLAIMING_SECONDS = 0.002  # between two samples while memory is being reclaimed
_NEAR_SECONDS = 0.05  # a threshold is near if the fastest growth could reach it in this time
_HASTE_SECONDS = 1.0  # how long the haste lasts after a threshold was near
# After the kernel reported a crossing. Usage includes cache that can be dropped, so the real crossing may come soon.
_CROSSING_SECONDS = 0.02
_AT_ONCE_SECONDS = 0.004  # in the first part of that time there is no pause between samples


class MemoryWatch:
    """`start`, `stop`, `follow` and `emptied` are for the agent's loop. `turn` is for the watch's thread, or for a test
    that takes the turns itself."""

    def __init__(
        self,
        thresholds: tuple[Threshold, ...],
        settings: Settings,
        state: State,
        cpus: int,
        make_driver: Callable[[], Driver],
        intents: Intents,
        reports: MemoryWatchSink,
        unrecorded: UnrecordedEvictions,
        clock: Callable[[], float] = time.time,
        guard: GuardClient | None = None,
    ) -> None:
        self._thresholds = thresholds
        self._settings = settings
        self._state = state
        self._cpus = cpus
        self._growth = fastest_growth(cpus)
        self._near_bytes = int(self._growth * _NEAR_SECONDS)
        self._reports = reports
        self._triggers = KernelTriggers()
        self._sampler = MemorySampler(settings.profile)
        self._pending = PendingMemory(settings.profile, reports.back)
        self._targets = WatchTargets()
        self._given_targets: Latest[WatchTargets] = Latest()
        self._levels: tuple[ByteThreshold, ...] = ()
        self._is_notified = False  # the kernel reports crossings in the pods' cgroup
        self._met: tuple[Threshold, ...] = ()
        self._traits = TraitCache()  # traits of the targets; only the watch's thread uses them
        self._decided_at = 0.0
        self._left_then = 0  # bytes of the short resource at the last decision
        self._mitigation = Mitigation(self._sampler, self._pending, make_driver, reports, guard)
        self._evictor = Evictor(
            self._sampler, self._pending, self._mitigation, intents, reports, unrecorded, clock
        )
        self._haste = Haste()
        self._hasty_until = 0.0
        self._crossing_until = 0.0
        self._thread = WatchThread(
            THREAD,
            "the watch over memory",
            begin=self._begin,
            turn=self.turn,
            end=self._end,
            wait=self._triggers.wait,
            wake=self._triggers.wake,
            make_driver=make_driver,
            noted=reports.noted,
            after_failure_seconds=_AFTER_FAILURE_SECONDS,
        )

    # The loop's side

    def start(self) -> None:
        self._mitigation.start()
        self._evictor.start()
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        self._mitigation.stop()
        self._evictor.stop()
        self._pending.close()
        self._sampler.close()
        self._triggers.close()

    def follow(self, targets: WatchTargets) -> None:
        """Sets new targets. The next turn uses them."""
        self._given_targets.put(targets)
        self._triggers.wake()

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are empty."""
        self._pending.emptied(uid)

    # The thread

    def _begin(self) -> Iterable[str]:
        return (run_before_others(), *self._triggers.notes)

    def _end(self, driver: Driver) -> None:
        self._haste.calm()
        self._mitigation.end(driver, time.monotonic())

    def turn(self, driver: Driver) -> float:
        """Takes a sample, acts on it, and returns the seconds until the next turn."""
        # This must come first. The thread that had to release the GIL reads now how long it has to wait for it. If it
        # read the value later, it would get the GIL back in the middle of the decision.
        sys.setswitchinterval(_DECIDING_SECONDS)
        try:
            return self._take_turn(driver)
        finally:
            sys.setswitchinterval(SWITCH_SECONDS)

    def _take_turn(self, driver: Driver) -> float:
        now = time.monotonic()
        if self._triggers.take_crossing():
            self._crossing_until = now + _CROSSING_SECONDS
        if (targets := self._given_targets.take()) is not None:
            self._take_up(targets)
        sample = self._sampled(now)
        self._mitigation.sampled(sample, now)
        if not self._levels:
            self._set_levels(sample)
        if self._triggers.take_oom():
            self._record_kernel_kill(now, sample)
        met = levels_crossed(self._levels, sample, self._state.unresolved)
        if not met:
            self._mitigation.not_short()
        elif _is_hard(met) and self._mitigation.is_reclaiming(*self._left(met, sample), sample, now):
            return _RECLAIMING_SECONDS
        if self._is_due(met, sample, now) and self._step_without_gc(driver, now, sample.pending_bytes):
            return 0.0
        self._make_haste(sample, now)
        self._mitigation.freeze(driver, sample, now)
        self._mitigation.throttle(sample, now)
        return self._wait_seconds(sample, met, now)

    def _sampled(self, now: float) -> MemorySample:
        """Takes a sample, and counts memory that is still being freed as available. Memory in volumes is an exception,
        because a volume takes a while to empty. It does not count if almost no memory is left and no pod can be frozen:
        the kernel's OOM killer would not wait for it."""
        pending = self._pending.pending_bytes(now)
        sample = self._sampler.sample(now, pending)
        in_volumes = self._pending.in_volumes_bytes
        if in_volumes and not self._mitigation.can_freeze(now) and self._mitigation.is_tight(sample):
            return self._sampler.sample(now, pending - in_volumes)
        return sample

    def _make_haste(self, sample: MemorySample, now: float) -> None:
        """While a hard threshold could be crossed in a moment, the whole agent runs before other processes. Otherwise
        the rest of the agent could delay the watch, or delay the freeing of memory."""
        if any(
            left - level.due_bytes < self._near_bytes
            for left, level in left_without_pending(self._levels, sample)
        ):
            # New threads may have been started since the last time.
            is_due = now >= self._hasty_until - _HASTE_SECONDS + _AGAIN_SECONDS
            if not self._haste.is_on or (is_due and not self._has_just_crossed(now)):
                self._hasty_until = now + _HASTE_SECONDS
                self._haste.hurry()
        elif self._haste.is_on and now >= self._hasty_until:
            self._haste.calm()

    def _take_up(self, targets: WatchTargets) -> None:
        before, self._targets = self._targets, targets
        self._sampler.follow(targets)
        self._pending.follow({target.uid for target in targets.pods})
        self._evictor.follow(targets)
        if (targets.directory, targets.limit_bytes) != (before.directory, before.limit_bytes):
            self._levels = ()
        self._mitigation.follow(targets, self._levels)
        # Computes the traits of new pods now: under pressure there is no time.
        self._traits.keep_only(target.pod for target in targets.pods)
        _, snapshot = self._sampler.snapshot(time.monotonic())
        ranking(Signal.ALLOCATABLE_MEMORY_AVAILABLE, snapshot, self._settings, traits=self._traits)

    def _set_levels(self, sample: MemorySample) -> None:
        self._levels = byte_thresholds(self._thresholds, sample)
        limit = self._targets.limit_bytes
        of_pods = [
            limit - level.due_bytes
            for level in self._levels
            if level.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE and level.due_bytes < limit
        ]
        near = [level - self._near_bytes for level in of_pods if level > self._near_bytes]
        self._is_notified = self._triggers.follow(self._targets, (*of_pods, *near))
        self._mitigation.follow(self._targets, self._levels)

    # When to decide

    def _is_due(self, met: tuple[Threshold, ...], sample: MemorySample, now: float) -> bool:
        if met != self._met:
            return True
        since = now - self._decided_at
        if _is_hard(met):
            # No pod could be evicted, or the evicted pods have not freed enough memory yet. A pod that grows may become
            # a candidate.
            left, reserve = self._left(met, sample)
            return since >= _AGAIN_SECONDS or self._left_then - left > reserve // 16
        if met:
            due = min(self._state.first_crossed.get(one, now) + one.grace_period_seconds for one in met)
            return since >= _SOFT_SECONDS or (now >= due > self._decided_at)
        if self._state.first_crossed and not self._pending.is_any_killed:
            return True  # the shortage is over, and this has to be recorded
        ends = [at + self._settings.pressure_transition_period_seconds for at in self._seen_at()]
        return bool(ends) and now >= min(ends)

    def _seen_at(self) -> list[float]:
        return [self._state.pressure_seen[one] for one in self._state.conditions]

    def _left(self, met: tuple[Threshold, ...], sample: MemorySample) -> tuple[int, int]:
        """Returns the bytes left of the scarcest resource, and the bytes that its threshold requires."""
        return min(
            ((level.available(sample) or 0), level.due_bytes)
            for level in self._levels
            if level.threshold in met and level.threshold.hard
        )

    def _wait_seconds(self, sample: MemorySample, met: tuple[Threshold, ...], now: float) -> float:
        if self._mitigation.is_freezing or (self._pending.is_any_killed and sample.pending_bytes):
            return _PENDING_SECONDS
        distances = []
        most = MOST_SECONDS
        for level in self._levels:
            available = level.available(sample)
            if available is None:
                continue
            if not level.threshold.hard:
                most = min(most, _SOFT_SECONDS)
                continue
            is_notified = (
                self._is_notified
                and sample.pods is not None
                and level.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE
                and will_be_notified(
                    sample.root.usage_bytes, self._targets.limit_bytes - level.due_bytes, self._cpus
                )
            )
            reserve = 0 if now < self._crossing_until else level.due_bytes
            distances.append(Distance(available - level.due_bytes, reserve, is_notified))
        ends = [at + self._settings.pressure_transition_period_seconds - now for at in self._seen_at()]
        ends += [
            self._state.first_crossed[one] + one.grace_period_seconds - now
            for one in met
            if not one.hard and one in self._state.first_crossed
        ]
        ahead = [seconds for seconds in ends if seconds > 0]
        seconds = min(most, polling_interval_seconds(distances, self._growth), *ahead)
        return 0.0 if seconds <= LEAST_SECONDS and self._has_just_crossed(now) else seconds

    def _has_just_crossed(self, now: float) -> bool:
        return now < self._crossing_until - _CROSSING_SECONDS + _AT_ONCE_SECONDS

    # Acting

    def _step_without_gc(self, driver: Driver, now: float, pending_bytes: int) -> bool:
        """Runs a step with Python's garbage collection disabled."""
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._step(driver, now, pending_bytes)
        finally:
            if is_enabled:
                gc.enable()

    def _step(self, driver: Driver, now: float, pending_bytes: int) -> bool:
        """Decides on current figures, and carries out the decision. Returns whether a pod was evicted."""
        began = time.monotonic()
        out = self._pending.killed_uids()
        sample, snapshot = self._sampler.snapshot(now, out, pending_bytes)
        before = self._state
        after, decision = decide(before, snapshot, self._thresholds, self._settings, self._traits)
        self._state, self._decided_at = after, now
        self._met = levels_crossed(self._levels, sample, after.unresolved)
        if _is_hard(self._met):
            self._left_then = self._left(self._met, sample)[0]
        victim = decision.victim
        is_urgent = decision.acting_on is not None and decision.acting_on.hard
        if victim is not None and not is_urgent and self._pending.is_any_asked(now):
            victim = None  # another pod was asked to end, and its grace period is not over
        step = Step(before, snapshot, self._thresholds, self._settings, decision)
        if victim is None:
            step = step._replace(is_done=decision.victim is None)
            if (decision.crossed, decision.conditions) != (tuple(before.first_crossed), before.conditions):
                self._reports.stepped(step, after, Timing(began))
            return False
        sys.setswitchinterval(_PASSING_SECONDS)
        step, sent_at = self._evictor.evict(step, victim, driver, now)
        self._met = ()  # the next turn decides again, and counts the memory that is being freed by then
        self._reports.stepped(step, after, Timing(began, sent_at))
        return True

    def _record_kernel_kill(self, now: float, sample: MemorySample) -> None:
        """The kernel's OOM killer acted. Records our own decision for this moment beside the kernel's (E12)."""
        out = self._pending.killed_uids()
        _, snapshot = self._sampler.snapshot(now, out, sample.pending_bytes)
        _, decision = decide(self._state, snapshot, self._thresholds, self._settings, self._traits)
        step = Step(self._state, snapshot, self._thresholds, self._settings, decision, is_done=False)
        self._reports.stepped(step, self._state, Timing(now, is_kernels=True))


def _is_hard(met: tuple[Threshold, ...]) -> bool:
    return any(threshold.hard for threshold in met)
