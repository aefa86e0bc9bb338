"""Pending disk: evicted pods that still use disk or processes. No other pod is evicted while these are being freed
(E2)."""

from collections import deque
from collections.abc import Callable, Collection

from evenkeel.policy.eviction.snapshot import FilesystemFigures
from evenkeel.policy.eviction.usage import Resource

_STUCK_SECONDS = 10.0  # without anything being freed: it is not to be counted on
_SETTLE_SECONDS = 1.0  # for filesystems that free space a moment after the last file was removed
_DYING_SECONDS = 5.0  # for killed processes to be gone


class _PendingPod:
    def __init__(self, resource: Resource, until: float, has_processes: Callable[[], bool]) -> None:
        self.resource = resource
        self.until = until
        self.has_processes = has_processes
        self.is_cleaned = False


class PendingDisk:
    """For one thread; `cleaned` is for any. Times are those of one clock that only grows."""

    def __init__(self) -> None:
        self._of: dict[str, _PendingPod] = {}
        self._cleaned: deque[str] = deque()
        self._available: tuple[int, int] = (0, 0)

    def add(self, uid: str, resource: Resource, ends_at: float, has_processes: Callable[[], bool]) -> None:
        """`ends_at` is when its time to end by itself is over."""
        patience = _DYING_SECONDS if resource is Resource.PIDS else _STUCK_SECONDS
        self._of[uid] = _PendingPod(resource, ends_at + patience, has_processes)

    def cleaned(self, uid: str) -> None:
        """Nothing of the pod is left on disk but its logs."""
        self._cleaned.append(uid)

    def follow(self, uids: Collection[str]) -> None:
        """Those that have no cgroup any more can at most have disk."""
        for uid in [
            uid for uid, one in self._of.items() if uid not in uids and one.resource is Resource.PIDS
        ]:
            del self._of[uid]

    @property
    def uids(self) -> frozenset[str]:
        """They cannot be evicted again."""
        return frozenset(self._of)

    def saw(self, filesystem: FilesystemFigures, now: float) -> None:
        """Notes what is free now, and forgets pods that have nothing left or free nothing any more."""
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
        """Whether something of this kind is being freed."""
        is_pids = resource is Resource.PIDS
        return any(
            (one.resource is Resource.PIDS) == is_pids and now < one.until for one in self._of.values()
        )
