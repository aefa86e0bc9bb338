"""Memory sampling: cheap samples of the node, snapshots of every pod for a decision, and thresholds in bytes.

A sample reads two files of the pods' cgroup and one of the machine. Memory of killed pods counts as available (E2): it
will be free in a moment, so no other pod has to be evicted for it.
"""

import errno
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.host.memory_figures import CgroupMemory, NodeMemory, Reading
from evenkeel.policy.eviction.headroom import must_be_held
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    Snapshot,
)
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_amount
from evenkeel.pressure.protocol import PodTarget, WatchTargets

_NOTHING = Reading(0, 0, 0, 0)
_UNKNOWN = PodFigures()
_EXACT = 4  # the least number of pods per class whose cache is read: the victim and the next ones


class MemorySample(NamedTuple):
    """The node's memory at one moment. It is cheap to read. Both figures count `pending_bytes` as available."""

    at: float
    node: MemoryFigures
    pods: MemoryFigures | None  # None if the pods have no cgroup to watch
    root: Reading = _NOTHING
    pending_bytes: int = 0


class MemorySampler:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._node = NodeMemory(profile)
        self._targets = WatchTargets()
        self._root: CgroupMemory | None = None
        self._pods: dict[str, CgroupMemory] = {}  # by UID
        self.readings: dict[str, Reading] = {}  # by UID, from the last snapshot
        self._has_protected = False  # whether memory.min protects any pod
        self._protected_bytes = 0  # cache that memory.min protected when all pods were last read
        self._droppable_then = 0

    def follow(self, targets: WatchTargets) -> None:
        before, self._targets = self._targets, targets
        if targets.directory != before.directory or self._root is None:
            self._close_root()
            self._open_root()
        self._has_protected = any(target.min_bytes for target in targets.pods)
        current = {target.uid: target.directory for target in targets.pods}
        for uid in [uid for uid, file in self._pods.items() if current.get(uid) != file.directory]:
            self._pods.pop(uid).close()

    def close(self) -> None:
        self._close_root()
        for file in self._pods.values():
            file.close()
        self._pods.clear()
        self._node.close()

    def sample(self, now: float, pending_bytes: int = 0) -> MemorySample:
        """Samples the node now. `pending_bytes` count as available."""
        root = self._root_reading()
        protected = 0
        if self._has_protected:
            # Newer cache may belong to a protected pod. So it counts as protected until all pods are read again.
            protected = self._protected_bytes + max(root.droppable_bytes - self._droppable_then, 0)
        return self._sampled(now, root, protected, pending_bytes)

    def snapshot(
        self, now: float, leaving_out: Collection[str] = (), pending_bytes: int = 0
    ) -> tuple[MemorySample, Snapshot]:
        """Reads every pod now, except the UIDs in `leaving_out`.

        Reading a pod's usage is fast. Reading how much of it is cache takes longer. So the cache is read only where it
        matters: for the pods that may be first in rank, and for all pods if memory.min may protect cache. The other
        pods may use less than the snapshot says.
        """
        root = self._root_reading()
        is_exact = self._has_protected and root.droppable_bytes > self._droppable_then
        usages = self.usages()
        if is_exact:
            self.readings = {target.uid: self.pod(target) or _NOTHING for target in self._targets.pods}
            self._protected_bytes = sum(
                _protected(target, self.readings[target.uid])
                for target in self._targets.pods
                if target.min_bytes
            )
            self._droppable_then = root.droppable_bytes
        else:
            self.readings = self._first_in_rank(usages, leaving_out)
            if not self.readings:  # no pod is above its request, so any pod may be the victim
                for target in self._targets.pods:
                    if target.uid not in leaving_out and (reading := self.pod(target)) is not None:
                        self.readings[target.uid] = reading
        exact, profile = self.readings, self._profile
        pods = []
        for target in self._targets.pods:
            uid = target.uid
            if uid in leaving_out:
                continue
            used = usages[uid]
            if used is not None and uid in exact:
                used = exact[uid].working_set_bytes(profile)
            pods.append(PodSnapshot(target.pod, _UNKNOWN if used is None else PodFigures(Amount(used))))
        protected = self._protected_bytes if self._has_protected else 0
        sample = self._sampled(now, root, protected, pending_bytes)
        node = NodeFigures(memory=sample.node, pods_cgroup_memory=sample.pods)
        return sample, Snapshot(now, node, tuple(pods))

    def usages(self) -> dict[str, int | None]:
        """The usage of every pod by UID, cache included. None for a pod whose cgroup does not exist."""
        usages: dict[str, int | None] = {}
        files = self._pods
        for target in self._targets.pods:
            uid = target.uid
            try:
                usages[uid] = files[uid].usage_bytes()
            except (KeyError, OSError):
                usages[uid] = self._usage_bytes(target)
        return usages

    def _first_in_rank(
        self, usages: Mapping[str, int | None], leaving_out: Collection[str]
    ) -> dict[str, Reading]:
        """Reads, in each class, the pods with the highest usage above their request. It stops when no other pod can be
        higher, even with its cache. The ranking compares the class first, or the priority."""
        groups: dict[object, list[tuple[int, PodTarget]]] = {}
        for target in self._targets.pods:
            used = usages[target.uid]
            if used is not None and used > target.request_bytes and target.uid not in leaving_out:
                groups.setdefault(target.group, []).append((used - target.request_bytes, target))
        readings = {}
        for group in groups.values():
            group.sort(key=lambda one: -one[0])
            exact: list[int] = []
            for over, target in group:
                if len(exact) >= _EXACT and sorted(exact)[-_EXACT] >= over:
                    break
                reading = self.pod(target)
                if reading is not None:
                    readings[target.uid] = reading
                    exact.append(reading.working_set_bytes(self._profile) - target.request_bytes)
        return readings

    def above_request(self, reserve_bytes: int, leaving_out: Collection[str]) -> list[tuple[PodTarget, int]]:
        """The pods that have to be frozen or throttled, with their usage."""
        usages = self.usages()
        return [
            (target, usage)
            for target in self._targets.pods
            if target.uid not in leaving_out
            and must_be_held(usage := usages[target.uid] or 0, target.request_bytes, reserve_bytes)
        ]

    def _usage_bytes(self, target: PodTarget) -> int | None:
        try:
            file = self._pods.get(target.uid) or self._opened(target)
            return file.usage_bytes()
        except OSError:
            self._forget(target)
            return None

    def pod(self, target: PodTarget) -> Reading | None:
        """Reads the pod. None if its cgroup does not exist."""
        try:
            return (self._pods.get(target.uid) or self._opened(target)).read()
        except OSError:
            self._forget(target)
            return None

    def _opened(self, target: PodTarget) -> CgroupMemory:
        file = self._pods[target.uid] = CgroupMemory(target.directory, self._targets.version)
        return file

    def _forget(self, target: PodTarget) -> None:
        if file := self._pods.pop(target.uid, None):
            file.close()

    def with_parts(self, seen: PodSnapshot, target: PodTarget) -> PodSnapshot:
        """The pod's snapshot, with the figures of each container added."""
        if seen.stats is None:
            return seen
        parts = []
        for name, directory in target.containers:
            try:
                file = CgroupMemory(directory, self._targets.version)
            except OSError:
                continue
            try:
                used = file.read().working_set_bytes(self._profile)
                parts.append(ContainerFigures(name, memory_working_set_bytes=Amount(used)))
            except OSError:
                pass
            finally:
                file.close()
        return seen._replace(stats=seen.stats._replace(containers=tuple(parts)))

    def _sampled(self, now: float, root: Reading, protected: int, pending_bytes: int) -> MemorySample:
        node = _with(self._node.read(), pending_bytes - protected)
        if not self._targets.limit_bytes or self._root is None:
            return MemorySample(now, node, None, root, pending_bytes)
        used = root.working_set_bytes(self._profile)
        if self._profile is Profile.DOCUMENTS:
            used += min(protected, root.droppable_bytes)
        pods = _figures(self._targets.limit_bytes, used - pending_bytes)
        return MemorySample(now, node, pods, root, pending_bytes)

    def _root_reading(self) -> Reading:
        if self._root is None:
            self._open_root()
            if self._root is None:
                return _NOTHING
        try:
            return self._root.read()
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
        self._close_root()
        return _NOTHING

    def _open_root(self) -> None:
        if not self._targets.directory:
            return
        try:
            self._root = CgroupMemory(self._targets.directory, self._targets.version)
        except OSError:
            self._root = None

    def _close_root(self) -> None:
        if self._root is not None:
            self._root.close()
            self._root = None


