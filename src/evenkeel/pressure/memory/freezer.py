"""Freezes pods above their request while killed pods free their memory and almost none is left.

Otherwise these pods could use up the rest, and the kernel's OOM killer would act. The kernel freezes a pod by its
cgroup. A pod is frozen for at most a second. A frozen pod that is evicted is thawed, so that it can end. If the watch
is killed in that second, its guard thaws the pods (`pressure.watch.guard`). If the guard was killed too, the agent
thaws them, or the next agent when it starts.

A victim may be frozen, too, for the moment of its kill (`evictor`). `Standby` makes that fast.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from evenkeel.policy.eviction.headroom import is_loose, is_tight
from evenkeel.pressure.memory.cgroup_writes import (
    FreezeFile,
    freeze_file,
    open_file,
    standby_file,
    write_file,
)
from evenkeel.pressure.memory.memory_sink import MemoryWatchSink
from evenkeel.pressure.memory.pending_memory import PendingMemory
from evenkeel.pressure.memory.sampling import ByteThreshold, MemorySample, MemorySampler, left_without_pending
from evenkeel.pressure.targets import WatchTargets

_MOST_SECONDS = 1.0
_STANDBY_SECONDS = 10.0  # after a threshold was near, until the standby cgroup is thawed
_PAUSE_SECONDS = 1.0  # after pods were frozen for the full time, before any pod is frozen again


class Holder(Protocol):
    """Releases pods if this process is killed (`pressure.watch.guard_client`)."""

    def hold(self, lets_go: Mapping[str, str]) -> None:
        """By file: the value to write if this process ends before `free`."""
        ...

    def free(self, files: Iterable[str]) -> None: ...


class Freezer:
    """Freezes and thaws cgroups, and informs the guard. `freeze` gets files by the paths of their cgroups."""

    def __init__(self, guard: Holder) -> None:
        self._guard = guard
        self._frozen: dict[str, FreezeFile] = {}
        self._victims: dict[str, FreezeFile] = {}
        self._prepared: tuple[FreezeFile, int] | None = None  # with its descriptor
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

    def freeze(self, files: Mapping[str, FreezeFile], now: float) -> None:
        if self._since is None:
            self._since = now
        wanted = {path: file for path, file in files.items() if path not in self._frozen}
        self._frozen |= wanted
        # before the freeze: this process may be killed at any moment
        self._guard.hold({one.file: one.thawed.decode() for one in wanted.values()})
        for one in wanted.values():
            _write(one.file, one.frozen)

    def thaw_one(self, path: str) -> None:
        """Thaws this pod, because it was evicted."""
        one = self._frozen.pop(path, None)
        if one is not None:
            _write(one.file, one.thawed)
            self._guard.free((one.file,))

    def prepare_victim(self, file: FreezeFile | None) -> None:
        """This pod may be the next victim, so its file is opened, and the guard is informed. There is one such pod, or
        none."""
        if self._prepared is not None:
            before, descriptor = self._prepared
            if before == file:
                return
            os.close(descriptor)
            self._prepared = None
            if before not in (*self._frozen.values(), *self._victims.values()):
                self._guard.free((before.file,))
        if file is not None:
            with suppress(OSError):  # the cgroup is gone
                self._prepared = (file, open_file(file.file))
                self._guard.hold({file.file: file.thawed.decode()})

    def freeze_victim(self, path: str, file: FreezeFile) -> None:
        """Freezes a pod that is killed next. Only `thaw_victim` thaws it."""
        self._victims[path] = file
        if self._frozen.pop(path, None) is None:
            self.prepare_victim(file)
            # It may have been thawed since it was prepared.
            self._guard.hold({file.file: file.thawed.decode()})
            if self._prepared is not None:
                try:
                    os.write(self._prepared[1], file.frozen)
                except OSError:
                    # A pod that came back has a new cgroup in the same place.
                    _write(file.file, file.frozen)

    def thaw_victim(self, path: str) -> None:
        one = self._victims.pop(path, None)
        if one is not None:
            _write(one.file, one.thawed)
            self._guard.free((one.file,))
            if self._prepared is not None and self._prepared[0] == one:
                self.prepare_victim(None)

    def thaw_all(self, now: float) -> None:
        """Thaws all pods except victims."""
        if self._since is None:
            return
        if now - self._since >= _MOST_SECONDS:
            self._not_before = now + _PAUSE_SECONDS
        self._since = None
        for one in self._frozen.values():
            _write(one.file, one.thawed)
        self._guard.free([one.file for one in self._frozen.values()])
        self._frozen.clear()


class Standby:
    """An empty cgroup of the agent's that is frozen while a threshold is near (v1).

    When the first cgroup of the machine is frozen, and when the last one is thawed, the kernel patches its own code.
    That takes 0.1 ms, and now and then some milliseconds. While this cgroup is frozen, a victim is neither the first
    nor the last. The cgroup has no process, so it harms nobody if it stays frozen; the guard thaws it all the same."""

    def __init__(self, guard: Holder) -> None:
        self._guard = guard
        self._file: FreezeFile | None = None
        self._is_frozen = False
        self._near_at = 0.0

    def follow(self, targets: WatchTargets) -> None:
        file = standby_file(targets)
        if file != self._file:
            self.thaw()
            self._file = file
            if file is not None:
                _write(file.file, file.thawed)  # a watch and its guard may have been killed

    def update(self, now: float, *, is_near: bool) -> None:
        """`is_near`: a threshold may soon be crossed, and a victim frozen."""
        if is_near:
            self._near_at = now
            if not self._is_frozen and self._file is not None:
                self._is_frozen = True
                self._guard.hold({self._file.file: self._file.thawed.decode()})
                _write(self._file.file, self._file.frozen)
        elif self._is_frozen and now - self._near_at >= _STANDBY_SECONDS:
            self.thaw()

    def thaw(self) -> None:
        if self._is_frozen and self._file is not None:
            self._is_frozen = False
            _write(self._file.file, self._file.thawed)
            self._guard.free((self._file.file,))


class Freezing:
    """Decides when to freeze pods, and which."""

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
        self, targets: WatchTargets, levels: tuple[ByteThreshold, ...], sample: MemorySample, now: float
    ) -> None:
        """Freezes pods while killed pods free their memory. Thaws them when enough memory is free, or after the longest
        allowed time. If no pod was killed, there is nothing to wait for, and no pod is frozen."""
        freezer = self._freezer
        if not freezer.is_freezing and not (self._pending.is_any_killed and is_tight_at(levels, sample)):
            return
        left = left_without_pending(levels, sample)
        if not freezer.can_freeze(now) or all(is_loose(one, level.due_bytes) for one, level in left):
            freezer.thaw_all(now)
            return
        reserve = min(level.due_bytes for _, level in left)
        grown = self._sampler.above_request(reserve, self._pending.uids())
        frozen = freezer.frozen
        wanted = [target for target, _ in grown if target.path not in frozen]
        if wanted or not freezer.is_freezing:
            files = {target.path: file for target in wanted if (file := freeze_file(targets, target))}
            freezer.freeze(files, now)
            self._reports.freezing(tuple(target.uid for target in wanted))


def is_tight_at(levels: tuple[ByteThreshold, ...], sample: MemorySample) -> bool:
    """Whether almost nothing is left of the memory that a hard threshold reserves."""
    return any(is_tight(left, level.due_bytes) for left, level in left_without_pending(levels, sample))


def _write(file: str, value: bytes) -> None:
    try:
        write_file(file, value)
    except OSError:
        pass  # the cgroup is gone, or the machine cannot freeze: only the kernel's OOM killer remains
