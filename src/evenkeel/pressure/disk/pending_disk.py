"""Pods that were told to go, and still hold disk or processes: nobody else goes while that is coming back (E2)."""

from collections import deque
from collections.abc import Callable, Collection

from evenkeel.policy.eviction.snapshot import FilesystemFigures
from evenkeel.policy.eviction.usage import Resource

_STUCK_SECONDS = 10.0  # nothing came back for so long: it is not to be counted on
_SETTLE_SECONDS = 1.0  # for filesystems that give back a moment after the last file was removed
_DYING_SECONDS = 5.0  # for killed processes to be gone


class _Leaver:
    def __init__(self, resource: Resource, until: float, has_processes: Callable[[], bool]) -> None:
        self.resource = resource
        self.until = until
        self.has_processes = has_processes
        self.is_cleaned = False


class PendingDisk:
    """Of one thread, but for `cleaned`. Times are those of one clock that only grows."""

    def __init__(self) -> None:
        self._of: dict[str, _Leaver] = {}
        self._told: deque[str] = deque()
        self._available: tuple[int, int] = (0, 0)

    def add(self, uid: str, resource: Resource, ends_at: float, has_processes: Callable[[], bool]) -> None:
        """`ends_at` is when its time to end by itself is over."""
        patience = _DYING_SECONDS if resource is Resource.PIDS else _STUCK_SECONDS
        self._of[uid] = _Leaver(resource, ends_at + patience, has_processes)

    def cleaned(self, uid: str) -> None:
        """Nothing of it is left on disk, but for its logs. For any thread."""
        self._told.append(uid)

    def follow(self, uids: Collection[str]) -> None:
        """Those that have no cgroup any more can at most have disk."""
        for uid in [
            uid for uid, one in self._of.items() if uid not in uids and one.resource is Resource.PIDS
        ]:
            del self._of[uid]

    @property
    def uids(self) -> frozenset[str]:
        """They cannot go again."""
        return frozenset(self._of)

    def saw(self, filesystem: FilesystemFigures, now: float) -> None:
        """What is given back is on its way."""
        available = (filesystem.available_bytes or 0, filesystem.inodes_free or 0)
        is_growing = any(after > before for after, before in zip(available, self._available, strict=True))
        self._available = available
        while self._told:
            leaver = self._of.get(self._told.popleft())
            if leaver is not None:
                leaver.is_cleaned = True
                leaver.until = now + _SETTLE_SECONDS
        for uid, leaver in list(self._of.items()):
            if leaver.resource is Resource.PIDS:
                is_over = not leaver.has_processes() or now >= leaver.until
            else:
                if is_growing and not leaver.is_cleaned:
                    leaver.until = max(leaver.until, now + _STUCK_SECONDS)
                is_over = now >= leaver.until
            if is_over:
                del self._of[uid]

    def is_any(self, resource: Resource, now: float) -> bool:
        """Whether something of the kind is on its way back."""
        is_pids = resource is Resource.PIDS
        return any(
            (one.resource is Resource.PIDS) == is_pids and now < one.until for one in self._of.values()
        )
