"""Frees disk by garbage collection, and tracks the disk that evicted pods still use.

Garbage is removed before any pod is evicted (B12). While the disk of an evicted pod is being freed, no other pod is
evicted (E2).
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.conditions import is_relieved
from evenkeel.policy.eviction.decide import Decision, Reclaim
from evenkeel.policy.eviction.snapshot import FilesystemFigures, NodeFigures
from evenkeel.policy.eviction.thresholds import Threshold
from evenkeel.policy.eviction.usage import Resource, resource_of

_AGAIN_SECONDS = 10.0  # between two collections, unless a pod was evicted


class Collector(NamedTuple):
    """One way to free disk. `collect` blocks."""

    kind: Reclaim
    name: str
    collect: Callable[[], None]


class Collected(NamedTuple):
    what: str
    bytes: int = 0
    inodes: int = 0
    failure: str = ""


class GarbageCollection:
    """For one thread. `read_node` returns the current figures of the node."""

    def __init__(self, collectors: Sequence[Collector], read_node: Callable[[], NodeFigures]) -> None:
        self._collectors = collectors
        self._read_node = read_node
        self._not_before = 0.0

    def a_pod_has_gone(self) -> None:
        """Allows a collection at once. An evicted pod leaves its logs, and they may be enough."""
        self._not_before = 0.0

    def collect(self, decision: Decision, now: float) -> tuple[list[Collected], bool]:
        """Collects garbage until enough is free. Returns the collected garbage, and whether no eviction is needed any
        more."""
        if not decision.reclaim or now < self._not_before:
            return [], False
        self._not_before = now + _AGAIN_SECONDS
        due = [one for one in decision.due if is_disk(one)]
        found: list[Collected] = []
        before = self._read_node()
        for collector in self._collectors:
            if collector.kind not in decision.reclaim:
                continue
            try:
                collector.collect()
            except (OSError, EvenkeelError, TimeoutError) as error:
                found.append(Collected(collector.name, failure=str(error) or "it takes too long"))
                continue
            after = self._read_node()
            found.append(Collected(collector.name, *_gain(before.nodefs, after.nodefs)))
            if is_relieved(due, after):
                return found, True
            before = after
        return found, False


def is_disk(threshold: Threshold) -> bool:
    return resource_of(threshold.signal) in (Resource.STORAGE, Resource.INODES)


def _gain(before: FilesystemFigures | None, after: FilesystemFigures | None) -> tuple[int, int]:
    if before is None or after is None:
        return 0, 0
    bytes_ = (after.available_bytes or 0) - (before.available_bytes or 0)
    return max(bytes_, 0), max((after.inodes_free or 0) - (before.inodes_free or 0), 0)


_STUCK_SECONDS = 10.0  # without anything being freed: then nothing more is expected
_SETTLE_SECONDS = 1.0  # for filesystems that free space a moment after the last file is removed
_DYING_SECONDS = 5.0  # for killed processes to end


class _PendingPod:
    def __init__(self, resource: Resource, until: float, has_processes: Callable[[], bool]) -> None:
        self.resource = resource
        self.until = until
        self.has_processes = has_processes
        self.is_cleaned = False


class PendingDisk:
    """For one thread; `cleaned` is for any thread. All times are from one monotonic clock."""

    def __init__(self) -> None:
        self._of: dict[str, _PendingPod] = {}
        self._cleaned: deque[str] = deque()
        self._available: tuple[int, int] = (0, 0)

    def add(self, uid: str, resource: Resource, ends_at: float, has_processes: Callable[[], bool]) -> None:
        """`ends_at` is the end of the pod's grace period."""
        patience = _DYING_SECONDS if resource is Resource.PIDS else _STUCK_SECONDS
        self._of[uid] = _PendingPod(resource, ends_at + patience, has_processes)

    def cleaned(self, uid: str) -> None:
        """Only the logs of the pod are left on disk."""
        self._cleaned.append(uid)

    def follow(self, uids: Collection[str]) -> None:
        """Sets the pods that have cgroups. A pod without a cgroup has no processes, and can only use disk."""
        for uid in [
            uid for uid, one in self._of.items() if uid not in uids and one.resource is Resource.PIDS
        ]:
            del self._of[uid]

    @property
    def uids(self) -> frozenset[str]:
        """These pods cannot be evicted again."""
        return frozenset(self._of)

    def saw(self, filesystem: FilesystemFigures, now: float) -> None:
        """Notes the free space. Forgets pods that have nothing left, or no longer free anything."""
        available = (filesystem.available_bytes or 0, filesystem.inodes_free or 0)
        is_growing = any(after > before for after, before in zip(available, self._available, strict=True))
        self._available = available
        while self._cleaned:
            pod = self._of.get(self._cleaned.popleft())
            if pod is not None:
                pod.is_cleaned = True
                pod.until = now + _SETTLE_SECONDS
        for uid, pod in list(self._of.items()):
            if pod.resource is Resource.PIDS:
                is_over = not pod.has_processes() or now >= pod.until
            else:
                if is_growing and not pod.is_cleaned:
                    pod.until = max(pod.until, now + _STUCK_SECONDS)
                is_over = now >= pod.until
            if is_over:
                del self._of[uid]

    def is_any(self, resource: Resource, now: float) -> bool:
        """Whether a pod is still freeing this kind of resource."""
        is_pids = resource is Resource.PIDS
        return any(
            (one.resource is Resource.PIDS) == is_pids and now < one.until for one in self._of.values()
        )
