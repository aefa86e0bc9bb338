"""Mitigations of a memory shortage besides eviction: reclaim, freeze or throttle pods above their request.

Before a pod is evicted, the kernel reclaims the memory that it can. During an eviction, other pods are frozen if almost
no memory is left (`freezer`), and throttled if the eviction takes long. Pods within their request are not touched.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Version
from evenkeel.host.protection import run_soon
from evenkeel.policy.eviction.headroom import Trend, is_reclaim_enough
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.memory.freezer import Freezer, Freezing, is_tight_at
from evenkeel.pressure.memory.memory_reports import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    is_short_without_pending,
)
from evenkeel.pressure.protocol import WatchTargets

log = logging.getLogger(__name__)

_RECLAIM, _EMPTY = "memory.reclaim", "memory.force_empty"


class Reclaimer:
    """Makes the kernel reclaim memory of cgroups. This takes long, so it has a thread of its own. `reclaim` is for one
    other thread. Paths are planned cgroup paths."""

    def __init__(self, make_driver: Callable[[], Driver]) -> None:
        self._make_driver = make_driver
        self._work: queue.SimpleQueue[tuple[str, Mapping[str, int]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-reclaim", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def reclaim(self, version: Version, bytes_of: Mapping[str, int]) -> None:
        """Reclaims up to this many bytes from each cgroup. No process is killed."""
        self._work.put((_RECLAIM if version == Version.V2 else _EMPTY, bytes_of))

    def _run(self) -> None:
        run_soon()
        driver = self._make_driver()
        try:
            while (work := self._work.get()) is not None:
                file, bytes_of = work
                for path, amount in bytes_of.items():
                    self._write(driver, path, file, amount)
        finally:
            driver.close()

    def _write(self, driver: Driver, path: str, file: str, amount: int) -> None:
        value = "0" if file == _EMPTY else str(amount)
        try:
            driver.write(path, file, value)
        except CgroupError as error:
            # The cgroup had less memory to reclaim than requested, or it is gone. Both are fine.
            if error.reason not in ("EAGAIN", "ENOENT", "ENODEV", "EBUSY"):
                log.warning("%s", error)


_RECLAIM_SECONDS = 1.0  # without progress, before a pod has to be evicted
_MOST_RECLAIM_SECONDS = 3.0
_RECLAIM_AGAIN_SECONDS = 5.0  # before the next attempt, after one did not help
# The pause between the eviction of a pod and the throttling of others: most evicted pods have ended by then. Also the
# pause before pods that grew in the meantime are throttled.
_THROTTLE_SECONDS = 0.05


class Mitigation:
    """For the thread of the memory watch; `start` and `stop` are for the agent's loop."""

    def __init__(
        self,
        sampler: MemorySampler,
        pending: PendingMemory,
        make_driver: Callable[[], Driver],
        reports: MemoryWatchSink,
        guard: GuardClient | None = None,
    ) -> None:
        self._sampler = sampler
        self._pending = pending
        self._reports = reports
        self._targets = WatchTargets()
        self._levels: tuple[ByteThreshold, ...] = ()
        self._reclaimer = Reclaimer(make_driver)
        self._reclaiming_since: float | None = None
        self._no_reclaim_before = 0.0
        self._trend = Trend()  # of the memory that the pods use and cannot give back at once
        self._left_before = 0  # at the last sample
        self._progress_at = 0.0  # when that last increased
        self._freezer = Freezer(guard)
        self._freezing = Freezing(self._freezer, sampler, pending, reports)
        self._throttled: dict[str, int] = {}  # by UID: the limit in bytes
        self._no_throttle_before = 0.0

    def start(self) -> None:
        self._reclaimer.start()

    def stop(self) -> None:
        self._reclaimer.stop()

    def end(self, driver: Driver, now: float) -> None:
        """Thaws all pods, so that none stays frozen."""
        self._freezer.thaw_all(driver, now)

    def follow(self, targets: WatchTargets, levels: tuple[ByteThreshold, ...]) -> None:
        self._targets, self._levels = targets, levels

    def evicted(self, driver: Driver, path: str, now: float) -> None:
        """Thaws this pod, so that it can end."""
        self._no_throttle_before = now + _THROTTLE_SECONDS
        self._freezer.thaw_one(driver, path)

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
            if now < self._no_reclaim_before or not self._reclaim(due - left, now):
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

    def _reclaim(self, short_bytes: int, now: float) -> bool:
        self._sampler.snapshot(now)
        wanted = {
            target.path: reading.reclaimable_bytes
            for target in self._targets.pods
            if (reading := self._sampler.readings.get(target.uid)) is not None
            and reading.usage_bytes > target.request_bytes
            and reading.reclaimable_bytes
        }
        if wanted:
            self._reclaimer.reclaim(self._targets.version, wanted)
            self._reports.reclaiming(sum(wanted.values()), short_bytes)
        return bool(wanted)

    # Freezing

    @property
    def is_freezing(self) -> bool:
        return self._freezer.is_freezing

    def can_freeze(self, now: float) -> bool:
        return self._freezer.can_freeze(now)

    def is_tight(self, sample: MemorySample) -> bool:
        return is_tight_at(self._levels, sample)

    def freeze(self, driver: Driver, sample: MemorySample, now: float) -> None:
        """Freezes or thaws pods, as the sample requires."""
        self._freezing.update(driver, self._levels, sample, now)

    # Throttling

    def throttle(self, sample: MemorySample, now: float) -> None:
        """Throttles pods while a pod is being evicted for memory and memory is still short. Cgroup v2 only: there the
        kernel slows down a pod that exceeds its memory.high."""
        is_any = self._pending.is_any(now)
        if self._targets.version != Version.V2 or not (self._throttled or is_any):
            return
        if not is_any or not is_short_without_pending(self._levels, sample):
            if self._throttled:
                self._throttled = {}
                self._reports.throttling({})
            return
        if now < self._no_throttle_before:
            return
        self._no_throttle_before = now + _THROTTLE_SECONDS
        reserve = min(level.due_bytes for level in self._levels)
        grown = self._sampler.above_request(reserve, self._pending.uids())
        more = {target.uid: usage for target, usage in grown if target.uid not in self._throttled}
        if more:
            self._throttled = self._throttled | more
            self._reports.throttling(self._throttled)
