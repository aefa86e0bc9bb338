"""What the watch reads: two files of the pods' cgroup and one of the machine at every look; every pod's for a decision.

Memory of pods that are on their way out is counted as back (E2): it is, in a moment, and nobody else must go for it.
"""

import errno
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.host.memory_figures import CgroupMemory, NodeMemory, Reading
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    Snapshot,
)
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_amount
from evenkeel.pressure.targets import PodTarget, WatchTargets

_NOTHING = Reading(0, 0, 0, 0)
_UNKNOWN = PodFigures()
_EXACT = 4  # pods of each class whose cache is looked at, at least: the victim and those after it


class MemorySample(NamedTuple):
    """The node at one moment, cheaply. `returning_bytes` is counted as available in both figures."""

    at: float
    node: MemoryFigures
    pods: MemoryFigures | None  # None where there is no pods' cgroup to watch
    root: Reading = _NOTHING
    returning_bytes: int = 0


class MemorySampler:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._node = NodeMemory(profile)
        self._roster = WatchTargets()
        self._root: CgroupMemory | None = None
        self._pods: dict[str, CgroupMemory] = {}  # by UID
        self.readings: dict[str, Reading] = {}  # by UID, of the last snapshot
        self._has_protected = False  # by memory.min
        self._held_bytes = 0  # cache that memory.min keeps from being dropped, when all pods were last read
        self._droppable_then = 0

    def follow(self, roster: WatchTargets) -> None:
        before, self._roster = self._roster, roster
        if roster.directory != before.directory or self._root is None:
            self._close_root()
            self._open_root()
        self._has_protected = any(member.min_bytes for member in roster.members)
        current = {member.uid: member.directory for member in roster.members}
        for uid in [uid for uid, file in self._pods.items() if current.get(uid) != file.directory]:
            self._pods.pop(uid).close()

    def close(self) -> None:
        self._close_root()
        for file in self._pods.values():
            file.close()
        self._pods.clear()
        self._node.close()

    def look(self, now: float, returning_bytes: int = 0) -> MemorySample:
        root = self._root_reading()
        held = 0
        if self._has_protected:
            # Cache that came since may be that of a protected pod, until all are read again.
            held = self._held_bytes + max(root.droppable_bytes - self._droppable_then, 0)
        return self._looked(now, root, held, returning_bytes)

    def snapshot(
        self, now: float, leaving_out: Collection[str] = (), returning_bytes: int = 0
    ) -> tuple[MemorySample, Snapshot]:
        """Every pod but those of the UIDs in `leaving_out`, each read now.

        What a pod uses with its cache is quickly read, and the cache takes longer: it is looked at where it matters,
        for those who may be first, and for all where memory.min may keep it. The others may use less than is said here.
        """
        root = self._root_reading()
        is_exact = self._has_protected and root.droppable_bytes > self._droppable_then
        usages = self.usages()
        if is_exact:
            self.readings = {member.uid: self.pod(member) or _NOTHING for member in self._roster.members}
            self._held_bytes = sum(
                _held(member, self.readings[member.uid])
                for member in self._roster.members
                if member.min_bytes
            )
            self._droppable_then = root.droppable_bytes
        else:
            self.readings = self._first_in_rank(usages, leaving_out)
            if not self.readings:  # nobody is above his request: all the others may come into question
                for member in self._roster.members:
                    if member.uid not in leaving_out and (reading := self.pod(member)) is not None:
                        self.readings[member.uid] = reading
        exact, profile = self.readings, self._profile
        pods = []
        for member in self._roster.members:
            uid = member.uid
            if uid in leaving_out:
                continue
            used = usages[uid]
            if used is not None and uid in exact:
                used = exact[uid].working_set_bytes(profile)
            pods.append(PodSnapshot(member.pod, _UNKNOWN if used is None else PodFigures(Amount(used))))
        held = self._held_bytes if self._has_protected else 0
        look = self._looked(now, root, held, returning_bytes)
        node = NodeFigures(memory=look.node, pods_cgroup_memory=look.pods)
        return look, Snapshot(now, node, tuple(pods))

    def usages(self) -> dict[str, int | None]:
        """What every pod uses with its cache, by UID; None of one whose cgroup is not there."""
        usages: dict[str, int | None] = {}
        files = self._pods
        for member in self._roster.members:
            uid = member.uid
            try:
                usages[uid] = files[uid].usage_bytes()
            except (KeyError, OSError):
                usages[uid] = self._usage_bytes(member)
        return usages

    def _first_in_rank(
        self, usages: Mapping[str, int | None], leaving_out: Collection[str]
    ) -> dict[str, Reading]:
        """Of each class those who use the most over their request, with their cache: enough of them that nobody else,
        cache included, uses more. It is the class that the ranking asks about first, or the priority."""
        groups: dict[object, list[tuple[int, PodTarget]]] = {}
        for member in self._roster.members:
            used = usages[member.uid]
            if used is not None and used > member.request_bytes and member.uid not in leaving_out:
                groups.setdefault(member.group, []).append((used - member.request_bytes, member))
        readings = {}
        for group in groups.values():
            group.sort(key=lambda one: -one[0])
            exact: list[int] = []
            for over, member in group:
                if len(exact) >= _EXACT and sorted(exact)[-_EXACT] >= over:
                    break
                reading = self.pod(member)
                if reading is not None:
                    readings[member.uid] = reading
                    exact.append(reading.working_set_bytes(self._profile) - member.request_bytes)
        return readings

    def _usage_bytes(self, member: PodTarget) -> int | None:
        try:
            file = self._pods.get(member.uid) or self._opened(member)
            return file.usage_bytes()
        except OSError:
            self._forget(member)
            return None

    def pod(self, member: PodTarget) -> Reading | None:
        """None if its cgroup is not there."""
        try:
            return (self._pods.get(member.uid) or self._opened(member)).read()
        except OSError:
            self._forget(member)
            return None

    def _opened(self, member: PodTarget) -> CgroupMemory:
        file = self._pods[member.uid] = CgroupMemory(member.directory, self._roster.version)
        return file

    def _forget(self, member: PodTarget) -> None:
        if file := self._pods.pop(member.uid, None):
            file.close()

    def with_parts(self, seen: PodSnapshot, member: PodTarget) -> PodSnapshot:
        """The pod with the figures of each of its containers."""
        if seen.stats is None:
            return seen
        parts = []
        for name, directory in member.containers:
            try:
                file = CgroupMemory(directory, self._roster.version)
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

    def _looked(self, now: float, root: Reading, held: int, returning_bytes: int) -> MemorySample:
        node = _with(self._node.read(), returning_bytes - held)
        if not self._roster.limit_bytes or self._root is None:
            return MemorySample(now, node, None, root, returning_bytes)
        used = root.working_set_bytes(self._profile)
        if self._profile is Profile.DOCUMENTS:
            used += min(held, root.droppable_bytes)
        pods = _figures(self._roster.limit_bytes, used - returning_bytes)
        return MemorySample(now, node, pods, root, returning_bytes)

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
        if not self._roster.directory:
            return
        try:
            self._root = CgroupMemory(self._roster.directory, self._roster.version)
        except OSError:
            self._root = None

    def _close_root(self) -> None:
        if self._root is not None:
            self._root.close()
            self._root = None


