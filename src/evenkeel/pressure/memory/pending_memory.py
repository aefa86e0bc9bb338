"""Pods on their way out, and what they still hold: that counts as back, for as long as it is really coming (E2)."""

from collections import deque
from collections.abc import Callable

from evenkeel.api.config import Profile
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_figures import CgroupMemory
from evenkeel.pressure.targets import PodTarget

_STUCK_SECONDS = 1.0  # nothing came back for so long: it is not to be counted on
# For the agent's loop to empty volumes that hold memory: nothing comes back until it does.
_VOLUME_SECONDS = 3.0
_BACK_SHARE = 0.05  # of what it held may be left when the memory counts as back
_SOFT_SPARE_SECONDS = 2.0  # beyond its grace, until a pod that was asked to end should be gone


class _Departure:
    def __init__(self, member: PodTarget, version: Version, now: float) -> None:
        self.member = member
        self.since = now
        self.held_bytes = 0  # at first
        self.left_bytes = 0  # at the last look
        self.progress_at = now
        self.gone_at: float | None = None  # its cgroup is
        self.shmem_bytes = 0
        self.is_emptied = False  # its volumes in memory are
        self.is_back = False
        try:
            self.file: CgroupMemory | None = CgroupMemory(member.directory, version)
        except OSError:
            self.file = None

    def look(self, now: float, profile: Profile) -> None:
        before = self.left_bytes
        try:
            reading = self.file.read() if self.file is not None else None
        except OSError:
            reading = None
        if reading is not None:
            self.left_bytes = reading.working_set_bytes(profile)
            self.shmem_bytes = reading.shmem_bytes
        elif self.gone_at is None:
            self.close()
            self.gone_at = now
            # What lies in its volumes is now its parent's, until they are emptied.
            is_in_volumes = self.member.pod.spec.has_memory_volume and not self.is_emptied
            self.left_bytes = self.shmem_bytes if is_in_volumes else 0
        self.held_bytes = max(self.held_bytes, self.left_bytes)
        if self.left_bytes < before:
            self.progress_at = now

    @property
    def in_volumes_bytes(self) -> int:
        return min(self.shmem_bytes, self.left_bytes) if self.member.pod.spec.has_memory_volume else 0

    def returning_bytes(self, now: float) -> int:
        """Of what is left, what may be counted on: if the processes have not ended for so long nobody knows whether
        they ever will, and it is only what lies in volumes that the agent itself will give back."""
        since = now - (self.progress_at if self.gone_at is None else self.gone_at)
        if since > _VOLUME_SECONDS:
            return 0
        return self.left_bytes if since <= _STUCK_SECONDS else self.in_volumes_bytes

    def is_over(self, now: float) -> bool:
        if self.gone_at is None and now - self.progress_at <= _STUCK_SECONDS:
            return False
        return not self.returning_bytes(now)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class PendingMemory:
    """`on_back` is told of each that gave its memory back, with the bytes it held and the seconds it took."""

    def __init__(self, profile: Profile, on_back: Callable[[PodTarget, int, float], None]) -> None:
        self._profile = profile
        self._on_back = on_back
        self._killed: dict[str, _Departure] = {}
        self._asked: dict[str, float] = {}  # to end within their grace; and by when they should be gone
        self._over: set[str] = set()  # killed, not to be counted on any more, and still on the roster
        self._there: set[str] = set()  # on the roster
        self._emptied: deque[str] = deque()  # told by another thread
        # Part of what was last found returning: it is back only when volumes are emptied.
        self.in_volumes_bytes = 0

    def killed(self, member: PodTarget, version: Version, now: float) -> None:
        self._asked.pop(member.uid, None)
        self._there.add(member.uid)
        self._killed[member.uid] = departure = _Departure(member, version, now)
        departure.look(now, self._profile)

    def asked(self, uid: str, now: float, grace_seconds: float) -> None:
        self._asked[uid] = now + grace_seconds + _SOFT_SPARE_SECONDS

    def emptied(self, uid: str) -> None:
        """Its volumes in memory are. For any thread."""
        self._emptied.append(uid)

    def follow(self, uids: set[str]) -> None:
        """Those that are no longer there need not be remembered. One of them may come back later, and go again."""
        self._there = set(uids)
        self._over &= uids
        for uid in [uid for uid in self._asked if uid not in uids]:
            del self._asked[uid]

    @property
    def is_any_killed(self) -> bool:
        return bool(self._killed)

    def is_any(self, now: float) -> bool:
        """Whether somebody goes, killed or asked to."""
        return bool(self._killed) or self.is_any_asked(now)

    def uids(self) -> set[str]:
        """Who goes, or has gone."""
        return {*self._killed, *self._over, *self._asked}

    def no_candidates(self) -> set[str]:
        """Who was killed already, and cannot be killed more."""
        return {*self._killed, *self._over}

    def is_any_asked(self, now: float) -> bool:
        """Whether a pod was asked to end, and still has time to."""
        self._asked = {uid: by for uid, by in self._asked.items() if by > now}
        return bool(self._asked)

    def returning_bytes(self, now: float) -> int:
        """What those that were killed still hold."""
        while self._emptied:
            departure = self._killed.get(self._emptied.popleft())
            if departure is not None:
                departure.is_emptied = True
                if departure.gone_at is not None:
                    departure.left_bytes = 0
        total = 0
        self.in_volumes_bytes = 0
        for uid, departure in list(self._killed.items()):
            if departure.gone_at is None:
                departure.look(now, self._profile)
            if not departure.is_back and departure.left_bytes <= departure.held_bytes * _BACK_SHARE:
                departure.is_back = True
                self._on_back(departure.member, departure.held_bytes, now - departure.since)
            if departure.is_over(now):
                departure.close()
                if uid in self._there:
                    self._over.add(uid)
                del self._killed[uid]
            else:
                total += departure.returning_bytes(now)
                self.in_volumes_bytes += departure.in_volumes_bytes
        return total

    def close(self) -> None:
        for departure in self._killed.values():
            departure.close()
        self._killed.clear()
