"""Pods above their own storage limits (B12).

Disk quotas are not hierarchical and not everywhere, so these limits are held by eviction. It concerns
nobody but the pod itself: it does not wait for a shortage, and every such pod goes.
"""

from typing import NamedTuple

from evenkeel.api.resources import EPHEMERAL_STORAGE
from evenkeel.policy.eviction.snapshot import ContainerFigures, DiskFigures, NodeFigures, PodSnapshot
from evenkeel.policy.eviction.usage import Part, Resource, usage, usage_by_part
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.quantity import Quantity


class LimitExceeded(NamedTuple):
    """`what` has the limit: a volume, a container, or the pod's containers together."""

    what: str
    limit: str
    usage_bytes: int
    parts: tuple[Part, ...] = ()


def limit_exceeded(seen: PodSnapshot, node: NodeFigures) -> LimitExceeded | None:
    """The first storage limit that the pod is above, if any."""
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
    # What lies on a filesystem for images is not held against the limit, as kubelet does.
    return (logs,) if node.dedicated_imagefs else (Part("rootfs", _bytes(container.rootfs)), logs)


def _bytes(disk: DiskFigures | None) -> int:
    return (disk.used_bytes if disk is not None else None) or 0
