"""Carries out an eviction for memory: writes the intent, and kills the pod.

The order matters. The watch and the agent may be killed at any moment, so everything that must not be lost is written
before the kill. All other work comes after the kill, because the kill must not wait.

A killed process frees its memory itself, when the scheduler runs it. The reaper is faster, but it comes too late if the
process is running and so begins to end at once. Such a process can run with real-time priority, but not where a kernel
has real-time budgets (cgroup v1). There the pod is frozen before it is killed. A process that is frozen by cgroup v1
does not begin to end, and the reaper frees its memory meanwhile. On cgroup v2 it would end nevertheless."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from evenkeel.api.scalars import Amount
from evenkeel.cgroup.tree import Version
from evenkeel.host.dying import Dying, pids_of
from evenkeel.host.protection import name_thread, run_before_others
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import Eviction
from evenkeel.policy.eviction.snapshot import ContainerFigures, PodFigures, PodSnapshot
from evenkeel.policy.eviction.usage import Resource, usage_by_part
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.intents import Intent, Intents
from evenkeel.pressure.memory.cgroup_writes import (
    FreezeFile,
    ask_to_end,
    freeze_file,
    is_populated,
    send_kill,
)
from evenkeel.pressure.memory.memory_sink import Evicted
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import MemorySampler, with_parts
from evenkeel.pressure.targets import PodTarget, WatchTargets

# The longest time for which a killed pod is frozen. On a machine with idle processors, many processes free their memory
# faster by themselves.
_FROZEN_SECONDS = 0.1


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


class Carried(NamedTuple):
    """How an eviction was carried out. `sent_at` is None if the pod is only asked to end, by the agent."""

    step: Step
    evicted: Evicted
    sent_at: float | None
    noted_at: float = 0.0  # when the intent was written, by CLOCK_MONOTONIC


class Evictor:
    """`is_freezing_victims`: a pod is frozen before it is killed, on cgroup v1."""

    def __init__(
        self,
        sampler: MemorySampler,
        pending: PendingMemory,
        mitigation: Mitigation,
        intents: Intents,
        clock: Callable[[], float],
        *,
        is_freezing_victims: bool,
    ) -> None:
        self._sampler = sampler
        self._pending = pending
        self._mitigation = mitigation
        self._intents = intents
        self._clock = clock
        self._is_freezing_victims = is_freezing_victims
        # Victims, by path, and when they are thawed at the latest.
        self._frozen: dict[str, tuple[Dying, float]] = {}
        self._reaper = Reaper()
        self._targets = WatchTargets()
        self._target_of: dict[str, PodTarget] = {}
        # The UID of the pod that would be evicted, its processes.
        self._prepared: tuple[str, Dying] | None = None
        # Pods that this watch itself has asked to end, by UID: when they are killed, by CLOCK_MONOTONIC.
        self._asked: dict[str, float] = {}

    def start(self) -> None:
        self._reaper.start()

    def stop(self) -> None:
        self._thaw(list(self._frozen))
        self._mitigation.prepare_victim(None)
        self._reaper.stop()
        self._forget_prepared()

    @property
    def is_any_frozen(self) -> bool:
        """Whether a victim is frozen. Then `thaw` has to be called soon."""
        return bool(self._frozen)

    def thaw(self, now: float) -> None:
        """Thaws the victims whose memory is free, so that they end."""
        self._thaw([path for path, (dying, by) in self._frozen.items() if dying.is_closed or by <= now])

    def _thaw(self, paths: Iterable[str]) -> None:
        for path in paths:
            del self._frozen[path]
            self._mitigation.thaw_victim(path)

    def follow(self, targets: WatchTargets) -> None:
        self._targets = targets
        self._target_of = {target.uid: target for target in targets.pods}
        self._asked = {uid: by for uid, by in self._asked.items() if uid in self._target_of}
        self._forget_prepared()

    def stand_by(self, now: float, *, is_near: bool) -> None:
        """Call this in each turn in which no threshold is crossed. `is_near`: one may be crossed soon."""
        if self._is_freezing_victims:
            self._mitigation.stand_by(now, is_near=is_near)

    def prepare(self, first: Eviction) -> None:
        """This pod would be evicted now: opens the files that its eviction needs, and does all work that does not touch
        the pod. So the eviction does nothing for the first time."""
        target = self._target_of[first.pod.metadata.uid]
        self._forget_prepared()
        self._prepared = (target.uid, Dying(partial(_pids, target)))
        self._mitigation.prepare_victim(self._freeze_file(target))
        self._sampler.prepare(target)
        rehearsed = self._with_parts(first, self._sampler.parts(target))
        self._intents.rehearse(Intent(target.uid, rehearsed.message, self._clock()))

    def _with_parts(self, victim: Eviction, parts: tuple[ContainerFigures, ...]) -> Eviction:
        """The eviction, with the figures of the pod's containers in its message."""
        if victim.shortage is None:
            return victim
        queues = Amount(self._sampler.queues.get(victim.pod.metadata.uid, 0))
        stats = PodFigures(containers=parts, socket_queue_bytes=queues)
        figures = usage_by_part(PodSnapshot(victim.pod, stats), Resource.MEMORY)
        return victim._replace(shortage=victim.shortage._replace(parts=figures))

    def _forget_prepared(self) -> None:
        if self._prepared is not None:
            self._prepared[1].close()
            self._prepared = None

    def evict(
        self, step: Step, victim: Eviction, now: float, *, is_agent_there: bool, is_urgent: bool
    ) -> Carried:
        """Evicts the victim. The agent asks a pod with a grace period to end. Without an agent the watch asks it, or
        kills it at once where that is urgent. The step is returned with the figures of the victim's containers
        (E14)."""
        target = self._target_of[victim.pod.metadata.uid]
        parts = self._sampler.parts(target)
        victim = self._with_parts(victim, parts)
        at = self._clock()
        grace = victim.grace_period_seconds
        if grace > 0 and (is_agent_there or not is_urgent):
            self._pending.asked(target.uid, now, grace)
            self._mitigation.evicted(target.path, now)
            if not is_agent_there:
                self._intents.write(Intent(target.uid, victim.message, at, grace))
                self._asked[target.uid] = now + grace
                ask_to_end(target)
            return Carried(_completed(step, victim, parts), Evicted(at, grace), None)
        sent_at, noted_at = self._kill(victim, target, at)
        self._sampler.close_parts()
        return Carried(_completed(step, victim, parts), Evicted(at, 0), sent_at, noted_at)

    def _kill(self, victim: Eviction, target: PodTarget, at: float) -> tuple[float, float]:
        """Returns when the kill was sent, and when the intent was written before it."""
        # The agent reads the intent when it hears of the end of the pod, which may be before our report.
        self._intents.write(Intent(target.uid, victim.message, at))
        noted_at = time.monotonic()
        return self._send_kill(target), noted_at

    @property
    def overdue_at(self) -> float | None:
        """When the next pod is killed that was asked to end and has not ended."""
        return min(self._asked.values(), default=None)

    def kill_overdue(self, now: float) -> None:
        for uid in [uid for uid, by in self._asked.items() if by <= now]:
            del self._asked[uid]
            if is_populated(self._target_of[uid].directory):
                self._send_kill(self._target_of[uid])

    def _send_kill(self, target: PodTarget) -> float:
        """Returns when the kill was sent."""
        dying = self._dying(target)
        self._freeze(target, dying)
        dying.kill()
        sent_at = time.monotonic()
        is_sent = dying.are_all()
        self._reaper.release(dying)
        send_kill(self._targets, target)  # also kills processes that were started in the meantime
        if not is_sent:
            sent_at = time.monotonic()
        self._mitigation.evicted(target.path, sent_at)
        queues = self._sampler.queues.get(target.uid, 0)
        self._pending.killed(target, self._targets.version, sent_at, queues)
        return sent_at

    def _freeze_file(self, target: PodTarget) -> FreezeFile | None:
        """None if the pod is not frozen before it is killed."""
        if not self._is_freezing_victims or self._targets.version != Version.V1:
            return None
        return freeze_file(self._targets, target)

    def _freeze(self, target: PodTarget, dying: Dying) -> None:
        file = self._freeze_file(target)
        if file is not None:
            self._frozen[target.path] = (dying, time.monotonic() + _FROZEN_SECONDS)
            self._mitigation.freeze_victim(target.path, file)

    def _dying(self, target: PodTarget) -> Dying:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == target.uid:
            return prepared[1]
        if prepared is not None:
            prepared[1].close()
        return Dying(partial(_pids, target))


def _completed(step: Step, victim: Eviction, parts: tuple[ContainerFigures, ...]) -> Step:
    """The step as it is recorded: the same figures, with those of the victim's containers in them."""
    pods = tuple([with_parts(seen, parts) if seen.pod is victim.pod else seen for seen in step.snapshot.pods])
    return step._replace(
        snapshot=step.snapshot._replace(pods=pods), decision=step.decision._replace(victim=victim)
    )


def _pids(target: PodTarget) -> set[int]:
    return {pid for _, directory in target.containers for pid in pids_of(directory)}
