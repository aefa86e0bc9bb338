"""Memory sampling: cheap samples of the node, and snapshots of every pod for a decision.

A sample reads two files of the pods' cgroup and one of the machine. Memory of killed pods counts as available (E2): it
will be free in a moment, so no other pod has to be evicted for it.
"""

import errno
from collections.abc import Collection, Sequence
from os import pread
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.host.memory_figures import NUMBER_BYTES, CgroupMemory, NodeMemory, Reading
from evenkeel.policy.eviction.headroom import must_be_held
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    Snapshot,
)
from evenkeel.pressure.targets import PodTarget, WatchTargets

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
        # For each target: its usage in the last snapshot, and the snapshot.
        self._seen: list[tuple[int | None, PodSnapshot | None]] = []
        self._usage_descriptors: list[int] | None = None  # of all targets, if all are open
        self._now: tuple[float, Reading, MemoryFigures] | None = (
            None  # what the last sample has read, and when
        )
        self._parts: list[tuple[str, CgroupMemory]] = []  # of the containers of one pod
        self._parts_uid = ""
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
        self._usage_descriptors = None
        seen = {target.uid: (target.pod, one) for target, one in zip(before.pods, self._seen, strict=True)}
        self._seen = []
        for target in targets.pods:
            pod, one = seen.get(target.uid, (None, (None, None)))
            self._seen.append(one if pod is target.pod else (None, None))

    def close(self) -> None:
        self._close_root()
        self._close_parts()
        for file in self._pods.values():
            file.close()
        self._pods.clear()
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
        self, now: float, leaving_out: Collection[str] = (), pending_bytes: int = 0
    ) -> tuple[MemorySample, Snapshot]:
        """Reads every pod now, except the UIDs in `leaving_out`.

        Reading a pod's usage is fast. Reading how much of it is cache takes longer. So the cache is read only where it
        matters: for the pods that may be first in rank, and for all pods if memory.min may protect cache. The other
        pods may use less than the snapshot says.

        The node's own figures are those of the sample that was taken at `now`, if there is one: it has led here.
        """
        if self._now is None or self._now[0] != now:
            self._now = (now, self._root_reading(), self._node.read())
        root = self._now[1]
        is_exact = self._has_protected and root.droppable_bytes > self._droppable_then
        usages = self._usages()
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
        pods = self._pod_snapshots(usages, leaving_out)
        protected = self._protected_bytes if self._has_protected else 0
        sample = self._sampled(now, root, protected, pending_bytes)
        node = NodeFigures(memory=sample.node, pods_cgroup_memory=sample.pods)
        return sample, Snapshot(now, node, pods)

    def _pod_snapshots(
        self, usages: Sequence[int | None], leaving_out: Collection[str]
    ) -> tuple[PodSnapshot, ...]:
        """A pod whose figures have not changed has the same object as last time. Then it need not be ranked again."""
        exact, before, pods = self.readings, self._seen, []
        for number, target in enumerate(self._targets.pods):
            if leaving_out and target.uid in leaving_out:
                continue
            used = usages[number]
            if used is not None and target.uid in exact:
                used = exact[target.uid].working_set_bytes(self._profile)
            known, seen = before[number]
            if seen is None or known != used:
                figures = _UNKNOWN if used is None else PodFigures(Amount(used))
                seen = PodSnapshot(target.pod, figures)
                before[number] = (used, seen)
            pods.append(seen)
        return tuple(pods)

    def _usages(self) -> Sequence[int | None]:
        """The usage of every target, cache included. None for a pod whose cgroup does not exist."""
        descriptors = self._usage_descriptors
        if descriptors is not None:
            try:
                return [int(pread(descriptor, NUMBER_BYTES, 0)) for descriptor in descriptors]
            except OSError:
                self._usage_descriptors = None  # a cgroup is gone
        usages = [self._usage_bytes(target) for target in self._targets.pods]
        if None not in usages:
            self._usage_descriptors = [
                self._pods[target.uid].usage_descriptor for target in self._targets.pods
            ]
        return usages

    def _first_in_rank(
        self, usages: Sequence[int | None], leaving_out: Collection[str]
    ) -> dict[str, Reading]:
        """Reads, in each class, the pods with the highest usage above their request. It stops when no other pod can be
        higher, even with its cache. The ranking compares the class first, or the priority."""
        groups: dict[object, list[tuple[int, int]]] = {}
        targets = self._targets.pods
        for number, target in enumerate(targets):
            used = usages[number]
            if used is not None and (over := used - target.request_bytes) > 0:
                if leaving_out and target.uid in leaving_out:
                    continue
                group = groups.get(target.group)
                if group is None:
                    group = groups[target.group] = []
                group.append((over, number))
        readings = {}
        for group in groups.values():
            group.sort(reverse=True)
            exact: list[int] = []
            for over, number in group:
                if len(exact) >= _EXACT and sorted(exact)[-_EXACT] >= over:
                    break
                target = targets[number]
                reading = self.pod(target)
                if reading is not None:
                    readings[target.uid] = reading
                    exact.append(reading.working_set_bytes(self._profile) - target.request_bytes)
        return readings

    def above_request(self, reserve_bytes: int, leaving_out: Collection[str]) -> list[tuple[PodTarget, int]]:
        """The pods that have to be frozen or throttled, with their usage."""
        return [
            (target, used or 0)
            for target, used in zip(self._targets.pods, self._usages(), strict=True)
            if target.uid not in leaving_out and must_be_held(used or 0, target.request_bytes, reserve_bytes)
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
        self._usage_descriptors = None
        if file := self._pods.pop(target.uid, None):
            file.close()

    def prepare(self, target: PodTarget) -> None:
        """Opens the files for `with_parts` of this pod, and closes those of another one."""
        self._close_parts()
        self._parts_uid = target.uid
        for name, directory in target.containers:
            try:
                self._parts.append((name, CgroupMemory(directory, self._targets.version)))
            except OSError:
                continue  # the container has ended

    def with_parts(self, seen: PodSnapshot, target: PodTarget) -> PodSnapshot:
        """The pod's snapshot, with the figures of each container added."""
        if seen.stats is None:
            return seen
        if self._parts_uid != target.uid:
            self.prepare(target)
        parts = []
        for name, file in self._parts:
            try:
                used = file.read().working_set_bytes(self._profile)
            except OSError:
                continue
            parts.append(ContainerFigures(name, memory_working_set_bytes=Amount(used)))
        self._close_parts()
        return seen._replace(stats=seen.stats._replace(containers=tuple(parts)))

    def _close_parts(self) -> None:
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
