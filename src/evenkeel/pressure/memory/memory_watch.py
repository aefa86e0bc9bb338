"""The memory watch: samples memory, decides, and kills. It runs in a process of its own (`pressure.watch.process`).

The watch takes a sample when the kernel wakes it. Otherwise it takes one at the earliest time at which the headroom
could be used up (`policy.eviction.headroom`). When a threshold is crossed, the watch reads every pod, decides
(`policy.eviction.decide`), writes its intent, and kills the victim. The agent does the rest: status, volumes and
cgroups. Another pod is evicted only if the memory of the first is not enough (E2). While that memory is being freed,
other mitigations keep the kernel's OOM killer from acting (`mitigation`).
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import Settings, State, decide, of_thresholds, victim
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
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.evictor import Evictor
from evenkeel.pressure.memory.freezer import Holder
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_sink import MemoryWatchSink, Stages, Timing
from evenkeel.pressure.memory.mitigation import Mitigation
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.pod_usages import Rehearsals
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    byte_thresholds,
    left_without_pending,
    levels_crossed,
    nearest_threshold,
)
from evenkeel.pressure.targets import WatchTargets

_SOFT_SECONDS = 1.0  # the largest delay in noticing that a soft threshold is crossed
_AGAIN_SECONDS = 0.1  # between two decisions on a hard threshold if no pod may be evicted
_PENDING_SECONDS = 0.001  # between two samples while memory is being freed
_RECLAIMING_SECONDS = 0.002  # between two samples while memory is being reclaimed
# After the kernel reported a crossing. Usage includes cache that can be dropped, so the real crossing may come soon.
_CROSSING_SECONDS = 0.02
# Very close to a threshold the kernel reports no crossing, and the headroom may be used up before a pause is over. So
# the pauses between samples are very short: for this long, and at most once in this interval. It is bounded because
# this process has priority over others. Without any pause, a pod on the same processor would not come to its turn.
_SHORT_PAUSE_SECONDS = 0.0001
_AT_ONCE_SECONDS = 0.004
_AT_ONCE_AGAIN_SECONDS = 0.1


class WatchSettings(NamedTuple):
    """The agent's settings for memory pressure."""

    thresholds: tuple[Threshold, ...] = ()
    settings: Settings = Settings()
    cpus: int = 1