def _protected(target: PodTarget, reading: Reading) -> int:
    """The pod's cache that memory.min protects from being dropped."""
    return max(reading.droppable_bytes - max(reading.usage_bytes - target.min_bytes, 0), 0)


def _figures(total: int, working_set: int) -> MemoryFigures:
    working_set = min(max(working_set, 0), total)
    return MemoryFigures(Amount(total - working_set), Amount(working_set))


def _with(figures: MemoryFigures, more_bytes: int) -> MemoryFigures:
    if not more_bytes:
        return figures
    total = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
    return _figures(total, (figures.working_set_bytes or 0) - more_bytes)


class ByteThreshold(NamedTuple):
    threshold: Threshold
    due_bytes: int  # the threshold is crossed below this
    over_bytes: int  # once crossed, it stays crossed below this: it includes the minimum reclaim

    def available(self, sample: MemorySample) -> int | None:
        figures = _of(self.threshold.signal, sample)
        return None if figures is None else figures.available_bytes


def byte_thresholds(thresholds: Iterable[Threshold], sample: MemorySample) -> tuple[ByteThreshold, ...]:
    """The thresholds whose signal can be measured here. A percentage refers to the capacity, which does not change."""
    levels = []
    for threshold in thresholds:
        figures = _of(threshold.signal, sample)
        if figures is not None:
            capacity = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
            due = threshold_amount(threshold.value, capacity)
            least = threshold.min_reclaim
            over = due + (threshold_amount(least, capacity) if least is not None else 0)
            levels.append(ByteThreshold(threshold, due, over))
    return tuple(levels)


