"""Disk usage of each pod (B12): layers and logs of its containers, and its volumes, except volumes in memory.

A walk through directories is expensive. So a pod is walked when a decision needs it. Between decisions it is walked at
once only if it could have reached a limit of its own: the filesystem must have lost as many bytes as the pod has left.
Else it is walked now and then. A pod whose walk takes much of the CPU is walked more rarely. A pod can make its walk
expensive on purpose, so one that could have reached its limit waits less for it. A pod can also rename directories all
the time, so that a walk misses them. If it has a limit, or a decision waits, it is walked once more while it is frozen.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import EPHEMERAL_STORAGE
from evenkeel.api.scalars import Amount
from evenkeel.host.capacity import filesystem, processes
from evenkeel.host.disk_usage import Usage, Walk
from evenkeel.host.dying import pids_of
from evenkeel.host.unlinked_files import unlinked_usage
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    DiskFigures,
    FilesystemFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
    VolumeFigures,
)
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.pressure.targets import PodTarget
from evenkeel.runtime.interface import Directories

_SLICE_ENTRIES = 512  # takes some milliseconds
_NOTHING = Usage()
# Between two walks of a pod that has a limit.
_LEAST_SECONDS = 1.0
_MOST_SECONDS = 20.0
_COST_SHARE = 0.01  # share of a CPU for the walks of one pod
_SUSPECTS_SHARE = 0.1  # and for those of all pods together that could have reached a limit
# For which a pod is frozen at most while it is walked. If that was not enough, it is twice as long the next time.
_FROZEN_SECONDS, _LONGEST_FROZEN_SECONDS = 1.0, 2.0
_FROZEN_SHARE = 0.1  # of its time


class Measured(NamedTuple):
    """All figures that the disk watch can read."""

    node: NodeFigures
    pods: Mapping[str, PodFigures]  # by UID


class PodDisk(NamedTuple):
    """A pod's disk usage at its last walk."""

    layers: Mapping[str, Usage]  # by container
    logs: Mapping[str, Usage]
    volumes: Mapping[str, Usage]
    is_whole: bool  # False: the walk was not complete, so the pod uses more
    at: float
    cpu_seconds: float  # of the walk
    spent_bytes: int  # all bytes that the filesystem had lost until then
    missed: int = 0  # directories that were gone, or had another name, when the walk came to them

    @property
    def used_bytes(self) -> int:
        return sum(
            usage.used_bytes for part in (self.layers, self.logs, self.volumes) for usage in part.values()
        )

    def figures(self, before: PodFigures) -> PodFigures:
        """Returns `before` with the disk figures added."""
        names = dict.fromkeys((*(one.name for one in before.containers), *self.layers, *self.logs))
        known = {one.name: one for one in before.containers}
        containers = tuple(
            known.get(name, ContainerFigures(name))._replace(
                rootfs=_disk(self.layers.get(name, _NOTHING)), logs=_disk(self.logs.get(name, _NOTHING))
            )
            for name in names
        )
        volumes = tuple(
            VolumeFigures(name, Amount(used.used_bytes), Amount(used.inodes))
            for name, used in self.volumes.items()
        )
        return before._replace(containers=containers, volumes=volumes)