class MemoryWatch:
    """`turn` is called by the loop of the process, or by a test that takes the turns itself. `is_freezing_victims`: see
    `evictor`."""

    def __init__(
        self,
        given: WatchSettings,
        state: State,
        triggers: KernelTriggers,
        intents: Intents,
        reports: MemoryWatchSink,
        guard: Holder,
        clock: Callable[[], float] = time.time,
        *,
        is_freezing_victims: bool = False,
    ) -> None:
        self._thresholds = given.thresholds
        self._settings = given.settings
        self.state = of_thresholds(state, given.thresholds)
        self._cpus = given.cpus
        self._growth = fastest_growth(given.cpus)
        self._reports = reports
        self._triggers = triggers
        self._sampler = MemorySampler(given.settings.profile, self._growth)
        self._pending = PendingMemory(given.settings.profile, reports.back)
        self._targets = WatchTargets()
        self._levels: tuple[ByteThreshold, ...] = ()
        self._is_notified = False  # the kernel reports crossings in the pods' cgroup
        self._met: tuple[Threshold, ...] = ()
        self._traits = TraitCache()  # traits of the targets
        self._decided_at = 0.0
        self._left_then = 0  # bytes of the short resource at the last decision
        self._mitigation = Mitigation(self._sampler, self._pending, reports, guard)
        self._evictor = Evictor(
            self._sampler,
            self._pending,
            self._mitigation,
            intents,
            clock,
            is_freezing_victims=is_freezing_victims,
        )
        self._crossing_until = 0.0
        self._at_once_from = 0.0
        self._rehearsals = Rehearsals(self._growth)
        self._evictor.start()
        self._mitigation.start()

    def close(self) -> None:
        """Releases all pods."""
        self._mitigation.end(time.monotonic())
        self._mitigation.stop()
        self._evictor.stop()
        self._pending.close()
        self._sampler.close()

    @property
    def throttled(self) -> dict[str, int]:
        """By UID: the pods that are throttled now, with the limit in bytes."""
        return self._mitigation.throttled

    @property
    def evicted(self) -> dict[str, float]:
        """By UID: the pods that this watch has evicted, and the seconds that they have to end. A killed pod has 0."""
        return self._pending.seconds_to_end(time.monotonic())

    def follow(self, targets: WatchTargets, evicted: Mapping[str, float] = MappingProxyType({})) -> None:
        """Sets new targets. `evicted` are pods that a former watch has evicted, with the seconds that they have to end:
        they are no candidates, and their memory counts as available for a while."""
        before, self._targets = self._targets, targets
        self._sampler.follow(targets)
        self._pending.follow({target.uid for target in targets.pods})
        now = time.monotonic()
        for target in targets.pods:
            if target.uid in evicted:
                self._pending.evicted(target, targets.version, now, evicted[target.uid])
        self._evictor.follow(targets)
        if (targets.directory, targets.limit_bytes) != (before.directory, before.limit_bytes):
            self._levels = ()
        self._mitigation.follow(targets, self._levels)
        # Computes the traits of new pods now: under pressure there is no time.
        self._traits.keep_only(target.pod for target in targets.pods)
        self._rehearse(now)

    def count_queues(self, queues: Mapping[str, int]) -> None:
        """By UID: what pods have in queues of sockets, and no cgroup has. Of a killed pod nothing new is believed: its
        queues count as pending until they are free."""
        killed = self._pending.killed_uids()
        current = {uid: held for uid, held in queues.items() if uid not in killed}
        self._set_queues(current | {uid: held for uid, held in self._sampler.queues.items() if uid in killed})

    def _set_queues(self, queues: Mapping[str, int]) -> None:
        before = self._sampler.queue_bytes
        self._sampler.count_queues(queues)
        if self._sampler.queue_bytes != before:
            self._levels = ()  # the kernel has to report a crossing sooner, or later

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are empty."""
        self._pending.emptied(uid)

    def turn(self) -> float:
        """Takes a sample, acts on it, and returns the seconds until the next turn."""
        now = time.monotonic()
        if self._triggers.take_crossing():
            self._crossing_until = now + _CROSSING_SECONDS
        self._evictor.thaw(now)
        self._evictor.kill_overdue(now)
        sample = self._sampled(now)
        self._mitigation.sampled(sample, now)
        if not self._levels:
            self._set_levels(sample)
        if self._triggers.take_oom():
            self._record_kernel_kill(now, sample)
        met = levels_crossed(self._levels, sample, self.state.unresolved)
        if not met:
            self._mitigation.not_short()
        elif _is_hard(met) and self._mitigation.is_reclaiming(*self._left(met, sample), sample, now):
            return _RECLAIMING_SECONDS
        if self._is_due(met, sample, now) and self._step(now, sample.pending_bytes):
            return 0.0
        self._mitigation.freeze(sample, now)
        self._mitigation.throttle(sample, now)
        if not met:
            lefts = [left - level.due_bytes for left, level in left_without_pending(self._levels, sample)]
            if self._rehearsals.is_due(lefts, now):
                self._rehearse(now)
            self._evictor.stand_by(now, is_near=self._rehearsals.is_near)
        return self._wait_seconds(sample, met, now)

    def _rehearse(self, now: float) -> None:
        """Finds the pod that would be evicted now, and prepares its eviction. When the threshold is crossed, only the
        pods that may have become the first since are read, and nothing is done for the first time."""
        self._rehearsals.done(now)
        sample, snapshot = self._sampler.snapshot(now, self._pending.killed_uids())
        # It decides nothing, because memory is not short, but loads the processor's caches.
        decide(self.state, snapshot, self._thresholds, self._settings, self._traits)
        signal, threshold = nearest_threshold(self._levels, sample)
        if (first := victim(signal, threshold, snapshot, self._settings, self._traits)) is not None:
            self._evictor.prepare(first)

    def _sampled(self, now: float) -> MemorySample:
        """Takes a sample, and counts memory that is still being freed as available. Memory in volumes is an exception,
        because a volume takes a while to empty. It does not count if almost no memory is left and no pod can be frozen:
        the kernel's OOM killer would not wait for it."""
        pending = self._pending.pending_bytes(now)
        if self._sampler.queues:
            self._set_queues(self._pending.not_freed(self._sampler.queues))
        sample = self._sampler.sample(now, pending)
        in_volumes = self._pending.in_volumes_bytes
        if in_volumes and not self._mitigation.can_freeze(now) and self._mitigation.is_tight(sample):
            return self._sampler.sample(now, pending - in_volumes)
        return sample

    def _set_levels(self, sample: MemorySample) -> None:
        self._levels = byte_thresholds(self._thresholds, sample)
        limit = self._usage_limit
        of_pods = [
            limit - level.due_bytes
            for level in self._levels
            if level.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE and level.due_bytes < limit
        ]
        self._is_notified = self._triggers.follow(self._targets, of_pods, self._rehearsals.marks(of_pods))
        self._mitigation.follow(self._targets, self._levels)

    @property
    def _usage_limit(self) -> int:
        """The limit of what the pods' cgroup may use: beside it the pods have queues of sockets."""
        return self._targets.limit_bytes - self._sampler.queue_bytes

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
            due = min(self.state.first_crossed.get(one, now) + one.grace_period_seconds for one in met)
            return since >= _SOFT_SECONDS or (now >= due > self._decided_at)
        if self.state.first_crossed and not self._pending.is_any_killed:
            return True  # the shortage is over, and this has to be recorded
        ends = [at + self._settings.pressure_transition_period_seconds for at in self._seen_at()]
        return bool(ends) and now >= min(ends)

    def _seen_at(self) -> list[float]:
        return [self.state.pressure_seen[one] for one in self.state.conditions]

    def _left(self, met: tuple[Threshold, ...], sample: MemorySample) -> tuple[int, int]:
        """Returns the bytes left of the scarcest resource, and the bytes that its threshold requires."""
        return min(
            ((level.available(sample) or 0), level.due_bytes)
            for level in self._levels
            if level.threshold in met and level.threshold.hard
        )

    def _wait_seconds(self, sample: MemorySample, met: tuple[Threshold, ...], now: float) -> float:
        is_memory_coming = self._pending.is_any_killed and sample.pending_bytes > 0
        if self._evictor.is_any_frozen or self._mitigation.is_freezing or is_memory_coming:
            return _PENDING_SECONDS
        distances = []
        most = self._rehearsals.pause_seconds or MOST_SECONDS
        for level in self._levels:
            available = level.available(sample)
            if available is None:
                continue
            if not level.threshold.hard:
                most = min(most, _SOFT_SECONDS)
                continue
            left = available - level.due_bytes
            is_notified = (
                self._is_notified
                and sample.pods is not None
                and level.threshold.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE
                and will_be_notified(sample.root.usage_bytes, self._usage_limit - level.due_bytes, self._cpus)
            )
            reserve = 0 if now < self._crossing_until else level.due_bytes
            distances.append(Distance(left, reserve, is_notified))
        ends = [at + self._settings.pressure_transition_period_seconds - now for at in self._seen_at()]
        ends += [
            self.state.first_crossed[one] + one.grace_period_seconds - now
            for one in met
            if not one.hard and one in self.state.first_crossed
        ]
        if self._evictor.overdue_at is not None:
            ends.append(self._evictor.overdue_at - now)
        ahead = [seconds for seconds in ends if seconds > 0]
        seconds = min(most, polling_interval_seconds(distances, self._growth), *ahead)
        is_close = seconds <= LEAST_SECONDS and now < self._crossing_until
        return _SHORT_PAUSE_SECONDS if is_close and self._may_look_at_once(now) else seconds

    def _may_look_at_once(self, now: float) -> bool:
        """Whether the next sample may follow almost at once. The time for that begins when it is first needed. If it
        began at a mark, it would be over before the threshold is reached."""
        if now >= self._at_once_from + _AT_ONCE_AGAIN_SECONDS:
            self._at_once_from = now
        return now < self._at_once_from + _AT_ONCE_SECONDS

    # Acting

    def _step(self, now: float, pending_bytes: int) -> bool:
        """Decides on current figures, and carries out the decision. Returns whether a pod was evicted."""
        began = time.monotonic()
        sample, snapshot = self._sampler.snapshot(now, self._pending.killed_uids(), pending_bytes)
        read = time.monotonic()
        before = self.state
        after, decision = decide(before, snapshot, self._thresholds, self._settings, self._traits)
        stages = Stages(self._triggers.woken_at, began, read, time.monotonic())
        self.state, self._decided_at = after, now
        chosen = decision.victim
        is_urgent = decision.acting_on is not None and decision.acting_on.hard
        if chosen is not None and not is_urgent and self._pending.is_any_asked(now):
            chosen = None  # another pod was asked to end, and its grace period is not over
        step = Step(before, snapshot, self._thresholds, self._settings, decision)
        if chosen is None:
            self._met = levels_crossed(self._levels, sample, after.unresolved)
            if _is_hard(self._met):
                self._left_then = self._left(self._met, sample)[0]
            step = step._replace(is_done=decision.victim is None)
            if (decision.crossed, decision.conditions) != (tuple(before.first_crossed), before.conditions):
                self._reports.stepped(step, Timing(began), None)
            return False
        done = self._evictor.evict(
            step, chosen, now, is_agent_there=self._reports.is_heard, is_urgent=is_urgent
        )
        self._met = ()  # the next turn decides again, and counts the memory that is being freed by then
        stages = stages._replace(noted=done.noted_at, reported=self._triggers.reported_at)
        self._reports.stepped(done.step, Timing(began, done.sent_at, stages=stages), done.evicted)
        return True

    def _record_kernel_kill(self, now: float, sample: MemorySample) -> None:
        """The kernel's OOM killer acted. Reports our own decision for this moment beside the kernel's (E12)."""
        _, snapshot = self._sampler.snapshot(now, self._pending.killed_uids(), sample.pending_bytes)
        _, decision = decide(self.state, snapshot, self._thresholds, self._settings, self._traits)
        step = Step(self.state, snapshot, self._thresholds, self._settings, decision, is_done=False)
        self._reports.stepped(step, Timing(now, is_kernels=True), None)


def _is_hard(met: tuple[Threshold, ...]) -> bool:
    return any(threshold.hard for threshold in met)
