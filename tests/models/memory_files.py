"""Memory files of cgroups with a kernel's own text, and the pods that they belong to."""

import os
from pathlib import Path

from evenkeel.api.pod import Pod
from evenkeel.api.volume_types import EmptyDirVolumeSource, Volume
from evenkeel.cgroup.tree import Version
from evenkeel.pressure.targets import PodTarget, WatchTargets

MIB = 2**20
_FILE_BYTES = 512  # all files have the same length
PODS = """
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "batch", "uid": "u-batch"},
 "spec": {"containers": [{"name": "main", "image": "host", "command": ["x"]}]}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u-web"},
 "spec": {"containers": [{"name": "main", "image": "host", "command": ["x"],
   "resources": {"requests": {"memory": "64Mi"}}}]}}
"""


def write_v2_memory(directory: Path, usage: int, **stat: int) -> Path:
    """A cgroup's files, amounts in MiB."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "memory.current", f"{usage * MIB}\n")
    names = (
        "anon",
        "file",
        "shmem",
        "file_dirty",
        "file_writeback",
        "inactive_file",
        "active_file",
        "slab_reclaimable",
    )
    lines = "".join(f"{name} {stat.get(name, 0) * MIB}\n" for name in names)
    _write(directory / "memory.stat", lines)
    return directory


def write_v1_memory(directory: Path, usage: int, **stat: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "memory.usage_in_bytes", f"{usage * MIB}\n")
    names = (
        "cache",
        "dirty",
        "total_dirty",
        "total_writeback",
        "total_shmem",
        "total_inactive_file",
        "total_active_file",
    )
    _write(directory / "memory.stat", "".join(f"{name} {stat.get(name, 0) * MIB}\n" for name in names))
    return directory


def _write(file: Path, text: str) -> None:
    """Overwrites the file in one write, so a reader finds the old figures or the new ones, as in a kernel's file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.ljust(_FILE_BYTES, "\n").encode())
    finally:
        os.close(descriptor)


def targets_in(tmp_path: Path, limit_mib: int, *pods: tuple[Pod, int]) -> WatchTargets:
    targets = tuple(
        PodTarget(
            pod.metadata.uid, pod, f"/k/{pod.metadata.uid}", str(tmp_path / pod.metadata.uid), (), least * MIB
        )
        for pod, least in pods
    )
    return WatchTargets(Version.V2, "/k", str(tmp_path / "root"), limit_mib * MIB, targets)


def with_memory_volume(pod: Pod) -> Pod:
    volume = Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="Memory"))
    return pod._replace(spec=pod.spec._replace(volumes=(volume,)))


class IgnoredReports:
    """Takes every report and every request of a guard, and does nothing."""

    is_heard = True

    def __getattr__(self, name: str):
        return lambda *_: None
