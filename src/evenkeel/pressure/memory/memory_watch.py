"""The watch over memory: a thread that looks, decides and sends the kill, whatever else the agent is doing.

It looks when the kernel tells it to, and otherwise when what is left could be used up at the earliest (`pace`). When a
threshold is crossed it reads every pod, decides (`policy.eviction.decide`), notes what it will do and does it, all
within a few milliseconds; what remains to be done then (status, volumes, cgroups) is for the agent's loop. It goes
on to the next victim only if what is on its way back will not do (E2); and while that is on its way and next to
nothing is left, those above their requests stand still, so that the kernel's own killer has nothing to do.
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
    marks_met,
    really_left,
)
from evenkeel.pressure.targets import WatchTargets
from evenkeel.pressure.watch_thread import Latest, WatchThread

THREAD = "evenkeel-memory"  # as top and /proc show it

SWITCH_SECONDS = 0.0005  # how long another thread may keep the interpreter while the watch waits for it
_UNDISTURBED_SECONDS = 0.005  # how long others wait for it while the watch looks and decides
# How long they have it at each system call of the watch, from its decision to the kill.
_PASSING_SECONDS = 0.0001

_SOFT_SECONDS = 1.0  # how late the crossing of a soft threshold may be seen
_AGAIN_SECONDS = 0.1  # between two decisions on a hard shortage for which nobody may go
_DEPARTING_SECONDS = 0.001  # between two looks while memory is on its way back
_AFTER_FAILURE_SECONDS = 0.1
_RECLAIMING_SECONDS = 0.002  # between two looks meanwhile
_NEAR_SECONDS = 0.05  # what the fastest growth could use up in that time is near a threshold
_HASTE_SECONDS = 1.0  # after it was near
# After the kernel told of a crossing: what can be dropped may be in it, but not for long.
_CROSSING_SECONDS = 0.02
_AT_ONCE_SECONDS = 0.004  # in the first of it there is no pause between looks


class MemoryWatch:
    """`start` and `stop` it; `follow` and `emptied` are for the agent's loop."""

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
        self._wakers = KernelTriggers()
        self._figures = MemorySampler(settings.profile)
        self._departures = PendingMemory(settings.profile, reports.back)
        self._roster = WatchTargets()
        self._new_targets: Latest[WatchTargets] = Latest()
        self._marks: tuple[ByteThreshold, ...] = ()
        self._is_told = False  # the kernel tells of crossings in the pods' cgroup
        self._met: tuple[Threshold, ...] = ()
        self._traits = TraitCache()  # of the targets, for the thread alone
        self._decided_at = 0.0
        self._left_then = 0  # of what was short, at the last decision
        self._relief = Mitigation(self._figures, self._departures, make_driver, reports, guard)
        self._evictor = Evictor(
            self._figures, self._departures, self._relief, intents, reports, unrecorded, clock
        )
        self._haste = Haste()
        self._hasty_until = 0.0
        self._crossing_until = 0.0
        self._patrol = WatchThread(
            THREAD,
            "the watch over memory",
            begin=self._begin,
            turn=self.turn,
            end=self._end,
            wait=self._wakers.wait,
            wake=self._wakers.wake,
            make_driver=make_driver,
            noted=reports.noted,
            after_failure_seconds=_AFTER_FAILURE_SECONDS,
        )

    # The loop's side

    def start(self) -> None:
        self._relief.start()
        self._evictor.start()
        self._patrol.start()

    def stop(self) -> None:
        self._patrol.stop()
        self._relief.stop()
        self._evictor.stop()
        self._departures.close()
        self._figures.close()
        self._wakers.close()

    def follow(self, roster: WatchTargets) -> None:
        self._new_targets.put(roster)
        self._wakers.wake()

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are."""
        self._departures.emptied(uid)

    # The thread

    def _begin(self) -> Iterable[str]:
        return (run_before_others(), *self._wakers.notes)

    def _end(self, driver: Driver) -> None:
        self._haste.calm()
        self._relief.end(driver, time.monotonic())

    def turn(self, driver: Driver) -> float:
        """Looks once, does what is to be done, and says when to look again."""
        # First of all: whoever had to hand over the interpreter for this asks now how long he has to wait for it. Asked
        # later he would have it back in the midst of the decision.
        sys.setswitchinterval(_UNDISTURBED_SECONDS)
        try:
            return self._looked_after(driver)
        finally:
            sys.setswitchinterval(SWITCH_SECONDS)

    def _looked_after(self, driver: Driver) -> float:
        now = time.monotonic()
        if self._wakers.take_crossing():
            self._crossing_until = now + _CROSSING_SECONDS
        if (targets := self._new_targets.take()) is not None:
            self._take_up(targets)
        look = self._looked(now)
        self._relief.looked(look, now)
        if not self._marks:
            self._mark(look)
        if self._wakers.take_oom():
            self._outrun(now, look)
        met = marks_met(self._marks, look, self._state.unresolved)
        if not met:
            self._relief.enough()
        elif _is_hard(met) and self._relief.reclaims(*self._left(met, look), look, now):
            return _RECLAIMING_SECONDS
        if self._is_due(met, look, now) and self._undisturbed(driver, now, look.returning_bytes):
            return 0.0
        self._make_haste(look, now)
        self._relief.hold(driver, look, now)
        self._relief.throttle(look, now)
        return self._wait_seconds(look, met, now)

    def _looked(self, now: float) -> MemorySample:
        """With what is on its way back; but volumes take a while to remove, and where next to nothing is left and
        nobody stands still for it the kernel would not wait for them."""
        returning = self._departures.returning_bytes(now)
        look = self._figures.look(now, returning)
        in_volumes = self._departures.in_volumes_bytes
        if in_volumes and not self._relief.can_hold(now) and self._relief.is_tight(look):
            return self._figures.look(now, returning - in_volumes)
        return look

    def _make_haste(self, look: MemorySample, now: float) -> None:
        """The whole agent runs before others for as long as a hard threshold could be crossed in a moment: the rest of
        it must not keep the watch waiting, nor what is on its way back."""
        if any(left - mark.due_bytes < self._near_bytes for left, mark in really_left(self._marks, look)):
            # There may be new threads.
            is_due = now >= self._hasty_until - _HASTE_SECONDS + _AGAIN_SECONDS
            if not self._haste.is_on or (is_due and not self._has_just_crossed(now)):
                self._hasty_until = now + _HASTE_SECONDS
                self._haste.hurry()
        elif self._haste.is_on and now >= self._hasty_until:
            self._haste.calm()

    def _take_up(self, roster: WatchTargets) -> None:
        before, self._roster = self._roster, roster
        self._figures.follow(roster)
        self._departures.follow({member.uid for member in roster.members})
        self._evictor.follow(roster)
        if (roster.directory, roster.limit_bytes) != (before.directory, before.limit_bytes):
            self._marks = ()
        self._relief.follow(roster, self._marks)
        # The traits of new pods are computed now: under pressure there is no time.
        self._traits.keep_only(member.pod for member in roster.members)
        _, snapshot = self._figures.snapshot(time.monotonic())
        ranking(Signal.ALLOCATABLE_MEMORY_AVAILABLE, snapshot, self._settings, traits=self._traits)

    def _mark(self, look: MemorySample) -> None:
        self._marks = byte_thresholds(self._thresholds, look)
        limit = self._roster.limit_bytes
        of_pods = [
            limit - mark.due_bytes
            for mark in self._marks
            if mark.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE and mark.due_bytes < limit
        ]
        near = [mark - self._near_bytes for mark in of_pods if mark > self._near_bytes]
        self._is_told = self._wakers.follow(self._roster, (*of_pods, *near))
        self._relief.follow(self._roster, self._marks)

    # When to decide

    def _is_due(self, met: tuple[Threshold, ...], look: MemorySample, now: float) -> bool:
        if met != self._met:
            return True
        since = now - self._decided_at
        if _is_hard(met):
            # Nobody could go, or what goes is not enough yet. Who allocates on may become one who can.
            left, reserve = self._left(met, look)
            return since >= _AGAIN_SECONDS or self._left_then - left > reserve // 16
        if met:
            due = min(self._state.first_crossed.get(one, now) + one.grace_period_seconds for one in met)
            return since >= _SOFT_SECONDS or (now >= due > self._decided_at)
        if self._state.first_crossed and not self._departures.is_any_killed:
            return True  # it is over: to be known, and to be told
        ends = [at + self._settings.pressure_transition_period_seconds for at in self._seen_at()]
        return bool(ends) and now >= min(ends)

    def _seen_at(self) -> list[float]:
        return [self._state.pressure_seen[one] for one in self._state.conditions]

    def _left(self, met: tuple[Threshold, ...], look: MemorySample) -> tuple[int, int]:
        """What is left of the shortest, and what should be."""
        return min(
            ((mark.available(look) or 0), mark.due_bytes)
            for mark in self._marks
            if mark.threshold in met and mark.threshold.hard
        )

    def _wait_seconds(self, look: MemorySample, met: tuple[Threshold, ...], now: float) -> float:
        if self._relief.is_holding or (self._departures.is_any_killed and look.returning_bytes):
            return _DEPARTING_SECONDS
        distances = []
        most = MOST_SECONDS
        for mark in self._marks:
            available = mark.available(look)
            if available is None:
                continue
            if not mark.threshold.hard:
                most = min(most, _SOFT_SECONDS)
                continue
            is_told = (
                self._is_told
                and look.pods is not None
                and mark.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE
                and will_be_notified(
                    look.root.usage_bytes, self._roster.limit_bytes - mark.due_bytes, self._cpus
                )
            )
            reserve = 0 if now < self._crossing_until else mark.due_bytes
            distances.append(Distance(available - mark.due_bytes, reserve, is_told))
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

    # What to do

    def _undisturbed(self, driver: Driver, now: float, returning_bytes: int) -> bool:
        """A step in which nobody looks for garbage."""
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._step(driver, now, returning_bytes)
        finally:
            if is_enabled:
                gc.enable()

    def _step(self, driver: Driver, now: float, returning_bytes: int) -> bool:
        """Decides on figures of this moment, and carries it out; whether somebody was killed."""
        began = time.monotonic()
        out = self._departures.no_candidates()
        look, snapshot = self._figures.snapshot(now, out, returning_bytes)
        before = self._state
        after, decision = decide(before, snapshot, self._thresholds, self._settings, self._traits)
        self._state, self._decided_at = after, now
        self._met = marks_met(self._marks, look, after.unresolved)
        if _is_hard(self._met):
            self._left_then = self._left(self._met, look)[0]
        victim = decision.victim
        is_urgent = decision.acting_on is not None and decision.acting_on.hard
        if victim is not None and not is_urgent and self._departures.is_any_asked(now):
            victim = None  # one goes already, and has its time
        step = Step(before, snapshot, self._thresholds, self._settings, decision)
        if victim is None:
            step = step._replace(is_done=decision.victim is None)
            if (decision.crossed, decision.conditions) != (tuple(before.first_crossed), before.conditions):
                self._reports.stepped(step, after, Timing(began))
            return False
        sys.setswitchinterval(_PASSING_SECONDS)
        step, sent_at = self._evictor.evict(step, victim, driver, now)
        self._met = ()  # the next look decides anew, with what is then on its way back
        self._reports.stepped(step, after, Timing(began, sent_at))
        return True

    def _outrun(self, now: float, look: MemorySample) -> None:
        """The kernel's own killer acts: what we would have done at this moment is kept beside what it did (E12)."""
        out = self._departures.no_candidates()
        _, snapshot = self._figures.snapshot(now, out, look.returning_bytes)
        _, decision = decide(self._state, snapshot, self._thresholds, self._settings, self._traits)
        step = Step(self._state, snapshot, self._thresholds, self._settings, decision, is_done=False)
        self._reports.stepped(step, self._state, Timing(now, is_kernels=True))


def _is_hard(met: tuple[Threshold, ...]) -> bool:
    return any(threshold.hard for threshold in met)
