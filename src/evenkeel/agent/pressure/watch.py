"""The watch over memory: a thread that looks, decides and sends the kill, whatever else the agent is doing.

It looks when the kernel tells it to, and otherwise when what is left could be used up at the earliest (`pace`). When a
threshold is crossed it reads every pod, decides (`policy.eviction.decide`), notes what it will do and does it, all
within a few milliseconds; what remains to be done then (status, volumes, cgroups) is for the agent's loop. It goes
on to the next victim only if what is on its way back will not do (E2).
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from evenkeel.agent.pressure.departures import Departures
from evenkeel.agent.pressure.figures import Figures, Look
from evenkeel.agent.pressure.hands import Hands
from evenkeel.agent.pressure.intents import Intents
from evenkeel.agent.pressure.marks import Mark, marks_met, marks_of
from evenkeel.agent.pressure.reaper import Reaper
from evenkeel.agent.pressure.recording import Step
from evenkeel.agent.pressure.roster import Member, Roster
from evenkeel.agent.pressure.wakers import Wakers
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.dying import Dying, pids_of
from evenkeel.host.protection import name_thread, run_before_others
from evenkeel.policy.eviction.decide import Decision, Eviction, Settings, State, decide, ranking
from evenkeel.policy.eviction.message import shortage_message
from evenkeel.policy.eviction.pace import MOST_SECONDS, Distance, fastest_growth, look_after_seconds
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.policy.eviction.usage import Resource, usage_by_part

log = logging.getLogger(__name__)

THREAD = "evenkeel-memory"  # as top and /proc show it

SWITCH_SECONDS = 0.0005  # how long another thread may keep the interpreter while the watch waits for it
_UNDISTURBED_SECONDS = 0.01  # how long others wait for it while the watch decides

_SOFT_SECONDS = 1.0  # how late the crossing of a soft threshold may be seen
_AGAIN_SECONDS = 0.1  # between two decisions on a hard shortage for which nobody may go
_DEPARTING_SECONDS = 0.001  # between two looks while memory is on its way back
_AFTER_FAILURE_SECONDS = 0.1
_RECLAIM_SECONDS = 0.3  # to take memory back in, before somebody has to go
_RECLAIMING_SECONDS = 0.002  # between two looks meanwhile
_RECLAIM_AGAIN_SECONDS = 5.0


class Evicting(NamedTuple):
    """A pod that goes, told before anything is done to it."""

    uid: str
    eviction: Eviction
    at: float  # seconds since the epoch


class Timing(NamedTuple):
    """Of one decision, by the machine's own clock (CLOCK_MONOTONIC)."""

    began_at: float
    sent_at: float | None = None  # when the kill was


class Reports(Protocol):
    """Whom the watch tells. Called in its thread; they must not keep it."""

    def evicting(self, evicting: Evicting) -> None: ...
    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        """A decision that changed something, after it was carried out."""
        ...

    def back(self, member: Member, held_bytes: int, took_seconds: float) -> None: ...
    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None: ...
    def noted(self, text: str) -> None:
        """Something that makes the watch worse than it could be."""
        ...