class Storage:
    """For one thread. `between` is called between two slices of a walk, so that more urgent work need not wait.
    `frozen` keeps a pod frozen until it is left, and yields whether it could."""

    def __init__(
        self,
        directories: Callable[[Pod], Directories],
        device: int,
        between: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        frozen: Callable[[PodTarget], AbstractContextManager[bool]] = lambda _: nullcontext(False),
    ) -> None:
        self._directories = directories
        self._device = device
        self._between = between
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._frozen = frozen
        self._not_frozen_before: dict[str, float] = {}  # by UID
        self._frozen_seconds: dict[str, float] = {}  # by UID: of the next time
        self._known: dict[str, PodDisk] = {}  # by UID
        self._limited: dict[str, tuple[PodTarget, int]] = {}  # by UID, with the nearest limit
        self._spent_bytes = 0
        self._available_before: int | None = None

    def saw(self, filesystem: FilesystemFigures) -> None:
        """Adds the bytes that the filesystem has lost since the last reading. Bytes that became free earlier are not
        subtracted."""
        available = filesystem.available_bytes
        if available is not None:
            if self._available_before is not None:
                self._spent_bytes += max(self._available_before - available, 0)
            self._available_before = available

    def follow(self, pods: Iterable[PodTarget]) -> None:
        current = {target.uid: target for target in pods}
        self._limited = {
            uid: (target, limit)
            for uid, target in current.items()
            if (limit := nearest_limit(target.pod)) is not None
        }
        for uid in [uid for uid in self._known if uid not in current]:
            # The bytes that it has freed may have hidden bytes that other pods used.
            self._spent_bytes += self._known.pop(uid).used_bytes
            self._not_frozen_before.pop(uid, None)
            self._frozen_seconds.pop(uid, None)

    @property
    def has_limits(self) -> bool:
        return bool(self._limited)

    def known(self, uid: str) -> PodDisk | None:
        return self._known.get(uid)

    def due(self, leaving_out: Collection[str] = ()) -> PodTarget | None:
        """The pod whose limits have to be checked now, or None. Of several it is the one that has waited longest, so
        that a few pods cannot keep the others from being checked."""
        first, earliest = None, self._clock()
        waiting = [one for uid, one in self._limited.items() if uid not in leaving_out]
        known = [(target, limit, self._known.get(target.uid)) for target, limit in waiting]
        suspects_seconds = sum(
            before.cpu_seconds
            for _, limit, before in known
            if before is not None and self._is_suspect(before, limit)
        )
        for target, limit, before in known:
            if before is None:
                return target
            rest = before.cpu_seconds / _COST_SHARE
            if self._is_suspect(before, limit):
                rest = max(_LEAST_SECONDS, min(rest, suspects_seconds / _SUSPECTS_SHARE))
            else:
                rest = max(_MOST_SECONDS, rest)
            if before.at + rest <= earliest:
                first, earliest = target, before.at + rest
        return first

    def _is_suspect(self, before: PodDisk, limit: int) -> bool:
        """Whether the pod could have reached its limit since: its usage cannot have grown by more than the filesystem
        has lost. One exception: between two readings, bytes freed by one pod can hide bytes used by another, all of
        them. So no pod is left alone for long."""
        return self._spent_bytes - before.spent_bytes >= limit - before.used_bytes

    def measure(self, target: PodTarget, until: float | None = None) -> PodDisk:
        """Walks the pod now. After `until` the walk stops, and the bytes counted so far are used. The former result is
        used instead if it is larger."""
        before = self._known.get(target.uid)
        disk = self._measured(target, until)
        # Whether it is a suspect does not matter here: what others freed may have hidden what it wrote.
        is_needed = target.uid in self._limited or until is not None
        if disk.missed and is_needed and self._clock() >= self._not_frozen_before.get(target.uid, 0.0):
            disk = self._measured_frozen(target, disk)
        if before is not None and disk.missed:
            # It may have hidden all that it wrote, so it stays under suspicion.
            disk = disk._replace(spent_bytes=before.spent_bytes)
        is_partial = not disk.is_whole or disk.missed > 0
        if is_partial and before is not None and before.used_bytes > disk.used_bytes:
            disk = before._replace(at=disk.at)
        self._known[target.uid] = disk
        return disk

    def _measured(self, target: PodTarget, until: float | None) -> PodDisk:
        began = self._cpu_clock()
        directories = self._directories(target.pod)
        is_whole, missed = True, 0
        found: list[dict[str, Usage]] = []
        for part in (directories.layers, directories.logs, directories.volumes):
            usages: dict[str, Usage] = {}
            for name, path in part:
                walk = self._walked(path, until)
                usages[name] = usages.get(name, _NOTHING).plus(walk.usage)
                is_whole &= walk.is_whole
                missed += walk.missed
            found.append(usages)
        layers, logs, volumes = found
        for name, directory in target.containers:
            held = self._unlinked(directory)
            if held.inodes:
                layers[name] = layers.get(name, _NOTHING).plus(held)
        used = self._cpu_clock() - began
        return PodDisk(layers, logs, volumes, is_whole, self._clock(), used, self._spent_bytes, missed)

    def _measured_frozen(self, target: PodTarget, disk: PodDisk) -> PodDisk:
        """Walks the pod while it is frozen. The first processes to be frozen may wait for the last ones, so it is
        walked again as long as something is missed. Returns `disk` if the pod cannot be frozen, or if a walk found no
        more than that."""
        seconds = self._frozen_seconds.get(target.uid, _FROZEN_SECONDS)
        is_enough = False
        with self._frozen(target) as is_frozen:
            began = now = self._clock()
            while is_frozen and not is_enough and now < began + seconds:
                found = self._measured(target, began + seconds)
                now = found.at
                is_enough = found.is_whole and not found.missed
                if is_enough or found.used_bytes > disk.used_bytes:
                    disk = found._replace(cpu_seconds=found.cpu_seconds + disk.cpu_seconds)
        longer = seconds if is_enough else min(2 * seconds, _LONGEST_FROZEN_SECONDS)
        self._frozen_seconds[target.uid] = longer
        self._not_frozen_before[target.uid] = now + (now - began) / _FROZEN_SHARE
        return disk

    def _walked(self, path: str, until: float | None) -> Walk:
        """The walk, which is closed."""
        walk = Walk(path)
        try:
            while not walk.is_done:
                walk.advance(_SLICE_ENTRIES)
                if not walk.is_done:
                    self._between()
                    if until is not None and self._clock() > until:
                        walk.is_whole = False
                        break
        finally:
            walk.close()
        return walk

    def _unlinked(self, directory: str) -> Usage:
        pids = pids_of(directory)
        if not pids:
            return _NOTHING
        return unlinked_usage(pids, {self._device}, between=self._between)


