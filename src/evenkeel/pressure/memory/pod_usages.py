"""Reads the memory of each target, through files that stay open. It reads no more than a decision needs.

Reading the usage of a pod is fast. Reading how much of it is cache takes longer. So the cache is read only of the pods
that may be first in rank. Near a threshold the watch rehearses an eviction again and again (`Rehearsals`): it reads all
pods, finds the pod that would be evicted and prepares its eviction. Then, when the threshold is crossed, only the pods
that can have become the first since the last time are read.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from os import pread

from evenkeel.api.config import Profile
from evenkeel.host.memory_figures import NUMBER_BYTES, CgroupMemory, Reading
from evenkeel.policy.qos import is_critical
from evenkeel.pressure.targets import PodTarget, WatchTargets

_NOTHING = Reading(0, 0, 0, 0)
RECENT_SECONDS = 0.02  # the greatest age of the figures of a pod that cannot be the first in rank
_FEW = 16  # up to so many pods are read one by one. All at once takes less time than more than that


class PodUsages:
    """Targets have numbers here, in the order of `WatchTargets.pods`. `growth_bytes_per_second` is what all pods
    together can use up in a second at the most. 0: it is not known, and every pod is always read."""

    def __init__(self, profile: Profile, growth_bytes_per_second: int = 0) -> None:
        self._profile = profile
        self._growth = growth_bytes_per_second
        self._targets = WatchTargets()
        self._files: dict[str, CgroupMemory] = {}  # by UID
        self._descriptors: list[int] | None = None  # of the usage of all targets, if all are open
        # By the target's number: what was read last, and its meaning. None: it has no cgroup.
        self._texts: list[bytes] = []
        self.usages: list[int | None] = []
        self.changed: set[int] = set()  # targets whose usage has changed. The reader of `usages` clears it
        self._groups: list[list[int]] = []
        # What a pod has in queues of sockets makes the room smaller that is left of its request.
        self._requests: list[int] = []
        self._read_at = 0.0  # when all were read

    def follow(self, targets: WatchTargets) -> None:
        self._targets = targets
        current = {target.uid: target.directory for target in targets.pods}
        for uid in [uid for uid, file in self._files.items() if current.get(uid) != file.directory]:
            self._files.pop(uid).close()
        self._descriptors = None
        self._read_at = 0.0
        self._texts = [b""] * len(targets.pods)
        self.usages = [None] * len(targets.pods)
        self.changed = set(range(len(targets.pods)))
        groups: dict[object, list[int]] = {}
        for number, target in enumerate(targets.pods):
            # Within one group, the usage above the request decides the rank.
            key = (target.group, is_critical(target.pod, self._profile), target.pod.status.phase)
            groups.setdefault(key, []).append(number)
        self._groups = list(groups.values())
        self.count_queues({})

    def count_queues(self, queues: Mapping[str, int]) -> None:
        """By UID: memory of pods that no cgroup has."""
        self._requests = [target.request_bytes - queues.get(target.uid, 0) for target in self._targets.pods]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read_usages(self) -> None:
        """Reads the usage of every target, cache included."""
        self._read_at = time.monotonic()
        descriptors = self._descriptors
        if descriptors is not None:
            try:
                texts = [pread(descriptor, NUMBER_BYTES, 0) for descriptor in descriptors]
            except OSError:
                self._descriptors = None  # a cgroup is gone
            else:
                before, self._texts = self._texts, texts
                moved = [number for number, text in enumerate(texts) if text != before[number]]
                for number in moved:
                    self.usages[number] = int(texts[number])
                self.changed.update(moved)
                return
        targets = self._targets.pods
        self.usages = [self._usage_bytes(target) for target in targets]
        self.changed.update(range(len(targets)))
        if None in self.usages:
            self._read_at = 0.0  # its cgroup may be made at any moment
        else:
            self._descriptors = [self._files[target.uid].usage_descriptor for target in targets]
            self._texts = [b""] * len(targets)

    def read_first_in_rank(self, leaving_out: Collection[int]) -> dict[int, Reading]:
        """Reads all pods that may be first in rank, of each group at least one. The usages of the others are at most
        `RECENT_SECONDS` old, and none of these pods can have become the first since.

        If no pod is above its request, any pod may be the victim. Then all are read."""
        since = time.monotonic() - self._read_at
        grown = int(since * self._growth) + 1
        over = self._over()
        if not self._growth or since >= RECENT_SECONDS or self._are_many_near(over, grown):
            self.read_usages()
            grown, over = 0, self._over()
        readings = self._read_highest(over, leaving_out, grown)
        if not readings:
            self.read_usages()
            readings = self.read(number for number in range(len(self.usages)) if number not in leaving_out)
        return readings

    def read(self, numbers: Iterable[int]) -> dict[int, Reading]:
        """Reads these targets. A cgroup that is gone uses nothing."""
        targets = self._targets.pods
        return {number: self.pod(targets[number]) or _NOTHING for number in numbers}

    def pod(self, target: PodTarget) -> Reading | None:
        """Reads the pod. None if its cgroup does not exist."""
        try:
            return (self._files.get(target.uid) or self._opened(target)).read()
        except OSError:
            self._forget(target)
            return None

    def _over(self) -> list[int]:
        """By number: how far each target is above its request. The highest is the first of its group from now on."""
        over = [
            -1 if used is None else used - request
            for used, request in zip(self.usages, self._requests, strict=True)
        ]
        for group in self._groups:
            group.sort(key=over.__getitem__, reverse=True)  # nearly in this order since the last time
        return over

    def _are_many_near(self, over: list[int], grown_bytes: int) -> bool:
        """Whether more than a few pods may be the first of their group if each has grown by so much."""
        count = 0
        for group in self._groups:
            least = max(1, over[group[0]]) - grown_bytes
            for number in group:
                if over[number] < least:
                    break
                count += 1
                if count > _FEW:
                    return True
        return False

    def _read_highest(
        self, over: list[int], leaving_out: Collection[int], grown_bytes: int
    ) -> dict[int, Reading]:
        """Reads, in each group, the pods with the highest usage above their request. It stops when no other pod of the
        group can be higher, even with its cache. `grown_bytes` is what any pod may have grown by since its usage was
        read. Returns nothing if no pod is above its request."""
        targets = self._targets.pods
        readings = {}
        is_any_above = False
        for group in self._groups:
            highest = 0
            for number in group:
                if over[number] + grown_bytes < max(highest, 1):
                    break
                if number in leaving_out:
                    continue
                target = targets[number]
                if grown_bytes and self._reread(number) < max(highest, 1):
                    continue
                reading = self.pod(target)
                if reading is not None:
                    readings[number] = reading
                    used = reading.working_set_bytes(self._profile)
                    highest = max(highest, used - self._requests[number])
            is_any_above |= highest > 0
        return readings if is_any_above else {}

    def _reread(self, number: int) -> int:
        """Reads the usage of one target. Returns how far it is above its request."""
        target = self._targets.pods[number]
        used = self._usage_bytes(target)
        self.usages[number] = used
        self._texts[number] = b""  # it is not the text of this usage
        self.changed.add(number)
        return -1 if used is None else used - self._requests[number]

    def _usage_bytes(self, target: PodTarget) -> int | None:
        try:
            return (self._files.get(target.uid) or self._opened(target)).usage_bytes()
        except OSError:
            self._forget(target)
            return None

    def _opened(self, target: PodTarget) -> CgroupMemory:
        file = self._files[target.uid] = CgroupMemory(target.directory, self._targets.version)
        return file

    def _forget(self, target: PodTarget) -> None:
        self._descriptors = None
        if file := self._files.pop(target.uid, None):
            file.close()


# A threshold is near if the fastest growth could reach it in this time. On v1, the kernel also wakes the watch at
# marks: levels of usage below the threshold. At each mark the watch rehearses.
_NEAR_SECONDS = 0.05
_MARKS_SECONDS = (_NEAR_SECONDS, 0.008, 0.001)
_NOW_AND_THEN_SECONDS = 0.5  # between two rehearsals near a threshold
# The same after the last mark, while the pods grow. It is short enough that the last figures are still recent when the
# threshold is crossed.
_LAST_SECONDS = 0.75 * RECENT_SECONDS
# The pods count as growing if, between two rehearsals, they use at least this part (1/16) of the bytes from the last
# mark to the threshold. Growth may pause for a moment: on a busy machine other processes run then.
_GROWING_SHARE = 16
_STILL_SECONDS = 0.1


class Rehearsals:
    """`growth_bytes_per_second` is what all pods together can use up in a second at the most."""

    def __init__(self, growth_bytes_per_second: int) -> None:
        # The bytes from each mark to the threshold.
        self._ways = [int(growth_bytes_per_second * seconds) for seconds in _MARKS_SECONDS]
        self._at = 0.0
        self._left = 0  # bytes to the nearest threshold at that time
        self._grown_at = 0.0
        self._is_growing = False  # after the last mark
        self.is_near = False  # a threshold, when `is_due` was last asked

    def marks(self, lines: Iterable[int]) -> list[int]:
        """The marks below these thresholds, in bytes of usage."""
        marks = [line - way for line in lines for way in self._ways]
        return [mark for mark in marks if mark > 0]

    def is_due(self, lefts: Iterable[int], now: float) -> bool:
        """Whether a rehearsal is due. `lefts` are the bytes left to each threshold. Near a threshold a rehearsal is due
        now and then. Until the last mark, one is also due each time when half of the remaining bytes are used up. After
        the last mark, rehearsals follow each other closely while the pods grow."""
        near, last = self._ways[0], self._ways[-1]
        left = min(lefts, default=near)
        self.is_near = left < near
        if not self.is_near:
            self._left, self._is_growing = near, False
            return False
        is_half = left <= max(self._left // 2, last) < self._left
        if not is_half and now < self._at + (self.pause_seconds or _NOW_AND_THEN_SECONDS):
            return False
        if self._left - left >= last // _GROWING_SHARE:
            self._grown_at = now
        self._is_growing = left <= last and now < self._grown_at + _STILL_SECONDS
        self._left = left
        return True

    def done(self, now: float) -> None:
        self._at = now

    @property
    def pause_seconds(self) -> float | None:
        """The longest time until the watch has to look again for the next rehearsal. None: there is no hurry."""
        return _LAST_SECONDS if self._is_growing else None