def levels_crossed(
    levels: Iterable[ByteThreshold], sample: MemorySample, unresolved: Collection[Threshold]
) -> tuple[Threshold, ...]:
    """The thresholds that are crossed. An `unresolved` threshold stays crossed until its minimum reclaim is free
    too."""
    found = []
    for level in levels:
        available = level.available(sample)
        due = level.over_bytes if unresolved and level.threshold in unresolved else level.due_bytes
        if available is not None and available < due:
            found.append(level.threshold)
    return tuple(found)


def left_without_pending(
    levels: Iterable[ByteThreshold], sample: MemorySample
) -> list[tuple[int, ByteThreshold]]:
    """The bytes left for each hard threshold, without the memory that is still being freed."""
    return [
        (available - sample.pending_bytes, level)
        for level in levels
        if level.threshold.hard and (available := level.available(sample)) is not None
    ]


def is_short_without_pending(levels: Iterable[ByteThreshold], sample: MemorySample) -> bool:
    """Whether a threshold is crossed if memory that is still being freed does not count."""
    return any(
        available - sample.pending_bytes < level.over_bytes
        for level in levels
        if (available := level.available(sample)) is not None
    )


def _of(signal: Signal, sample: MemorySample) -> MemoryFigures | None:
    return sample.node if signal is Signal.MEMORY_AVAILABLE else sample.pods
