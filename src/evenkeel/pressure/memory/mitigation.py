"""Mitigations of a memory shortage besides eviction: reclaim, freeze or throttle pods above their request.

Before a pod is evicted, the kernel reclaims the memory that it can. During an eviction, other pods are frozen if almost
no memory is left (`freezer`), and throttled if the eviction takes long. Pods within their request are not touched.

A pod is throttled for a while (A15; cgroup v2): its `memory.high` is set to its current usage, and the kernel slows it
down when it exceeds that. The planned value is written back when memory is free again, by the guard if the watch is
killed. The agent is informed, so that it does not take the setting for drift (`pressure.memory.memory_reports`).
"""

import queue
import threading
from collections.abc import Iterable

from evenkeel.cgroup.tree import Version
from evenkeel.host.protection import name_thread
from evenkeel.policy.eviction.headroom import Trend, is_reclaim_enough
from evenkeel.pressure.memory.cgroup_writes import FreezeFile, high_file, reclaim_write, write_file
from evenkeel.pressure.memory.freezer import Freezer, Freezing, Holder, Standby, is_tight_at
from evenkeel.pressure.memory.memory_sink import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    is_short_without_pending,
)
from evenkeel.pressure.targets import PodTarget, WatchTargets


class Reclaimer:
    """Makes the kernel reclaim memory of cgroups. This takes long, so it has a thread of its own."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Iterable[tuple[str, bytes]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-reclaim", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def reclaim(self, writes: Iterable[tuple[str, bytes]]) -> None:
        """Reclaims memory by these writes (`reclaim_write`). No process is killed."""
        self._work.put(writes)

    def _run(self) -> None:
        name_thread("evenkeel-reclaim")
        while (writes := self._work.get()) is not None:
            for file, value in writes:
                try:
                    write_file(file, value)
                except OSError:
                    continue  # the cgroup had less memory to reclaim than requested, or it is gone


_RECLAIM_SECONDS = 1.0  # without progress, before a pod has to be evicted
_MOST_RECLAIM_SECONDS = 3.0
_RECLAIM_AGAIN_SECONDS = 5.0  # before the next attempt, after one did not help


class Mitigation:
    def __init__(
        self, sampler: MemorySampler, pending: PendingMemory, reports: MemoryWatchSink, guard: Holder
    ) -> None:
        self._sampler = sampler
        self._pending = pending
        self._reports = reports
        self._targets = WatchTargets()
        self._levels: tuple[ByteThreshold, ...] = ()
        self._reclaimer = Reclaimer()
        self._reclaiming_since: float | None = None
        self._no_reclaim_before = 0.0
        self._trend = Trend()  # of the memory that the pods use and cannot give back at once
        self._left_before = 0  # at the last sample
        self._progress_at = 0.0  # when that last increased
        self._freezer = Freezer(guard)
        self._standby = Standby(guard)
        self._freezing = Freezing(self._freezer, sampler, pending, reports)
        self._throttling = Throttling(sampler, pending, reports, guard)

    def start(self) -> None:
        self._reclaimer.start()

    def stop(self) -> None:
        self._reclaimer.stop()

    def end(self, now: float) -> None:
        """Releases all pods, so that none stays frozen or throttled."""
        self._freezer.thaw_all(now)
        self._standby.thaw()
        self._throttling.release_all()

    def follow(self, targets: WatchTargets, levels: tuple[ByteThreshold, ...]) -> None:
        self._targets, self._levels = targets, levels
        self._standby.follow(targets)
        self._throttling.follow(targets)

    def prepare_victim(self, file: FreezeFile | None) -> None:
        """This pod may be killed next. None: no pod is prepared any more."""
        self._freezer.prepare_victim(file)

    def stand_by(self, now: float, *, is_near: bool) -> None:
        """A threshold may soon be crossed, and a victim frozen; or none is near."""
        self._standby.update(now, is_near=is_near)

    def freeze_victim(self, path: str, file: FreezeFile) -> None:
        """This pod is killed next."""
        self._freezer.freeze_victim(path, file)

    def thaw_victim(self, path: str) -> None:
        self._freezer.thaw_victim(path)

    def evicted(self, path: str, now: float) -> None:
        """Thaws this pod, so that it can end, unless it was frozen as a victim."""
        self._throttling.wait_from(now)
        self._freezer.thaw_one(path)

    @property
    def throttled(self) -> dict[str, int]:
        return self._throttling.throttled

    # Reclaiming

    def sampled(self, sample: MemorySample, now: float) -> None:
        self._trend.note(now, sample.root.usage_bytes - sample.root.droppable_bytes)

    def not_short(self) -> None:
        """No threshold is crossed, so nothing has to be reclaimed."""
        self._reclaiming_since = None

    def is_reclaiming(self, left: int, due: int, sample: MemorySample, now: float) -> bool:
        """Whether the kernel may soon reclaim the missing memory: files that are not written to disk yet, and its own
        caches. False if there is no time for it. Also false for a while after reclaiming did not help."""
        if self._pending.is_any_killed or left < due // 2:
            return False
        if not is_reclaim_enough(sample.root.reclaimable_bytes, due - left, self._trend.bytes_per_second):
            return False
        if self._reclaiming_since is None:
            if now < self._no_reclaim_before or not self._reclaim(due - left):
                return False
            self._reclaiming_since = self._progress_at = now
            self._left_before = left
        if left > self._left_before:
            self._progress_at = now
        self._left_before = left
        has_progress = now - self._progress_at < _RECLAIM_SECONDS
        if has_progress and now - self._reclaiming_since < _MOST_RECLAIM_SECONDS:
            return True
        self._reclaiming_since = None
        self._no_reclaim_before = now + _RECLAIM_AGAIN_SECONDS
        return False

    def _reclaim(self, short_bytes: int) -> bool:
        wanted = [
            (target, reading.reclaimable_bytes)
            for target in self._targets.pods
            if (reading := self._sampler.pod(target)) is not None
            and reading.usage_bytes > target.request_bytes
            and reading.reclaimable_bytes
        ]
        if wanted:
            version = self._targets.version
            self._reclaimer.reclaim([reclaim_write(version, target, amount) for target, amount in wanted])
            self._reports.reclaiming(sum(amount for _, amount in wanted), short_bytes)
        return bool(wanted)

    # Freezing

    @property
    def is_freezing(self) -> bool:
        return self._freezer.is_freezing

    def can_freeze(self, now: float) -> bool:
        return self._freezer.can_freeze(now)

    def is_tight(self, sample: MemorySample) -> bool:
        return is_tight_at(self._levels, sample)

    def freeze(self, sample: MemorySample, now: float) -> None:
        """Freezes or thaws pods, as the sample requires."""
        self._freezing.update(self._targets, self._levels, sample, now)

    # Throttling

    def throttle(self, sample: MemorySample, now: float) -> None:
        """Throttles pods, or releases them, as the sample requires."""
        self._throttling.update(self._levels, sample, now)


# The pause between the eviction of a pod and the throttling of others: most evicted pods have ended by then. Also the
# pause before pods that grew in the meantime are throttled.
_PAUSE_SECONDS = 0.05


class Throttling:
    def __init__(
        self, sampler: MemorySampler, pending: PendingMemory, reports: MemoryWatchSink, guard: Holder
    ) -> None:
        self._sampler = sampler
        self._pending = pending
        self._reports = reports
        self._guard = guard
        self._target_of: dict[str, PodTarget] = {}
        self._version = Version.V2
        self._not_before = 0.0
        self.throttled: dict[str, int] = {}  # by UID: the limit in bytes

    def follow(self, targets: WatchTargets) -> None:
        """A throttled pod that is no target any more is released: its planned value may not be known later."""
        current = {target.uid: target for target in targets.pods}
        gone = {uid for uid in self.throttled if uid not in current}
        for uid in gone:
            self._release(self._target_of[uid])
        self._version, self._target_of = targets.version, current
        if gone:
            self.throttled = {uid: most for uid, most in self.throttled.items() if uid not in gone}
            self._reports.throttling(self.throttled)

    def wait_from(self, now: float) -> None:
        """A pod was evicted just now: no pod is throttled for a moment."""
        self._not_before = now + _PAUSE_SECONDS

    def update(self, levels: tuple[ByteThreshold, ...], sample: MemorySample, now: float) -> None:
        """Throttles pods while a pod is being evicted for memory and memory is still short."""
        is_any = self._pending.is_any(now)
        if self._version != Version.V2 or not (self.throttled or is_any):
            return
        if not is_any or not is_short_without_pending(levels, sample):
            self.release_all()
            return
        if now < self._not_before:
            return
        self._not_before = now + _PAUSE_SECONDS
        reserve = min(level.due_bytes for level in levels)
        grown = self._sampler.above_request(reserve, self._pending.uids())
        more = [(target, usage) for target, usage in grown if target.uid not in self.throttled]
        if more:
            # before the write: this process may be killed at any moment
            self._guard.hold({high_file(target): target.high for target, _ in more})
            for target, usage in more:
                _write(target, str(usage))
            self.throttled = self.throttled | {target.uid: usage for target, usage in more}
            self._reports.throttling(self.throttled)

    def release_all(self) -> None:
        if self.throttled:
            for uid in self.throttled:
                self._release(self._target_of[uid])
            self.throttled = {}
            self._reports.throttling({})

    def _release(self, target: PodTarget) -> None:
        _write(target, target.high)
        self._guard.free((high_file(target),))


def _write(target: PodTarget, value: str) -> None:
    try:
        write_file(high_file(target), value.encode())
    except OSError:
        pass  # the cgroup is gone
