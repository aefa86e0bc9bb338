"""Freezes pods above their request while killed pods free their memory and almost none is left.

Otherwise these pods could use up the rest, and the kernel's OOM killer would act. The kernel freezes a pod by its
cgroup. A pod is frozen for at most a second. A frozen pod that is evicted is thawed, so that it can end. If the agent
is killed in that second, its guard thaws the pods (`pressure.guard`). If the guard was killed too, the next agent thaws
them when it starts (`thaw`).
"""

from collections.abc import Iterable

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.policy.eviction.headroom import is_loose, is_tight
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.memory.memory_reports import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import (
    ByteThreshold,
    MemorySample,
    MemorySampler,
    left_without_pending,
)

_MOST_SECONDS = 1.0
_PAUSE_SECONDS = 1.0  # after pods were frozen for the full time, before any pod is frozen again


class Freezer:
    """Freezes and thaws cgroups, and informs the guard. For one thread."""

    def __init__(self, guard: GuardClient | None = None) -> None:
        self._guard = guard
        self._frozen: set[str] = set()  # paths of cgroups, as planned
        self._since: float | None = None
        self._not_before = 0.0

    @property
    def frozen(self) -> frozenset[str]:
        return frozenset(self._frozen)

    @property
    def is_freezing(self) -> bool:
        return self._since is not None

    def can_freeze(self, now: float) -> bool:
        """Whether pods may be frozen now. The time is limited: a pod must run again, or be evicted."""
        if self._since is None:
            return now >= self._not_before
        return now - self._since < _MOST_SECONDS

    def freeze(self, driver: Driver, paths: Iterable[str], now: float) -> None:
        if self._since is None:
            self._since = now
        wanted = [path for path in paths if path not in self._frozen]
        self._frozen.update(wanted)
        if self._guard is not None:  # before the freeze: the agent may be killed at any moment
            self._guard.hold(_thawing(driver, wanted))
        for path in wanted:
            _freeze(driver, path, frozen=True)

    def thaw_one(self, driver: Driver, path: str) -> None:
        """Thaws this pod, because it was evicted."""
        if path in self._frozen:
            self._frozen.discard(path)
            _freeze(driver, path, frozen=False)
            self._release(driver, (path,))

    def thaw_all(self, driver: Driver, now: float) -> None:
        if self._since is None:
            return
        if now - self._since >= _MOST_SECONDS:
            self._not_before = now + _PAUSE_SECONDS
        self._since = None
        thaw(driver, self._frozen)
        self._release(driver, self._frozen)
        self._frozen.clear()

    def _release(self, driver: Driver, paths: Iterable[str]) -> None:
        if self._guard is not None:
            self._guard.free(_thawing(driver, paths))


class Freezing:
    """Decides when to freeze pods, and which. For the thread of the memory watch."""

    def __init__(
        self,
        freezer: Freezer,
        sampler: MemorySampler,
        pending: PendingMemory,
        reports: MemoryWatchSink,
    ) -> None:
        self._freezer = freezer
        self._sampler = sampler
        self._pending = pending
        self._reports = reports

    def update(
        self, driver: Driver, levels: tuple[ByteThreshold, ...], sample: MemorySample, now: float
    ) -> None:
        """Freezes pods while killed pods free their memory. Thaws them when enough memory is free, or after the longest
        allowed time. If no pod was killed, there is nothing to wait for, and no pod is frozen."""
        freezer = self._freezer
        if not freezer.is_freezing and not (self._pending.is_any_killed and is_tight_at(levels, sample)):
            return
        left = left_without_pending(levels, sample)
        if not freezer.can_freeze(now) or all(is_loose(one, level.due_bytes) for one, level in left):
            freezer.thaw_all(driver, now)
            return
        reserve = min(level.due_bytes for _, level in left)
        grown = self._sampler.above_request(reserve, self._pending.uids())
        frozen = freezer.frozen
        wanted = [target for target, _ in grown if target.path not in frozen]
        if wanted or not freezer.is_freezing:
            freezer.freeze(driver, (target.path for target in wanted), now)
            self._reports.freezing(tuple(target.uid for target in wanted))


def is_tight_at(levels: tuple[ByteThreshold, ...], sample: MemorySample) -> bool:
    """Whether almost nothing is left of the memory that a hard threshold reserves."""
    return any(is_tight(left, level.due_bytes) for left, level in left_without_pending(levels, sample))


def thaw(driver: Driver, paths: Iterable[str]) -> None:
    for path in paths:
        _freeze(driver, path, frozen=False)


def _thawing(driver: Driver, paths: Iterable[str]) -> dict[str, str]:
    """By file: the value that thaws the cgroup."""
    try:
        return dict(driver.thaw_write(path) for path in paths)
    except CgroupError:
        return {}  # the machine cannot freeze cgroups


def _freeze(driver: Driver, path: str, *, frozen: bool) -> None:
    try:
        driver.send_freeze(path, frozen=frozen)
    except CgroupError:
        pass  # the cgroup is gone, or the machine cannot freeze: only the kernel's OOM killer remains
