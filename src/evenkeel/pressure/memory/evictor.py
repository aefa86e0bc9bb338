"""Carries a decision on memory out: what is noted before the kill, the kill, and what is told after it.

The order is the point. Nothing comes before the kill that could come after it, and what must not be lost if the agent
is killed in between comes before.
"""

import queue
import threading
import time
from collections.abc import Callable

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.host.dying import Dying, pids_of
from evenkeel.host.protection import name_thread, run_before_others
from evenkeel.policy.eviction.decide import Eviction
from evenkeel.policy.eviction.message import shortage_message
from evenkeel.policy.eviction.usage import Resource, usage_by_part
from evenkeel.pressure.decision_records import Step
from evenkeel.pressure.intents import Intent, Intents
from evenkeel.pressure.memory.memory_reports import Evicting, MemoryWatchSink, UnrecordedEvictions
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import MemorySampler
from evenkeel.pressure.targets import PodTarget, WatchTargets


class Reaper:
    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Dying | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self, dying: Dying) -> None:
        """They were killed; `dying` is closed when their memory is back."""
        self._work.put(dying)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        name_thread("evenkeel-reaper")
        run_before_others()
        while (dying := self._work.get()) is not None:
            try:
                dying.hurry()
                dying.release()
            finally:
                dying.close()


class Evictor:
    """For the watch's thread; `start` and `stop` are for the agent's loop."""

    def __init__(
        self,
        figures: MemorySampler,
        departures: PendingMemory,
        relief: Mitigation,
        intents: Intents,
        reports: MemoryWatchSink,
        unrecorded: UnrecordedEvictions,
        clock: Callable[[], float],
    ) -> None:
        self._unrecorded = unrecorded
        self._figures = figures
        self._departures = departures
        self._relief = relief
        self._intents = intents
        self._reports = reports
        self._clock = clock
        self._reaper = Reaper()
        self._roster = WatchTargets()
        self._members: dict[str, PodTarget] = {}

    def start(self) -> None:
        self._reaper.start()

    def stop(self) -> None:
        self._reaper.stop()

    def follow(self, roster: WatchTargets) -> None:
        self._roster = roster
        self._members = {member.uid: member for member in roster.members}

    def evict(self, step: Step, victim: Eviction, driver: Driver, now: float) -> tuple[Step, float | None]:
        """The step with the victim's own parts looked at, too (E14), and when the kill was sent; None if the pod was
        asked to end."""
        member = self._members[victim.pod.metadata.uid]
        step, victim = self._with_parts(step, victim, member)
        if victim.grace_period_seconds > 0:
            self._ask(victim, member, driver, now)
            return step, None
        return step, self._kill(victim, member, driver)

    def _ask(self, victim: Eviction, member: PodTarget, driver: Driver, now: float) -> None:
        evicting = Evicting(member.uid, victim, self._clock())
        self._unrecorded.add(evicting)
        self._reports.evicting(evicting)
        self._departures.asked(member.uid, now, victim.grace_period_seconds)
        self._relief.goes(driver, member.path, now)

    def _kill(self, victim: Eviction, member: PodTarget, driver: Driver) -> float:
        at = self._clock()
        self._intents.write(Intent(member.uid, victim.message, at))
        dying = Dying(_pids(member))
        # To be found by the loop before it looks at the pod's end. It is woken later: it would be in the way now.
        evicting = Evicting(member.uid, victim, at)
        self._unrecorded.add(evicting)
        is_sent = dying.kill(_pids(member))
        sent_at = time.monotonic()
        try:
            driver.send_kill(member.path)  # whoever was started meanwhile, too
        except CgroupError as error:
            self._reports.noted(str(error))
        if not is_sent:
            sent_at = time.monotonic()
        self._relief.goes(driver, member.path, sent_at)
        self._reports.evicting(evicting)
        self._reaper.release(dying)
        self._departures.killed(member, self._roster.version, sent_at)
        return sent_at

    def _with_parts(self, step: Step, victim: Eviction, member: PodTarget) -> tuple[Step, Eviction]:
        pods = list(step.snapshot.pods)
        place = next(place for place, seen in enumerate(pods) if seen.pod is victim.pod)
        pods[place] = self._figures.with_parts(pods[place], member)
        if victim.shortage is not None:
            reason = victim.shortage._replace(parts=usage_by_part(pods[place], Resource.MEMORY))
            victim = victim._replace(shortage=reason, message=shortage_message(reason))
        snapshot = step.snapshot._replace(pods=tuple(pods))
        decision = step.decision._replace(victim=victim)
        return step._replace(snapshot=snapshot, decision=decision), victim


def _pids(member: PodTarget) -> set[int]:
    return {pid for _, directory in member.containers for pid in pids_of(directory)}