def nearest_limit(pod: Pod) -> int | None:
    """The smallest limit on the pod's disk, or None if it has no limit."""
    limits = [
        volume.empty_dir.size_limit.value
        for volume in pod.spec.volumes
        if volume.empty_dir is not None and not volume.empty_dir.medium and volume.empty_dir.size_limit
    ]
    limits += [
        limit.value
        for container in pod.spec.containers
        if (limit := container.resources.limits.get(EPHEMERAL_STORAGE))
    ]
    whole = pod_limits(pod).get(EPHEMERAL_STORAGE)
    if whole is not None:
        limits.append(whole.value)
    return min((limit for limit in limits if limit > 0), default=None)


def _disk(usage: Usage) -> DiskFigures:
    return DiskFigures(Amount(usage.used_bytes), Amount(usage.inodes))


class DiskTargets(NamedTuple):
    """The pods that the disk watch watches. It is never changed: a new one replaces it."""

    path: str = ""  # of the pods' cgroup
    pods: tuple[PodTarget, ...] = ()
    pids_top: str = ""  # prefix of cgroup paths in the hierarchy that has pids.current


class NodeReading:
    """Reads the node's figures. `most_processes` is the configured maximum, which may be less than the machine's."""

    def __init__(self, storage_path: str, images_path: str, most_processes: int, profile: Profile) -> None:
        self._targets = DiskTargets()
        self._storage_path = storage_path
        self._images_path = images_path
        self._most_processes = most_processes
        self._profile = profile

    def follow(self, targets: DiskTargets) -> None:
        self._targets = targets

    def read(self) -> NodeFigures:
        nodefs = filesystem(self._storage_path)
        node = NodeFigures(nodefs=nodefs, processes=self.processes())
        try:
            is_apart = os.stat(self._images_path).st_dev != os.stat(self._storage_path).st_dev
        except OSError:
            is_apart = False
        if is_apart:  # only images are on that filesystem; layers are with the pods
            return node._replace(
                imagefs=filesystem(self._images_path),
                containerfs=nodefs,
                dedicated_imagefs=True,
                separate_containerfs=True,
            )
        # As in kubelet, the thresholds of the imagefs also apply if there is only one filesystem.
        return node._replace(imagefs=nodefs) if self._profile is Profile.KUBERNETES else node

    def processes(self) -> ProcessFigures:
        """The machine's processes. If the node is configured with fewer than the machine has, and fewer of those are
        left, the pods' processes are returned instead."""
        machine = processes()
        if machine.maximum is None or self._most_processes >= machine.maximum:
            return machine
        used = self.process_count(self._targets.path)
        left = machine.maximum - (machine.running or 0)
        if used is None or self._most_processes - used > left:
            return machine
        return ProcessFigures(Amount(self._most_processes), Amount(used))

    def process_count(self, path: str) -> int | None:
        """The processes in this cgroup and below it. None if the cgroup is gone, or has no counter."""
        if not self._targets.pids_top or not path:
            return None
        try:
            with open(f"{self._targets.pids_top}{path}/pids.current", "rb", buffering=0) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def pod(self, target: PodTarget) -> PodFigures:
        """The pod's process count. `Storage` has its disk usage."""
        count = self.process_count(target.path)
        return PodFigures(process_count=None if count is None else Amount(count))
