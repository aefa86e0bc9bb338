"""The snapshot: every figure that an eviction decision reads, taken at one time.

A decision is a function of a snapshot, so that it can be tested, tried out (`evenkeel evict --dry-run`) and replayed.
`None` means "not known", which is not zero: a pod without figures may use a lot.
"""

from operator import attrgetter

from evenkeel.api.pod import Pod
from evenkeel.api.scalars import Amount
from evenkeel.named_tuples import NamedTuple


class MemoryFigures(NamedTuple):
    """The working set (memory in use without droppable cache) and what is left. Together they are the capacity."""

    available_bytes: Amount | None = None
    working_set_bytes: Amount | None = None


class FilesystemFigures(NamedTuple):
    available_bytes: Amount | None = None
    capacity_bytes: Amount | None = None
    inodes_free: Amount | None = None
    inodes: Amount | None = None


class ProcessFigures(NamedTuple):
    maximum: Amount | None = None
    running: Amount | None = None


class NodeFigures(NamedTuple):
    """`pods_cgroup_memory` is the memory of the cgroup that holds all pods (B8).

    `imagefs` holds the images and the writable layers of containers. `containerfs` holds the layers if they are on
    another filesystem; if it is None, they are on the imagefs. The two flags say which filesystem has its own device.
    """

    memory: MemoryFigures | None = None
    pods_cgroup_memory: MemoryFigures | None = None
    nodefs: FilesystemFigures | None = None
    imagefs: FilesystemFigures | None = None
    containerfs: FilesystemFigures | None = None
    processes: ProcessFigures | None = None
    dedicated_imagefs: bool = False
    separate_containerfs: bool = False


class DiskFigures(NamedTuple):
    used_bytes: Amount | None = None
    inodes_used: Amount | None = None


class ContainerFigures(NamedTuple):
    name: str = ""
    memory_working_set_bytes: Amount | None = None
    rootfs: DiskFigures | None = None
    logs: DiskFigures | None = None


class VolumeFigures(NamedTuple):
    name: str = ""
    used_bytes: Amount | None = None
    inodes_used: Amount | None = None


class PodFigures(NamedTuple):
    """`socket_queue_bytes` is memory beside the working set: what waits in queues of the pod's sockets and is charged
    to no cgroup."""

    memory_working_set_bytes: Amount | None = None
    ephemeral_storage_used_bytes: Amount | None = None
    process_count: Amount | None = None
    containers: tuple[ContainerFigures, ...] = ()
    volumes: tuple[VolumeFigures, ...] = ()
    socket_queue_bytes: Amount | None = None


class PodSnapshot(NamedTuple):
    pod: Pod = Pod()
    stats: PodFigures | None = None


class Snapshot(NamedTuple):
    """`time_seconds` must only grow: only the time between two snapshots counts."""

    time_seconds: float = 0.0
    node: NodeFigures = NodeFigures()
    pods: tuple[PodSnapshot, ...] = ()


def active(snapshot: Snapshot) -> Snapshot:
    """`snapshot` without the pods that have ended. Their eviction would free nothing."""
    if _ENDED.isdisjoint(map(_phase, snapshot.pods)):
        return snapshot
    return snapshot._replace(
        pods=tuple(seen for seen in snapshot.pods if seen.pod.status.phase not in _ENDED)
    )


_ENDED = frozenset(("Succeeded", "Failed"))
_phase = attrgetter("pod.status.phase")  # hundreds of pods, at the moment when time is short
