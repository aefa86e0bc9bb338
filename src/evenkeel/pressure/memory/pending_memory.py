"""Pending memory: the memory that evicted pods still use. It counts as available while it is being freed (E2)."""

from collections import deque
from collections.abc import Callable, Mapping

from evenkeel.api.config import Profile
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_figures import CgroupMemory
from evenkeel.pressure.memory.cgroup_writes import is_populated
from evenkeel.pressure.targets import PodTarget

_STUCK_SECONDS = 1.0  # without any memory being freed: then it no longer counts as available
# Time for the agent's loop to empty volumes in memory. Their memory is not freed before that.
_VOLUME_SECONDS = 3.0
_BACK_SHARE = 0.05  # the memory of a pod counts as free when at most this share is left
# After the last process is gone, until the kernel has freed the queues of its sockets.
_QUEUES_SECONDS = 0.1
_SOFT_SPARE_SECONDS = 2.0  # after its grace period, until a pod that was asked to end should be gone


class _PendingPod:
    def __init__(self, target: PodTarget, version: Version, now: float, queue_bytes: int) -> None:
        self.target = target
        self.queue_bytes = queue_bytes  # in queues of sockets, which no cgroup has
        self.emptied_at: float | None = None  # when it had no process any more
        self.since = now
        self.held_bytes = 0  # the largest usage since the eviction
        self.left_bytes = 0  # at the last sample
        self.progress_at = now
        self.gone_at: float | None = None  # when its cgroup was found to be gone
        self.shmem_bytes = 0
        self.is_emptied = False  # its volumes in memory are empty
        self.is_back = False
        try:
            self.file: CgroupMemory | None = CgroupMemory(target.directory, version)
        except OSError:
            self.file = None

    def sample(self, now: float, profile: Profile) -> None:
        before = self.left_bytes
        try:
            reading = self.file.read() if self.file is not None else None
        except OSError:
            reading = None
        if self.queue_bytes:
            self._look_at_queues(now)
        if reading is not None:
            self.left_bytes = reading.working_set_bytes(profile) + self.queue_bytes
            self.shmem_bytes = reading.shmem_bytes
        elif self.gone_at is None:
            self.close()
            self.gone_at = now
            # The memory in its volumes now belongs to the parent cgroup, until the volumes are emptied.
            is_in_volumes = self.target.pod.spec.has_memory_volume and not self.is_emptied
            self.left_bytes = self.shmem_bytes if is_in_volumes else 0
            self.queue_bytes = 0
        self.held_bytes = max(self.held_bytes, self.left_bytes)
        if self.left_bytes < before:
            self.progress_at = now

    def _look_at_queues(self, now: float) -> None:
        """The kernel frees the queues of a killed process a moment after its sockets are closed."""
        if self.emptied_at is None:
            if is_populated(self.target.directory):
                return
            self.emptied_at = now
        if now - self.emptied_at > _QUEUES_SECONDS:
            self.queue_bytes = 0

    @property
    def in_volumes_bytes(self) -> int:
        return min(self.shmem_bytes, self.left_bytes) if self.target.pod.spec.has_memory_volume else 0

    def pending_bytes(self, now: float) -> int:
        """The bytes that count as available. If the pod has freed nothing for too long, its processes may never end.
        Then only its volumes in memory count, because the agent itself empties them."""
        since = now - (self.progress_at if self.gone_at is None else self.gone_at)
        if since > _VOLUME_SECONDS:
            return 0
        return self.left_bytes if since <= _STUCK_SECONDS else self.in_volumes_bytes

    def is_over(self, now: float) -> bool:
        if self.gone_at is None and now - self.progress_at <= _STUCK_SECONDS:
            return False
        return not self.pending_bytes(now)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class PendingMemory:
    """`on_back` is called for each pod whose memory is free. It gets the bytes that the pod used, and the seconds that
    the freeing took. For the thread of the memory watch; `emptied` is for any thread."""

    def __init__(self, profile: Profile, on_back: Callable[[PodTarget, int, float], None]) -> None:
        self._profile = profile
        self._on_back = on_back
        self._killed: dict[str, _PendingPod] = {}
        # pods asked to end in their grace period: when they should be gone
        self._asked: dict[str, float] = {}
        self._over: set[str] = set()  # killed pods that no longer count as pending, and are still targets
        self._there: set[str] = set()  # targets
        self._emptied: deque[str] = deque()  # filled by another thread
        # The part of the pending memory, as last computed, that is freed only when volumes are emptied.
        self.in_volumes_bytes = 0

    def killed(self, target: PodTarget, version: Version, now: float, queue_bytes: int = 0) -> None:
        self._asked.pop(target.uid, None)
        self._there.add(target.uid)
        self._killed[target.uid] = pod = _PendingPod(target, version, now, queue_bytes)
        pod.sample(now, self._profile)

    def evicted(self, target: PodTarget, version: Version, now: float, seconds: float) -> None:
        """A former watch has evicted the pod, which has so much time to end."""
        self.killed(target, version, now)
        if seconds > 0:
            self.asked(target.uid, now, seconds)

    def asked(self, uid: str, now: float, grace_seconds: float) -> None:
        self._asked[uid] = now + grace_seconds + _SOFT_SPARE_SECONDS

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are empty."""
        self._emptied.append(uid)

    def follow(self, uids: set[str]) -> None:
        """Sets the targets. All other pods are forgotten: a pod may come back later, and be evicted again."""
        self._there = set(uids)
        self._over &= uids
        for uid in [uid for uid in self._asked if uid not in uids]:
            del self._asked[uid]

    @property
    def is_any_killed(self) -> bool:
        return bool(self._killed)

    def is_any(self, now: float) -> bool:
        """Whether a pod was killed, or asked to end, and still uses memory."""
        return bool(self._killed) or self.is_any_asked(now)

    def uids(self) -> set[str]:
        """The pods that were evicted."""
        return {*self._killed, *self._over, *self._asked}

    def killed_uids(self) -> set[str]:
        """The pods that were killed. They are no longer candidates."""
        return {*self._killed, *self._over}

    def seconds_to_end(self, now: float) -> dict[str, float]:
        """By UID: the pods that were evicted, and the time that they have to end. A killed pod has none."""
        asked = {uid: by - now - _SOFT_SPARE_SECONDS for uid, by in self._asked.items()}
        return dict.fromkeys(self.killed_uids(), 0.0) | asked

    def not_freed(self, queues: Mapping[str, int]) -> dict[str, int]:
        """`queues` of sockets, in bytes by UID, without those of killed pods that are free by now."""
        left = {uid for uid, pod in self._killed.items() if pod.queue_bytes}
        freed = self.killed_uids() - left
        return {uid: held for uid, held in queues.items() if uid not in freed}

    def is_any_asked(self, now: float) -> bool:
        """Whether a pod was asked to end, and its time is not over."""
        self._asked = {uid: by for uid, by in self._asked.items() if by > now}
        return bool(self._asked)

    def pending_bytes(self, now: float) -> int:
        """The bytes that killed pods still use and that count as available."""
        while self._emptied:
            pod = self._killed.get(self._emptied.popleft())
            if pod is not None:
                pod.is_emptied = True
                if pod.gone_at is not None:
                    pod.left_bytes = 0
        total = 0
        self.in_volumes_bytes = 0
        for uid, pod in list(self._killed.items()):
            if pod.gone_at is None:
                pod.sample(now, self._profile)
            if not pod.is_back and pod.left_bytes <= pod.held_bytes * _BACK_SHARE:
                pod.is_back = True
                self._on_back(pod.target, pod.held_bytes, now - pod.since)
            if pod.is_over(now):
                pod.close()
                if uid in self._there:
                    self._over.add(uid)
                del self._killed[uid]
            else:
                total += pod.pending_bytes(now)
                self.in_volumes_bytes += pod.in_volumes_bytes
        return total

    def close(self) -> None:
        for pod in self._killed.values():
            pod.close()
        self._killed.clear()