class Watch:
    """`start` and `stop` it; `follow` and `cleaned` are for the agent's loop."""

    def __init__(
        self,
        thresholds: tuple[Threshold, ...],
        settings: Settings,
        state: State,
        cpus: int,
        make_driver: Callable[[], Driver],
        journal_path: str,
        reports: Reports,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.evicting: dict[str, Evicting] = {}  # by UID, until the loop takes them out
        self._thresholds = thresholds
        self._settings = settings
        self._state = state
        self._growth = fastest_growth(cpus)
        self._make_driver = make_driver
        self._journal_path = journal_path
        self._reports = reports
        self._clock = clock
        self._wakers = Wakers()
        self._figures = Figures(settings.profile)
        self._departures = Departures(settings.profile, reports.back)
        self._roster = Roster()
        self._new_roster: Roster | None = None
        self._members: dict[str, Member] = {}
        self._marks: tuple[Mark, ...] = ()
        self._is_told = False  # the kernel tells of crossings in the pods' cgroup
        self._met: tuple[Threshold, ...] = ()
        self._decided_at = 0.0
        self._left_then = 0  # of what was short, at the last decision
        self._reclaiming_since: float | None = None
        self._no_reclaim_before = 0.0
        self._hands = Hands(make_driver)
        self._reaper = Reaper()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    # The loop's side

    def start(self) -> None:
        self._hands.start()
        self._reaper.start()
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._wakers.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._hands.stop()
        self._reaper.stop()
        self._departures.close()
        self._figures.close()
        self._wakers.close()

    def follow(self, roster: Roster) -> None:
        self._new_roster = roster
        self._wakers.wake()

    def cleaned(self, uid: str) -> None:
        """The pod's volumes are removed."""
        self._departures.cleaned(uid)

    # The thread

    def _run(self) -> None:
        name_thread(THREAD)
        for note in (run_before_others(), *self._wakers.notes):
            if note:
                self._reports.noted(note)
        self._driver = self._make_driver()
        self._intents = self._opened_intents()
        try:
            while not self._is_stopping:
                try:
                    wait = self._turn()
                except (OSError, EvenkeelError) as error:
                    self._reports.noted(f"the watch over memory: {error}")
                    wait = _AFTER_FAILURE_SECONDS
                except Exception:
                    log.exception("the watch over memory")
                    wait = _AFTER_FAILURE_SECONDS
                self._wakers.wait(wait)
        finally:
            if self._intents is not None:
                self._intents.close()
            self._driver.close()

    def _opened_intents(self) -> Intents | None:
        try:
            return Intents(self._journal_path)
        except EvenkeelError as error:
            self._reports.noted(str(error))
            return None

    def _turn(self) -> float:
        """Looks once, does what is to be done, and says when to look again."""
        now = time.monotonic()
        if self._new_roster is not None:
            self._take_up(self._new_roster)
        look = self._looked(now)
        if not self._marks:
            self._mark(look)
        met = marks_met(self._marks, look, self._state.unresolved)
        if self._hands.is_throttling and not self._is_still_short(look):
            self._hands.release()
        if not met:
            self._reclaiming_since = None
        elif self._reclaims(met, look, now):
            return _RECLAIMING_SECONDS
        if self._is_due(met, look, now):
            sys.setswitchinterval(_UNDISTURBED_SECONDS)
            try:
                if self._step(now, look.returning_bytes):
                    return 0.0
            finally:
                sys.setswitchinterval(SWITCH_SECONDS)
        return self._wait_seconds(look, met, now)

    def _looked(self, now: float) -> Look:
        """With what is on its way back; but volumes take a while to remove, and where next to nothing is left the
        kernel would not wait for them."""
        returning = self._departures.returning_bytes(now)
        look = self._figures.look(now, returning)
        in_volumes = self._departures.in_volumes_bytes
        if in_volumes and any(
            mark.threshold.hard
            and (available := mark.available(look)) is not None
            and available - returning < mark.due_bytes // 2
            for mark in self._marks
        ):
            return self._figures.look(now, returning - in_volumes)
        return look

    def _take_up(self, roster: Roster) -> None:
        self._new_roster = None
        before, self._roster = self._roster, roster
        self._members = {member.uid: member for member in roster.members}
        self._figures.follow(roster)
        self._departures.follow(set(self._members))
        if (roster.directory, roster.limit_bytes) != (before.directory, before.limit_bytes):
            self._marks = ()
        # What is worked out once for each pod is worked out now, and not when there is no time.
        _, snapshot = self._figures.snapshot(time.monotonic())
        ranking(Signal.ALLOCATABLE_MEMORY_AVAILABLE, snapshot, self._settings)

    def _mark(self, look: Look) -> None:
        self._marks = marks_of(self._thresholds, look)
        limit = self._roster.limit_bytes
        of_pods = [
            limit - mark.due_bytes
            for mark in self._marks
            if mark.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE and mark.due_bytes < limit
        ]
        self._is_told = self._wakers.follow(self._roster, of_pods)

    # What helps before somebody has to go

    def _reclaims(self, met: tuple[Threshold, ...], look: Look, now: float) -> bool:
        """Whether what is short may soon be there because the kernel is taking it back from those above their request:
        files that are yet to be written, and its own caches. Not where there is no time for it, and not again and
        again."""
        if self._departures.is_any_killed or not any(threshold.hard for threshold in met):
            return False
        left, due = self._left(met, look)
        if left < due // 2 or look.root.washable_bytes < due - left:
            return False
        if self._reclaiming_since is None:
            if now < self._no_reclaim_before:
                return False
            self._reclaiming_since = now
            self._no_reclaim_before = now + _RECLAIM_AGAIN_SECONDS
            self._figures.snapshot(now)
            wanted = {
                member.path: reading.washable_bytes
                for member in self._roster.members
                if (reading := self._figures.readings.get(member.uid)) is not None
                and reading.usage_bytes > member.request_bytes
                and reading.washable_bytes
            }
            if not wanted:
                return False
            self._hands.reclaim(self._roster.version, wanted)
            self._reports.reclaiming(sum(wanted.values()), due - left)
        return now - self._reclaiming_since < _RECLAIM_SECONDS

    def _throttle(self, leaving: str) -> None:
        """Those above their request get no more while memory is on its way back; on cgroup v2."""
        if self._roster.version != Version.V2:
            return
        out = self._departures.no_candidates()
        self._hands.throttle(
            {
                member.path: reading.usage_bytes
                for member in self._roster.members
                if member.uid != leaving
                and member.uid not in out
                and (reading := self._figures.readings.get(member.uid)) is not None
                and reading.usage_bytes > member.request_bytes
            }
        )

    def _is_still_short(self, look: Look) -> bool:
        """Whether, without what is on its way back, a hard threshold is crossed."""
        return bool(look.returning_bytes) and any(
            mark.threshold.hard
            and (available := mark.available(look)) is not None
            and available - look.returning_bytes < mark.over_bytes
            for mark in self._marks
        )

    # When to decide

    def _is_due(self, met: tuple[Threshold, ...], look: Look, now: float) -> bool:
        if met != self._met:
            return True
        since = now - self._decided_at
        if any(threshold.hard for threshold in met):
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

    def _left(self, met: tuple[Threshold, ...], look: Look) -> tuple[int, int]:
        """What is left of the shortest, and what should be."""
        return min(
            ((mark.available(look) or 0), mark.due_bytes)
            for mark in self._marks
            if mark.threshold in met and mark.threshold.hard
        )

    def _wait_seconds(self, look: Look, met: tuple[Threshold, ...], now: float) -> float:
        if self._departures.is_any_killed and look.returning_bytes:
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
                and look.root.usage_bytes < self._roster.limit_bytes - mark.due_bytes
            )
            distances.append(Distance(available - mark.due_bytes, mark.due_bytes, is_told))
        ends = [at + self._settings.pressure_transition_period_seconds - now for at in self._seen_at()]
        ends += [
            self._state.first_crossed[one] + one.grace_period_seconds - now
            for one in met
            if not one.hard and one in self._state.first_crossed
        ]
        ahead = [seconds for seconds in ends if seconds > 0]
        return min(most, look_after_seconds(distances, self._growth), *ahead)

    # What to do

    def _step(self, now: float, returning_bytes: int) -> bool:
        """Decides on figures of this moment, and carries it out; whether somebody was killed."""
        began = time.monotonic()
        out = self._departures.no_candidates()
        look, snapshot = self._figures.snapshot(now, out, returning_bytes)
        before = self._state
        after, decision = decide(before, snapshot, self._thresholds, self._settings)
        self._state, self._decided_at = after, now
        self._met = marks_met(self._marks, look, after.unresolved)
        if any(threshold.hard for threshold in self._met):
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
        member = self._members[victim.pod.metadata.uid]
        step = self._with_parts(step, victim, member)
        sent_at = self._evict(step, member, now)
        self._met = ()  # the next look decides anew, with what is then on its way back
        self._reports.stepped(step, after, Timing(began, sent_at))
        return True

    def _with_parts(self, step: Step, victim: Eviction, member: Member) -> Step:
        """The step with the victim's own parts looked at, too (E14)."""
        pods = list(step.snapshot.pods)
        place = next(place for place, seen in enumerate(pods) if seen.pod is victim.pod)
        pods[place] = self._figures.with_parts(pods[place], member)
        if victim.shortage is not None:
            reason = victim.shortage._replace(parts=usage_by_part(pods[place], Resource.MEMORY))
            victim = victim._replace(shortage=reason, message=shortage_message(reason))
        snapshot: Snapshot = step.snapshot._replace(pods=tuple(pods))
        decision: Decision = step.decision._replace(victim=victim)
        return step._replace(snapshot=snapshot, decision=decision)

    def _evict(self, step: Step, member: Member, now: float) -> float | None:
        """When the kill was sent; None if the pod was asked to end."""
        eviction = step.decision.victim
        assert eviction is not None
        at = self._clock()
        if eviction.grace_period_seconds > 0:
            self.evicting[member.uid] = Evicting(member.uid, eviction, at)
            self._reports.evicting(self.evicting[member.uid])
            self._departures.asked(member.uid, now, eviction.grace_period_seconds)
            return None
        if self._intents is not None:
            self._intents.write(member.uid, {"message": eviction.message, "at": at})
        dying = Dying(pid for _, directory in member.containers for pid in pids_of(directory))
        # To be found by the loop before it looks at the pod's end. It is woken later: it would be in the way now.
        evicting = self.evicting[member.uid] = Evicting(member.uid, eviction, at)
        try:
            self._driver.send_kill(member.path)
        except CgroupError as error:
            self._reports.noted(str(error))
        sent_at = time.monotonic()
        self._reports.evicting(evicting)
        self._reaper.release(dying)
        self._departures.killed(member, self._roster.version, sent_at)
        self._throttle(member.uid)
        return sent_at
