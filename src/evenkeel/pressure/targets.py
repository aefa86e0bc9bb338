"""Targets: the pods that a watch may evict, with the paths of their figures.

The agent gives a watch a new set whenever its cgroup tree has changed. A watch touches nothing but its targets.
"""

from typing import TYPE_CHECKING

from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup.tree import Cgroup, Kind, Tree, Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.pod_resources import eviction_request

if TYPE_CHECKING:  # the process of the memory watch needs neither
    from evenkeel.cgroup.driver import Driver
    from evenkeel.pressure.protocol import PodRecords

# all other signals belong to the disk watch
MEMORY_SIGNALS = (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE)


class PodTarget(NamedTuple):
    uid: str
    pod: Pod
    path: str  # of its cgroup, as planned
    directory: str  # of its memory files
    containers: tuple[tuple[str, str], ...]  # name and directory
    min_bytes: int = 0  # memory.min
    request_bytes: int = 0
    # Class and priority. Within one group, the usage above the request decides the rank.
    group: tuple[str, int] = ("", 0)
    high: str = ""  # the planned memory.high; empty if it has none, and on v1
    # Seconds since the epoch. It has its terminal status, so its memory will be free by then. None: it has none.
    ends_by: float | None = None


class WatchTargets(NamedTuple):
    version: Version = Version.V2
    path: str = ""  # of the pods' cgroup; empty if there is none
    directory: str = ""
    limit_bytes: int = 0
    pods: tuple[PodTarget, ...] = ()
    # v1: where the hierarchies are mounted that can kill and freeze; empty if there is none
    unified_mount: str = ""
    freezer_mount: str = ""


def watch_targets(
    tree: Tree, records: "PodRecords", driver: "Driver", limit_bytes: int | None
) -> WatchTargets:
    root = next((cgroup for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), None)
    files = driver.files(root.path) if root is not None else {}
    directory = files.get("memory", "")
    if root is None or not directory:
        return WatchTargets(tree.version)
    top = directory.removesuffix(root.path)
    containers: dict[str, list[tuple[str, str]]] = {}
    for cgroup in tree.cgroups:
        if cgroup.kind == Kind.CONTAINER:
            containers.setdefault(cgroup.pod, []).append((cgroup.container, top + cgroup.path))
    pods = []
    for cgroup in tree.cgroups:
        record = records.by_key(cgroup.pod) if cgroup.kind == Kind.POD else None
        if record is not None:
            pods.append(
                PodTarget(
                    record.pod.metadata.uid,
                    record.pod,
                    cgroup.path,
                    top + cgroup.path,
                    tuple(containers.get(cgroup.pod, ())),
                    _min_bytes(cgroup),
                    eviction_request(record.pod, MEMORY).value,
                    (cgroup.qos, record.pod.spec.priority or 0),
                    (cgroup.value("memory.high") or "max") if tree.version == Version.V2 else "",
                    None if (verdict := record.state.verdict) is None else verdict.at + verdict.grace_seconds,
                )
            )
    mounts = {key: files[key].removesuffix(root.path) for key in ("unified", "freezer") if key in files}
    is_v1 = tree.version == Version.V1
    return WatchTargets(
        tree.version,
        root.path,
        directory,
        limit_bytes or 0,
        tuple(pods),
        mounts.get("unified", "") if is_v1 else "",
        mounts.get("freezer", "") if is_v1 else "",
    )


def _min_bytes(cgroup: Cgroup) -> int:
    value = cgroup.value("memory.min")
    return int(value) if value is not None and value.isdecimal() else 0
