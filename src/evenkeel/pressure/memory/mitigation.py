"""What helps beside somebody's going, and who is asked for it: pods above their request, never one within it.

Memory that the kernel can take back is taken back before anybody goes; while somebody does, the others stand still
where next to nothing is left, and are throttled if it takes long.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Version
from evenkeel.host.protection import run_soon
from evenkeel.policy.eviction.headroom import Trend, is_loose, is_reclaim_enough, is_tight, must_be_held
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.memory_reports import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    is_really_short,
    really_left,
)
from evenkeel.pressure.targets import PodTarget, WatchTargets

log = logging.getLogger(__name__)

_RECLAIM, _EMPTY = "memory.reclaim", "memory.force_empty"


class Reclaimer:
    """For one thread; the work is done by another. Paths are those of cgroups, as planned."""

    def __init__(self, make_driver: Callable[[], Driver]) -> None:
        self._make_driver = make_driver
        self._work: queue.SimpleQueue[tuple[str, Mapping[str, int]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-hands", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def reclaim(self, version: Version, bytes_of: Mapping[str, int]) -> None:
        """Takes up to that much from each: never by ending a process."""
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
            # Less was there to take than was asked for, or the cgroup is gone: both are fine.
            if error.reason not in ("EAGAIN", "ENOENT", "ENODEV", "EBUSY"):
                log.warning("%s", error)


_RECLAIM_SECONDS = 1.0  # without anything coming back, before somebody has to go
_MOST_RECLAIM_SECONDS = 3.0
_RECLAIM_AGAIN_SECONDS = 5.0  # after it did not help
# After somebody was told to go, before the others are throttled: most are gone by then. And before those are who have
# grown meanwhile.
_THROTTLE_SECONDS = 0.05


class Mitigation:
    """Of the watch's thread, but for `start` and `stop`."""

    def __init__(
        self,
        figures: MemorySampler,
        departures: PendingMemory,
        make_driver: Callable[[], Driver],
        reports: MemoryWatchSink,
        guard: GuardClient | None = None,
    ) -> None:
        self._figures = figures
        self._departures = departures
        self._reports = reports
        self._roster = WatchTargets()
        self._marks: tuple[ByteThreshold, ...] = ()
        self._hands = Reclaimer(make_driver)
        self._reclaiming_since: float | None = None
        self._no_reclaim_before = 0.0
        self._trend = Trend()  # of what the pods use and could not give back at once
        self._left_before = 0  # at the last look
        self._came_at = 0.0  # when that had last become more
        self._brake = Freezer(guard)
        self._throttled: dict[str, int] = {}  # by UID, at so many bytes
        self._no_throttle_before = 0.0

    def start(self) -> None:
        self._hands.start()

    def stop(self) -> None:
        self._hands.stop()

    def end(self, driver: Driver, now: float) -> None:
        """Nobody is left standing still."""
        self._brake.release(driver, now)

    def follow(self, roster: WatchTargets, marks: tuple[ByteThreshold, ...]) -> None:
        self._roster, self._marks = roster, marks

    def goes(self, driver: Driver, path: str, now: float) -> None:
        """This one was told to go, and must be able to."""
        self._no_throttle_before = now + _THROTTLE_SECONDS
        self._brake.let_go(driver, path)

    # Taking back

    def looked(self, look: MemorySample, now: float) -> None:
        self._trend.note(now, look.root.usage_bytes - look.root.droppable_bytes)

    def enough(self) -> None:
        """Nothing is short, so nothing has to be taken back."""
        self._reclaiming_since = None

    def reclaims(self, left: int, due: int, look: MemorySample, now: float) -> bool:
        """Whether what is short may soon be there because the kernel is taking it back: files that are yet to be
        written, and its own caches. Not where there is no time for it, and not soon again if it did not help."""
        if self._departures.is_any_killed or left < due // 2:
            return False
        if not is_reclaim_enough(look.root.reclaimable_bytes, due - left, self._trend.bytes_per_second):
            return False
        if self._reclaiming_since is None:
            if now < self._no_reclaim_before or not self._reclaim(due - left, now):
                return False
            self._reclaiming_since = self._came_at = now
            self._left_before = left
        if left > self._left_before:
            self._came_at = now
        self._left_before = left
        is_coming = now - self._came_at < _RECLAIM_SECONDS
        if is_coming and now - self._reclaiming_since < _MOST_RECLAIM_SECONDS:
            return True
        self._reclaiming_since = None
        self._no_reclaim_before = now + _RECLAIM_AGAIN_SECONDS
        return False

    def _reclaim(self, short_bytes: int, now: float) -> bool:
        self._figures.snapshot(now)
        wanted = {
            member.path: reading.reclaimable_bytes
            for member in self._roster.members
            if (reading := self._figures.readings.get(member.uid)) is not None
            and reading.usage_bytes > member.request_bytes
            and reading.reclaimable_bytes
        }
        if wanted:
            self._hands.reclaim(self._roster.version, wanted)
            self._reports.reclaiming(sum(wanted.values()), short_bytes)
        return bool(wanted)

    # Standing still

    @property
    def is_holding(self) -> bool:
        return self._brake.is_holding

    def can_hold(self, now: float) -> bool:
        return self._brake.can_hold(now)

    def is_tight(self, look: MemorySample) -> bool:
        return any(is_tight(left, mark.due_bytes) for left, mark in really_left(self._marks, look))

    def hold(self, driver: Driver, look: MemorySample, now: float) -> None:
        """While somebody goes: until more is back, or it has been long enough. Where nobody may go, nothing would come
        back for which to wait."""
        if not self._brake.is_holding and not (self._departures.is_any_killed and self.is_tight(look)):
            return
        left = really_left(self._marks, look)
        if not self._brake.can_hold(now) or all(is_loose(one, mark.due_bytes) for one, mark in left):
            self._brake.release(driver, now)
            return
        grown = self._grown(min(mark.due_bytes for _, mark in left))
        wanted = [member for member, _ in grown if member.path not in self._brake.held]
        if wanted or not self._brake.is_holding:
            self._brake.hold(driver, (member.path for member in wanted), now)
            self._reports.freezing(tuple(member.uid for member in wanted))

    # Being throttled

    def throttle(self, look: MemorySample, now: float) -> None:
        """While somebody goes for want of memory and it is still short; on cgroup v2, where the kernel makes them
        wait."""
        is_any = self._departures.is_any(now)
        if self._roster.version != Version.V2 or not (self._throttled or is_any):
            return
        if not is_any or not is_really_short(self._marks, look):
            if self._throttled:
                self._throttled = {}
                self._reports.throttling({})
            return
        if now < self._no_throttle_before:
            return
        self._no_throttle_before = now + _THROTTLE_SECONDS
        grown = self._grown(min(mark.due_bytes for mark in self._marks))
        more = {member.uid: usage for member, usage in grown if member.uid not in self._throttled}
        if more:
            self._throttled = self._throttled | more
            self._reports.throttling(self._throttled)

    def _grown(self, reserve_bytes: int) -> list[tuple[PodTarget, int]]:
        """Those who have to be held, with what they use; who leaves already need not be."""
        leaving = self._departures.uids()
        usages = self._figures.usages()
        return [
            (member, usage)
            for member in self._roster.members
            if member.uid not in leaving
            and must_be_held(usage := usages[member.uid] or 0, member.request_bytes, reserve_bytes)
        ]
