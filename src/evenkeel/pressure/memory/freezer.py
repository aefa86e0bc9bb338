"""Freezing pods: while killed pods free their memory and next to none is left, pods above their request are frozen.

Without it they could use up the rest, and the kernel's OOM killer would act. The kernel freezes a pod by its cgroup. A
pod is frozen for a second at the most, and one that is evicted meanwhile is thawed, so that it can end. If the agent is
killed in that second, its guard thaws the pods (`pressure.guard`). If the guard was killed too, the next agent thaws
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
_PAUSE_SECONDS = 1.0  # after pods were frozen that long, before any is frozen again


class Freezer:
    """Freezes and thaws cgroups, and tells the guard. For one thread."""

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
        """Not for ever: a pod must go on, or be evicted."""
        if self._since is None:
            return now >= self._not_before
        return now - self._since < _MOST_SECONDS

    def freeze(self, driver: Driver, paths: Iterable[str], now: float) -> None:
        if self._since is None:
            self._since = now
        wanted = [path for path in paths if path not in self._frozen]
        self._frozen.update(wanted)
        if self._guard is not None:  # before they are frozen: the agent may be killed at any moment
            self._guard.hold(_thawing(driver, wanted))
        for path in wanted:
            _freeze(driver, path, frozen=True)

    def thaw_one(self, driver: Driver, path: str) -> None:
        """This pod was evicted."""
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
    """Decides when to freeze which pods. For the thread of the memory watch."""

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
        """Freezes pods while memory of killed pods is being freed, and thaws them when enough is free or it took too
        long. Where no pod is killed, there is nothing to wait for."""
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
    """Whether next to nothing is left of what a hard threshold reserves."""
    return any(is_tight(left, level.due_bytes) for left, level in left_without_pending(levels, sample))


def thaw(driver: Driver, paths: Iterable[str]) -> None:
    for path in paths:
        _freeze(driver, path, frozen=False)


def _thawing(driver: Driver, paths: Iterable[str]) -> dict[str, str]:
    """By the file: what has to be written to it to thaw the cgroup."""
    try:
        return dict(driver.thaw_write(path) for path in paths)
    except CgroupError:
        return {}  # the machine cannot freeze


def _freeze(driver: Driver, path: str, *, frozen: bool) -> None:
    try:
        driver.send_freeze(path, frozen=frozen)
    except CgroupError:
        pass  # the cgroup is gone, or the machine cannot freeze: then the kernel's OOM killer is what is left
