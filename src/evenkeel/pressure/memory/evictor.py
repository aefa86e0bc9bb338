"""Carries out an eviction for memory: writes the intent, kills the pod, and reports.

The order matters. The agent may be killed at any moment, so everything that must not be lost is written before the
kill. All other work comes after the kill, because the kill must not wait.
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
from evenkeel.pressure.protocol import PodTarget, WatchTargets


class Reaper:
    """Helps killed processes to free their memory. It has a thread of its own."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Dying | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self, dying: Dying) -> None:
        """Frees the memory of these killed processes. Closes `dying` when that is done."""
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
        sampler: MemorySampler,
        pending: PendingMemory,
        mitigation: Mitigation,
        intents: Intents,
        reports: MemoryWatchSink,
        unrecorded: UnrecordedEvictions,
        clock: Callable[[], float],
    ) -> None:
        self._unrecorded = unrecorded
        self._sampler = sampler
        self._pending = pending
        self._mitigation = mitigation
        self._intents = intents
        self._reports = reports
        self._clock = clock
        self._reaper = Reaper()
        self._targets = WatchTargets()
        self._target_of: dict[str, PodTarget] = {}

    def start(self) -> None:
        self._reaper.start()

    def stop(self) -> None:
        self._reaper.stop()

    def follow(self, targets: WatchTargets) -> None:
        self._targets = targets
        self._target_of = {target.uid: target for target in targets.pods}

    def evict(self, step: Step, victim: Eviction, driver: Driver, now: float) -> tuple[Step, float | None]:
        """Evicts the victim. Returns the step with the figures of the victim's containers (E14), and the time of the
        kill. The time is None if the pod was asked to end in its grace period."""
        target = self._target_of[victim.pod.metadata.uid]
        step, victim = self._with_parts(step, victim, target)
        if victim.grace_period_seconds > 0:
            self._ask(victim, target, driver, now)
            return step, None
        return step, self._kill(victim, target, driver)

    def _ask(self, victim: Eviction, target: PodTarget, driver: Driver, now: float) -> None:
        evicting = Evicting(target.uid, victim, self._clock())
        self._unrecorded.add(evicting)
        self._reports.evicting(evicting)
        self._pending.asked(target.uid, now, victim.grace_period_seconds)
        self._mitigation.evicted(driver, target.path, now)

    def _kill(self, victim: Eviction, target: PodTarget, driver: Driver) -> float:
        at = self._clock()
        self._intents.write(Intent(target.uid, victim.message, at))
        dying = Dying(_pids(target))
        # The loop must find this entry before it handles the end of the pod. The loop is woken later: now it would
        # delay the kill.
        evicting = Evicting(target.uid, victim, at)
        self._unrecorded.add(evicting)
        is_sent = dying.kill(_pids(target))
        sent_at = time.monotonic()
        try:
            driver.send_kill(target.path)  # also kills processes that were started in the meantime
        except CgroupError as error:
            self._reports.noted(str(error))
        if not is_sent:
            sent_at = time.monotonic()
        self._mitigation.evicted(driver, target.path, sent_at)
        self._reports.evicting(evicting)
        self._reaper.release(dying)
        self._pending.killed(target, self._targets.version, sent_at)
        return sent_at

    def _with_parts(self, step: Step, victim: Eviction, target: PodTarget) -> tuple[Step, Eviction]:
        pods = list(step.snapshot.pods)
        place = next(place for place, seen in enumerate(pods) if seen.pod is victim.pod)
        pods[place] = self._sampler.with_parts(pods[place], target)
        if victim.shortage is not None:
            reason = victim.shortage._replace(parts=usage_by_part(pods[place], Resource.MEMORY))
            victim = victim._replace(shortage=reason, message=shortage_message(reason))
        snapshot = step.snapshot._replace(pods=tuple(pods))
        decision = step.decision._replace(victim=victim)
        return step._replace(snapshot=snapshot, decision=decision), victim


def _pids(target: PodTarget) -> set[int]:
    return {pid for _, directory in target.containers for pid in pids_of(directory)}
