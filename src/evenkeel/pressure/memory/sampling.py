"""Memory sampling: cheap samples of the node, and snapshots of every pod for a decision.

A sample reads two files of the pods' cgroup and one of the machine. Memory of killed pods counts as available (E2): it
will be free in a moment, so no other pod has to be evicted for it. A sample is compared with byte thresholds: eviction
thresholds in bytes of this machine.
"""

import errno
from collections.abc import Collection, Iterable, Mapping

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.host.memory_figures import CgroupMemory, NodeMemory, Reading, figures_of
from evenkeel.named_tuples import NamedTuple
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
from evenkeel.pressure.memory.pod_usages import PodUsages
from evenkeel.pressure.targets import PodTarget, WatchTargets

_NOTHING = Reading(0, 0, 0, 0)
_UNKNOWN = PodFigures()


class MemorySample(NamedTuple):
    """The node's memory at one moment. It is cheap to read. Both figures count `pending_bytes` as available."""

    at: float
    node: MemoryFigures
    pods: MemoryFigures | None  # None if the pods have no cgroup to watch
    root: Reading = _NOTHING
    pending_bytes: int = 0


class MemorySampler:
    """`growth_bytes_per_second` is what all pods together can use up in a second at the most; 0 if it is not known."""

    def __init__(self, profile: Profile, growth_bytes_per_second: int = 0) -> None:
        self._profile = profile
        self._node = NodeMemory(profile)
        self._targets = WatchTargets()
        self._root: CgroupMemory | None = None
        self._usages = PodUsages(profile, growth_bytes_per_second)
        self._seen: list[PodSnapshot] = []  # of each target, in the last snapshot
        self._cached: set[int] = set()  # the targets whose cache was subtracted there
        # What the last sample has read, and when.
        self._now: tuple[float, Reading, MemoryFigures] | None = None
        self._parts: list[tuple[str, CgroupMemory]] = []  # of the containers of one pod
        self._parts_uid = ""
        self._has_protected = False  # whether memory.min protects any pod
        self._protected_bytes = 0  # cache that memory.min protected when all pods were last read
        self._droppable_then = 0
        # By UID: what targets have in queues of sockets. No cgroup has it.
        self.queues: Mapping[str, int] = {}
        self._queue_bytes = 0

    def follow(self, targets: WatchTargets) -> None:
        before, self._targets = self._targets, targets
        if targets.directory != before.directory or self._root is None:
            self._close_root()
            self._open_root()
        self._has_protected = any(target.min_bytes for target in targets.pods)
        self._usages.follow(targets)
        self._cached = set()
        seen = {id(one.pod): one for one in self._seen}
        self._seen = [
            seen.get(id(target.pod)) or PodSnapshot(target.pod, _UNKNOWN) for target in targets.pods
        ]
        if self.queues:
            self.count_queues(self.queues)

    def count_queues(self, queues: Mapping[str, int]) -> None:
        """By UID: what pods have in queues of sockets. It counts as memory of the pod, and of all pods together."""
        before = self.queues
        uids = [target.uid for target in self._targets.pods]
        self.queues = {uid: queues[uid] for uid in uids if queues.get(uid)}
        self._queue_bytes = sum(self.queues.values())
        self._usages.count_queues(self.queues)
        for number, uid in enumerate(uids):
            if before.get(uid, 0) != self.queues.get(uid, 0):
                self._seen[number] = PodSnapshot(self._targets.pods[number].pod, _UNKNOWN)
                self._usages.changed.add(number)

    @property
    def queue_bytes(self) -> int:
        """Of all pods together."""
        return self._queue_bytes

    def close(self) -> None:
        self._close_root()
        self.close_parts()
        self._usages.close()
        self._node.close()

    def sample(self, now: float, pending_bytes: int = 0) -> MemorySample:
        """Samples the node now. `pending_bytes` count as available."""
        root = self._root_reading()
        self._now = (now, root, self._node.read())
        protected = 0
        if self._has_protected:
            # Newer cache may belong to a protected pod. So it counts as protected until all pods are read again.
            protected = self._protected_bytes + max(root.droppable_bytes - self._droppable_then, 0)
        return self._sampled(now, root, protected, pending_bytes)

    def snapshot(
        self,
        now: float,
        leaving_out: Collection[str] = (),
        pending_bytes: int = 0,
        *,
        is_exact: bool = False,
    ) -> tuple[MemorySample, Snapshot]:
        """Reads every pod that may be first in rank now, except the UIDs in `leaving_out`, and the others if they were
        not read just before (`pod_usages`). If memory.min may protect cache, or with `is_exact`, the cache of all pods
        is read. Otherwise the pods that cannot be the first may use less than the snapshot says.

        The node's own figures are those of the sample that was taken at `now`, if there is one: that sample showed the
        shortage."""
        if self._now is None or self._now[0] != now:
            self._now = (now, self._root_reading(), self._node.read())
        root = self._now[1]
        targets, usages = self._targets.pods, self._usages
        out: Collection[int] = ()
        if leaving_out:
            out = {number for number, target in enumerate(targets) if target.uid in leaving_out}
        if is_exact or (self._has_protected and root.droppable_bytes > self._droppable_then):
            usages.read_usages()
            readings = usages.read(range(len(targets)))
            self._protected_bytes = sum(
                readings[number].protected_bytes(target.min_bytes)
                for number, target in enumerate(targets)
                if target.min_bytes
            )
            self._droppable_then = root.droppable_bytes
        else:
            readings = usages.read_first_in_rank(out)
        for number in usages.changed.union(readings, self._cached):
            used = usages.usages[number]
            if used is not None and number in readings:
                used = readings[number].working_set_bytes(self._profile)
            figures = self._seen[number].stats
            # A pod whose figures have not changed keeps its object. Then it need not be ranked again.
            if figures is None or figures.memory_working_set_bytes != used:
                stats = _UNKNOWN if used is None else PodFigures(Amount(used))
                if self.queues and used is not None and (queued := self.queues.get(targets[number].uid)):
                    stats = stats._replace(socket_queue_bytes=Amount(queued))
                self._seen[number] = PodSnapshot(targets[number].pod, stats)
        usages.changed.clear()
        self._cached = set(readings)
        pods = tuple(self._seen)
        if out:
            pods = tuple([one for number, one in enumerate(pods) if number not in out])
        protected = self._protected_bytes if self._has_protected else 0
        sample = self._sampled(now, root, protected, pending_bytes)
        node = NodeFigures(memory=sample.node, pods_cgroup_memory=sample.pods)
        return sample, Snapshot(now, node, pods)

    def above_request(self, reserve_bytes: int, leaving_out: Collection[str]) -> list[tuple[PodTarget, int]]:
        """The pods that have to be frozen or throttled, with their usage."""
        self._usages.read_usages()
        return [
            (target, used or 0)
            for target, used in zip(self._targets.pods, self._usages.usages, strict=True)
            if target.uid not in leaving_out
            and must_be_held(
                (used or 0) + self.queues.get(target.uid, 0), target.request_bytes, reserve_bytes
            )
        ]

    def pod(self, target: PodTarget) -> Reading | None:
        """Reads the pod. None if its cgroup does not exist."""
        return self._usages.pod(target)

    def prepare(self, target: PodTarget) -> None:
        """Opens the files for `parts` of this pod, and closes those of another one."""
        self.close_parts()
        self._parts_uid = target.uid
        for name, directory in target.containers:
            try:
                self._parts.append((name, CgroupMemory(directory, self._targets.version)))
            except OSError:
                continue  # the container has ended

    def parts(self, target: PodTarget) -> tuple[ContainerFigures, ...]:
        """The figures of each container of the pod, read now."""
        if self._parts_uid != target.uid:
            self.prepare(target)
        parts = []
        for name, file in self._parts:
            try:
                used = file.read().working_set_bytes(self._profile)
            except OSError:
                continue
            parts.append(ContainerFigures(name, memory_working_set_bytes=Amount(used)))
        return tuple(parts)

    def close_parts(self) -> None:
        for _, file in self._parts:
            file.close()
        self._parts.clear()
        self._parts_uid = ""

    def _sampled(self, now: float, root: Reading, protected: int, pending_bytes: int) -> MemorySample:
        assert self._now is not None
        node = _with(self._now[2], pending_bytes - protected)
        if not self._targets.limit_bytes or self._root is None:
            return MemorySample(now, node, None, root, pending_bytes)
        used = root.working_set_bytes(self._profile)
        if self._profile is Profile.DOCUMENTS:
            used += min(protected, root.droppable_bytes)
        pods = figures_of(self._targets.limit_bytes, used + self._queue_bytes - pending_bytes)
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


