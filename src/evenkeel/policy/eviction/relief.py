"""What would be given back if a pod went."""

from evenkeel.api.amount import Amount
from evenkeel.policy.eviction.snapshot import (
    FilesystemFigures,
    MemoryFigures,
    PodSnapshot,
    ProcessFigures,
    Snapshot,
)
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.eviction.usage import disk_parts, resource_of, usage


def freed(seen: PodSnapshot, signal: Signal, snapshot: Snapshot) -> int:
    """How much more there would be of what `signal` counts."""
    return usage(_owned(seen), resource_of(signal), disk_parts(signal, snapshot.node)) or 0


def without(snapshot: Snapshot, seen: PodSnapshot) -> Snapshot:
    """`snapshot` as it would be if the pod had ended and nothing else had changed."""
    node = snapshot.node
    memory = freed(seen, Signal.MEMORY_AVAILABLE, snapshot)
    return snapshot._replace(
        pods=tuple(other for other in snapshot.pods if other is not seen),
        node=node._replace(
            memory=_memory(node.memory, memory),
            pods_cgroup_memory=_memory(node.pods_cgroup_memory, memory),
            processes=_processes(node.processes, freed(seen, Signal.PID_AVAILABLE, snapshot)),
            nodefs=_filesystem(
                node.nodefs,
                freed(seen, Signal.NODEFS_AVAILABLE, snapshot),
                freed(seen, Signal.NODEFS_INODES_FREE, snapshot),
            ),
            imagefs=_filesystem(
                node.imagefs,
                freed(seen, Signal.IMAGEFS_AVAILABLE, snapshot),
                freed(seen, Signal.IMAGEFS_INODES_FREE, snapshot),
            ),
            containerfs=_filesystem(
                node.containerfs,
                freed(seen, Signal.CONTAINERFS_AVAILABLE, snapshot),
                freed(seen, Signal.CONTAINERFS_INODES_FREE, snapshot),
            ),
        ),
    )


def _owned(seen: PodSnapshot) -> PodSnapshot:
    """The pod without the node's own directories that it mounts: these stay when it goes."""
    if seen.stats is None:
        return seen
    kept = {volume.name for volume in seen.pod.spec.volumes if volume.host_path is not None}
    volumes = tuple(volume for volume in seen.stats.volumes if volume.name not in kept)
    return seen._replace(stats=seen.stats._replace(volumes=volumes))


def _memory(figures: MemoryFigures | None, freed_bytes: int) -> MemoryFigures | None:
    if figures is None or figures.available_bytes is None or figures.working_set_bytes is None:
        return figures
    given = min(freed_bytes, figures.working_set_bytes)
    return MemoryFigures(Amount(figures.available_bytes + given), Amount(figures.working_set_bytes - given))


def _processes(figures: ProcessFigures | None, ended: int) -> ProcessFigures | None:
    if figures is None or figures.running is None:
        return figures
    return figures._replace(running=Amount(max(figures.running - ended, 0)))


def _filesystem(
    figures: FilesystemFigures | None, freed_bytes: int, freed_inodes: int
) -> FilesystemFigures | None:
    if figures is None:
        return None
    return figures._replace(
        available_bytes=_raised(figures.available_bytes, freed_bytes, figures.capacity_bytes),
        inodes_free=_raised(figures.inodes_free, freed_inodes, figures.inodes),
    )


def _raised(amount: Amount | None, by: int, most: Amount | None) -> Amount | None:
    if amount is None:
        return None
    raised = amount + by
    return Amount(raised if most is None else max(min(raised, most), amount))
