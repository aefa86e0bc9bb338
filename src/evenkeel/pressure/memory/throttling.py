"""Throttles pods above their requests for a while (A15; cgroup v2): sets `memory.high` to their current usage.

The kernel slows down a pod that exceeds its memory.high. The planned value is written back when memory is free again,
by the guard if the watch is killed. The agent is informed, so that it does not take the setting for drift
(`pressure.memory.throttle`).
"""

from evenkeel.cgroup.tree import Version
from evenkeel.pressure.memory.cgroup_writes import high_file, write_file
from evenkeel.pressure.memory.freezer import Holder
from evenkeel.pressure.memory.memory_sink import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    is_short_without_pending,
)
from evenkeel.pressure.targets import PodTarget, WatchTargets

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
