"""Pods, their figures and nodes for the tests of eviction, in few words."""

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.resources import ResourceRequirements
from evenkeel.api.volume_types import EmptyDirVolumeSource, HostPathVolumeSource, Volume
from evenkeel.policy.eviction.decide import EVICTED, Eviction
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    DiskFigures,
    FilesystemFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    ProcessFigures,
    VolumeFigures,
)
from evenkeel.policy.lifecycle.pod_state import PodState, TerminalStatus
from evenkeel.policy.lifecycle.pod_status import pod_status
from evenkeel.quantity import Quantity

MI = 1024**2
GI = 1024**3
CRITICAL = 2_000_000_000


def amounts(**texts):
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def seen(
    name,
    memory=None,
    *,
    requests=None,
    limits=None,
    priority=None,
    created=None,
    annotations=None,
    rootfs=None,
    logs=None,
    processes=None,
    volumes=None,
    measured=True,
    **spec,
):
    """A pod of one container and what it uses: `memory`, `rootfs`, `logs` in MiB, volumes as {name: MiB}."""
    resources = ResourceRequirements(amounts(**(requests or {})), amounts(**(limits or {})))
    pod = Pod(
        ObjectMeta(name=name, uid=name, creation_timestamp=created, annotations=annotations or {}),
        PodSpec(
            containers=(Container(name="app", resources=resources),),
            priority=priority,
            volumes=tuple(
                Volume(
                    volume,
                    EmptyDirVolumeSource() if volume != "host" else None,
                    HostPathVolumeSource("/data") if volume == "host" else None,
                )
                for volume in volumes or {}
            ),
            **spec,
        ),
    )
    if not measured:
        return PodSnapshot(pod, None)
    bytes_ = None if memory is None else memory * MI
    container = ContainerFigures("app", bytes_, disk(rootfs), disk(logs))
    figures = tuple(VolumeFigures(volume, used * MI, used) for volume, used in (volumes or {}).items())
    return PodSnapshot(pod, PodFigures(bytes_, None, processes, (container,), figures))


def disk(mebibytes):
    return None if mebibytes is None else DiskFigures(mebibytes * MI, mebibytes)


def best_effort(name, memory=None, **more):
    return seen(name, memory, **more)


def burstable(name, memory, request, **more):
    return seen(name, memory, requests={"memory": f"{request}Mi"}, **more)


def guaranteed(name, memory, request, **more):
    both = {"cpu": "1", "memory": f"{request}Mi"}
    return seen(name, memory, requests=both, limits=both, **more)


def node(available, capacity=16 * 1024, *, pods=None, pods_left=4096, processes=None, nodefs=None, **more):
    """A node by its memory in MiB: `available` of `capacity`; the pods' cgroup uses `pods` of itself."""
    return NodeFigures(
        memory=MemoryFigures(available * MI, (capacity - available) * MI),
        pods_cgroup_memory=None if pods is None else MemoryFigures(pods_left * MI, pods * MI),
        processes=None if processes is None else ProcessFigures(*processes),
        nodefs=None if nodefs is None else filesystem(*nodefs),
        **more,
    )


def filesystem(available, capacity, inodes_free=1000, inodes=1000):
    return FilesystemFigures(available * MI, capacity * MI, inodes_free, inodes)


def evicted_status(eviction: Eviction, at: float = 0.0):
    """The status of the pod after its eviction, as the agent reports it."""
    terminal = TerminalStatus("Failed", EVICTED, eviction.message, at, is_disruption=eviction.is_disruption)
    return pod_status(eviction.pod, PodState(accepted_at=1.0, verdict=terminal), Profile.DOCUMENTS)


def disruptions(status):
    return [one for one in status.conditions if one.type == "DisruptionTarget"]