def _with(figures: MemoryFigures, more_bytes: int) -> MemoryFigures:
    if not more_bytes:
        return figures
    total = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
    return figures_of(total, (figures.working_set_bytes or 0) - more_bytes)


def with_parts(seen: PodSnapshot, parts: tuple[ContainerFigures, ...]) -> PodSnapshot:
    """The pod's snapshot, with the figures of each container added."""
    return seen if seen.stats is None else seen._replace(stats=seen.stats._replace(containers=parts))


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


def nearest_threshold(
    levels: Iterable[ByteThreshold], sample: MemorySample
) -> tuple[Signal, Threshold | None]:
    """The signal that would be short first, and its hard threshold. If none is known, that of the pods' cgroup."""
    left = [(left - level.due_bytes, level.threshold) for left, level in left_without_pending(levels, sample)]
    if not left:
        return Signal.ALLOCATABLE_MEMORY_AVAILABLE, None
    threshold = min(left, key=lambda one: one[0])[1]
    return threshold.signal, threshold


def is_short_without_pending(levels: Iterable[ByteThreshold], sample: MemorySample) -> bool:
    """Whether a threshold is crossed if memory that is still being freed does not count."""
    return any(
        available - sample.pending_bytes < level.over_bytes
        for level in levels
        if (available := level.available(sample)) is not None
    )


def _of(signal: Signal, sample: MemorySample) -> MemoryFigures | None:
    return sample.node if signal is Signal.MEMORY_AVAILABLE else sample.pods
