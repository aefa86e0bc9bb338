"""Memory files of cgroups with a kernel's own text, and the pods whose they are."""

from pathlib import Path

from evenkeel.api.pod import EmptyDirVolumeSource, Pod, Volume
from evenkeel.cgroup.tree import Version
from evenkeel.pressure.targets import PodTarget, WatchTargets

MIB = 2**20
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
    (directory / "memory.current").write_text(f"{usage * MIB}\n")
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
    (directory / "memory.stat").write_text(lines)
    return directory


def write_v1_memory(directory: Path, usage: int, **stat: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.usage_in_bytes").write_text(f"{usage * MIB}\n")
    names = (
        "cache",
        "dirty",
        "total_dirty",
        "total_writeback",
        "total_shmem",
        "total_inactive_file",
        "total_active_file",
    )
    (directory / "memory.stat").write_text("".join(f"{name} {stat.get(name, 0) * MIB}\n" for name in names))
    return directory


def targets_in(tmp_path: Path, limit_mib: int, *pods: tuple[Pod, int]) -> WatchTargets:
    pods = tuple(
        PodTarget(
            pod.metadata.uid, pod, f"/k/{pod.metadata.uid}", str(tmp_path / pod.metadata.uid), (), least * MIB
        )
        for pod, least in pods
    )
    return WatchTargets(Version.V2, "/k", str(tmp_path / "root"), limit_mib * MIB, pods)


def with_memory_volume(pod: Pod) -> Pod:
    volume = Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="Memory"))
    return pod._replace(spec=pod.spec._replace(volumes=(volume,)))


class IgnoredReports:
    """Whom nobody asks. As a guard, it holds nobody."""

    is_heard = True

    def __getattr__(self, name: str):
        return lambda *_: None