def _held(member: PodTarget, reading: Reading) -> int:
    """The cache that its memory.min keeps from whoever is short of memory."""
    return max(reading.droppable_bytes - max(reading.usage_bytes - member.min_bytes, 0), 0)


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
    due_bytes: int  # below this it is crossed
    over_bytes: int  # below this, once crossed, it is not over: with the minimum reclaim

    def available(self, look: MemorySample) -> int | None:
        figures = _of(self.threshold.signal, look)
        return None if figures is None else figures.available_bytes


def byte_thresholds(thresholds: Iterable[Threshold], look: MemorySample) -> tuple[ByteThreshold, ...]:
    """Of those whose signal is known here. A percentage is of the capacity, which does not change between looks."""
    marks = []
    for threshold in thresholds:
        figures = _of(threshold.signal, look)
        if figures is not None:
            capacity = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
            due = threshold_amount(threshold.value, capacity)
            least = threshold.min_reclaim
            over = due + (threshold_amount(least, capacity) if least is not None else 0)
            marks.append(ByteThreshold(threshold, due, over))
    return tuple(marks)


def marks_met(
    marks: Iterable[ByteThreshold], look: MemorySample, unresolved: Collection[Threshold]
) -> tuple[Threshold, ...]:
    """Those that `look` is below."""
    found = []
    for mark in marks:
        available = mark.available(look)
        due = mark.over_bytes if unresolved and mark.threshold in unresolved else mark.due_bytes
        if available is not None and available < due:
            found.append(mark.threshold)
    return tuple(found)


def really_left(marks: Iterable[ByteThreshold], look: MemorySample) -> list[tuple[int, ByteThreshold]]:
    """Of what has a hard threshold, without what is on its way back."""
    return [
        (available - look.returning_bytes, mark)
        for mark in marks
        if mark.threshold.hard and (available := mark.available(look)) is not None
    ]


def is_really_short(marks: Iterable[ByteThreshold], look: MemorySample) -> bool:
    """Whether a threshold is crossed without what is on its way back."""
    return any(
        available - look.returning_bytes < mark.over_bytes
        for mark in marks
        if (available := mark.available(look)) is not None
    )


def _of(signal: Signal, look: MemorySample) -> MemoryFigures | None:
    return look.node if signal is Signal.MEMORY_AVAILABLE else look.pods
