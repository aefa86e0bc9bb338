"""Usage: how much of a resource a pod uses, in total and part by part, and which storage limits it exceeds."""

from collections.abc import Collection, Iterator
from enum import StrEnum

from evenkeel.api.pod import Pod
from evenkeel.api.resources import EPHEMERAL_STORAGE, MEMORY
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    DiskFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    VolumeFigures,
)
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.quantity import Quantity


class Resource(StrEnum):
    """A resource that can run short. Memory and storage can be requested; inodes and processes cannot."""

    MEMORY = MEMORY
    STORAGE = EPHEMERAL_STORAGE
    INODES = "inodes"
    PIDS = "pids"


class DiskPart(StrEnum):
    ROOTFS = "rootfs"
    LOGS = "logs"
    VOLUMES = "volumes"


class Part(NamedTuple):
    """A container, one of its filesystems, a volume or the queues of sockets, and how much of the resource it uses."""

    name: str
    amount: int


SOCKET_QUEUES = "socket queues"  # the name of a container has no space
WHOLE_DISK = frozenset(DiskPart)
_NOTHING: frozenset[DiskPart] = frozenset()
_RESOURCES = {
    Signal.MEMORY_AVAILABLE: Resource.MEMORY,
    Signal.ALLOCATABLE_MEMORY_AVAILABLE: Resource.MEMORY,
    Signal.NODEFS_AVAILABLE: Resource.STORAGE,
    Signal.NODEFS_INODES_FREE: Resource.INODES,
    Signal.IMAGEFS_AVAILABLE: Resource.STORAGE,
    Signal.IMAGEFS_INODES_FREE: Resource.INODES,
    Signal.CONTAINERFS_AVAILABLE: Resource.STORAGE,
    Signal.CONTAINERFS_INODES_FREE: Resource.INODES,
    Signal.PID_AVAILABLE: Resource.PIDS,
}


def resource_of(signal: Signal) -> Resource:
    return _RESOURCES[signal]


def disk_parts(signal: Signal, node: NodeFigures) -> frozenset[DiskPart]:
    """The parts of a pod that are on the filesystem of `signal`. The eviction of a pod frees only these."""
    if resource_of(signal) not in (Resource.STORAGE, Resource.INODES):
        return _NOTHING
    filesystem = signal.partition(".")[0]
    if not node.dedicated_imagefs:
        return WHOLE_DISK
    if node.separate_containerfs:
        return _NOTHING if filesystem == "imagefs" else WHOLE_DISK
    if filesystem == "nodefs":
        return frozenset((DiskPart.LOGS, DiskPart.VOLUMES))
    return frozenset((DiskPart.ROOTFS,))


def usage(seen: PodSnapshot, resource: Resource, on_disk: Collection[DiskPart] = WHOLE_DISK) -> int | None:
    """How much of `resource` the pod uses; None if it was not measured."""
    stats = seen.stats
    if stats is None:
        return None
    if resource is Resource.MEMORY:  # first, because time is short under memory pressure
        return _memory(stats)
    if resource is Resource.PIDS:
        return stats.process_count
    return sum(part.amount for part in _disk(seen.pod, stats, resource, on_disk))


def usage_by_part(
    seen: PodSnapshot, resource: Resource, on_disk: Collection[DiskPart] = WHOLE_DISK
) -> tuple[Part, ...]:
    """The parts that use any of `resource`, largest first."""
    stats = seen.stats
    if stats is None or resource is Resource.PIDS:
        return ()
    if resource is Resource.MEMORY:
        parts = [Part(one.name, one.memory_working_set_bytes or 0) for one in stats.containers]
        parts.append(Part(SOCKET_QUEUES, stats.socket_queue_bytes or 0))
    else:
        parts = list(_disk(seen.pod, stats, resource, on_disk))
    return tuple(sorted((part for part in parts if part.amount), key=lambda part: -part.amount))


def local_volumes(pod: Pod) -> frozenset[str]:
    """The volumes on the disk of the node: those removed with the pod, and the host directories that it writes to."""
    return frozenset(
        volume.name for volume in pod.spec.volumes if volume.host_path is not None or volume.is_scratch
    )


