"""The pods that a watch has to know, and where their figures are.

The agent's loop makes them whenever the cgroup tree has changed, and hands them to a watch whole. They never change.
"""

from typing import NamedTuple

from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Cgroup, Kind, Tree, Version
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.pod_resources import eviction_request
from evenkeel.pressure.protocol import PodRecords

MEMORY_SIGNALS = (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE)  # the others are disk's


class PodTarget(NamedTuple):
    uid: str
    pod: Pod
    path: str  # of its cgroup, as planned
    directory: str  # of its memory files
    containers: tuple[tuple[str, str], ...]  # name and directory
    min_bytes: int = 0  # memory.min
    request_bytes: int = 0
    # Class and priority: within one group, usage over request decides the rank.
    group: tuple[str, int] = ("", 0)


class WatchTargets(NamedTuple):
    version: Version = Version.V2
    path: str = ""  # of the pods' cgroup; empty where there is none
    directory: str = ""
    limit_bytes: int = 0
    pods: tuple[PodTarget, ...] = ()


def watch_targets(tree: Tree, records: PodRecords, driver: Driver, limit_bytes: int | None) -> WatchTargets:
    root = next((cgroup for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), None)
    directory = driver.files(root.path).get("memory", "") if root is not None else ""
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
            parts = tuple(containers.get(cgroup.pod, ()))
            request = eviction_request(record.pod, MEMORY).value
            pods.append(
                PodTarget(
                    record.pod.metadata.uid,
                    record.pod,
                    cgroup.path,
                    top + cgroup.path,
                    parts,
                    _min_bytes(cgroup),
                    request,
                    (cgroup.qos, record.pod.spec.priority or 0),
                )
            )
    return WatchTargets(tree.version, root.path, directory, limit_bytes or 0, tuple(pods))


def _min_bytes(cgroup: Cgroup) -> int:
    value = cgroup.value("memory.min")
    return int(value) if value is not None and value.isdecimal() else 0