def _memory(stats: PodFigures) -> int | None:
    queues = stats.socket_queue_bytes or 0
    if stats.memory_working_set_bytes is not None:
        return stats.memory_working_set_bytes + queues
    known = [one.memory_working_set_bytes for one in stats.containers]
    measured = [one for one in known if one is not None]
    return sum(measured) + queues if measured else None


def _disk(pod: Pod, stats: PodFigures, resource: Resource, on_disk: Collection[DiskPart]) -> Iterator[Part]:
    for container in stats.containers:
        if DiskPart.ROOTFS in on_disk:
            yield _part(container, "rootfs", container.rootfs, resource)
        if DiskPart.LOGS in on_disk:
            yield _part(container, "logs", container.logs, resource)
    if DiskPart.VOLUMES in on_disk and stats.volumes:
        local = local_volumes(pod)
        for volume in stats.volumes:
            if volume.name in local:
                yield Part(f"volume {volume.name}", _used(volume, resource))


def _part(container: ContainerFigures, name: str, disk: DiskFigures | None, resource: Resource) -> Part:
    return Part(f"{container.name} {name}", 0 if disk is None else _used(disk, resource))


def _used(disk: DiskFigures | VolumeFigures, resource: Resource) -> int:
    return (disk.inodes_used if resource is Resource.INODES else disk.used_bytes) or 0


# Storage limits


class LimitExceeded(NamedTuple):
    """A storage limit that is exceeded. `what` has the limit: a volume, a container, or all containers together."""

    what: str
    limit: str
    usage_bytes: int
    parts: tuple[Part, ...] = ()


def limit_exceeded(seen: PodSnapshot, node: NodeFigures) -> LimitExceeded | None:
    """The first storage limit that the pod exceeds, if any."""
    if seen.stats is None:
        return None
    return _empty_dir(seen) or _pod(seen) or _container(seen, node)


def _empty_dir(seen: PodSnapshot) -> LimitExceeded | None:
    assert seen.stats is not None
    used = {volume.name: volume.used_bytes for volume in seen.stats.volumes}
    for volume in seen.pod.spec.volumes:
        limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
        bytes_ = used.get(volume.name)
        if limit is not None and limit.sign > 0 and bytes_ is not None and Quantity.of(bytes_) > limit:
            return LimitExceeded(f"emptyDir volume {volume.name}", str(limit), bytes_)
    return None


def _pod(seen: PodSnapshot) -> LimitExceeded | None:
    assert seen.stats is not None
    limit = pod_limits(seen.pod).get(EPHEMERAL_STORAGE)
    if limit is None:
        return None
    measured: int | None = seen.stats.ephemeral_storage_used_bytes
    used = (usage(seen, Resource.STORAGE) or 0) if measured is None else measured
    if Quantity.of(used) <= limit:
        return None
    return LimitExceeded("all containers together", str(limit), used, usage_by_part(seen, Resource.STORAGE))


def _container(seen: PodSnapshot, node: NodeFigures) -> LimitExceeded | None:
    assert seen.stats is not None
    limits = {
        container.name: limit
        for container in seen.pod.spec.containers
        if (limit := container.resources.limits.get(EPHEMERAL_STORAGE)) and limit.value
    }
    for container in seen.stats.containers:
        limit = limits.get(container.name)
        parts = _parts(container, node)
        used = sum(part.amount for part in parts)
        if limit is not None and Quantity.of(used) > limit:
            return LimitExceeded(f"container {container.name}", str(limit), used, parts)
    return None


def _parts(container: ContainerFigures, node: NodeFigures) -> tuple[Part, ...]:
    logs = Part("logs", _bytes(container.logs))
    # As in kubelet, data on a separate image filesystem does not count against the limit.
    return (logs,) if node.dedicated_imagefs else (Part("rootfs", _bytes(container.rootfs)), logs)


def _bytes(disk: DiskFigures | None) -> int:
    return (disk.used_bytes if disk is not None else None) or 0
