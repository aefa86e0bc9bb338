"""Writes of the memory watch to the cgroups of its targets: kill, freeze, throttle, reclaim.

The watch has no cgroup driver. The agent's driver has checked the paths of the targets, and the files below them have
fixed names. A write never creates a file and follows no link.
"""

import os
import signal
from contextlib import suppress

from evenkeel.cgroup.tree import Version
from evenkeel.host.dying import pids_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.targets import PodTarget, WatchTargets

HIGH = "memory.high"
AGENT = "agent"  # the agent's own cgroup, beside the pods' cgroup (`agent.node.own_cgroup`)
STANDBY = "standby"  # an empty cgroup in that, in the freezer hierarchy of v1 (`freezer.Standby`)


class FreezeFile(NamedTuple):
    file: str
    frozen: bytes
    thawed: bytes


def open_file(file: str) -> int:
    """Opens the file for writing, and returns its descriptor. Raises OSError; the cgroup may be gone."""
    return os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def write_file(file: str, value: bytes) -> None:
    """Raises OSError; the cgroup may be gone."""
    descriptor = open_file(file)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)


def freeze_file(targets: WatchTargets, target: PodTarget) -> FreezeFile | None:
    """None if the machine cannot freeze cgroups."""
    if targets.version == Version.V2:
        return FreezeFile(f"{target.directory}/cgroup.freeze", b"1", b"0")
    if not targets.freezer_mount:
        return None
    return FreezeFile(f"{targets.freezer_mount}{target.path}/freezer.state", b"FROZEN", b"THAWED")


def standby_file(targets: WatchTargets) -> FreezeFile | None:
    """None on v2, and if the machine cannot freeze cgroups. The file may not exist."""
    if targets.version != Version.V1 or not targets.freezer_mount or not targets.path:
        return None
    above = f"{targets.freezer_mount}{os.path.dirname(targets.path)}"
    return FreezeFile(f"{above}/{AGENT}/{STANDBY}/freezer.state", b"FROZEN", b"THAWED")


def high_file(target: PodTarget) -> str:
    """Empty on cgroup v1, which has no such file."""
    return f"{target.directory}/{HIGH}" if target.high else ""


def reclaim_write(version: Version, target: PodTarget, amount_bytes: int) -> tuple[str, bytes]:
    """The file and the value that make the kernel reclaim memory of the pod."""
    if version == Version.V2:
        return f"{target.directory}/memory.reclaim", str(amount_bytes).encode()
    return f"{target.directory}/memory.force_empty", b"0"


def is_populated(directory: str) -> bool:
    """Whether a process is in the cgroup at `directory` or below it."""
    return bool(_pids_below(directory))


def send_kill(targets: WatchTargets, target: PodTarget) -> None:
    """Sends SIGKILL to every process of the pod, and returns at once. On a hybrid host the unified hierarchy kills its
    processes in one step. Processes that a container runtime left out of it are found in the memory hierarchy."""
    is_v2 = targets.version == Version.V2
    directory = target.directory if is_v2 else f"{targets.unified_mount}{target.path}"
    if is_v2 or targets.unified_mount:
        try:
            write_file(f"{directory}/cgroup.kill", b"1")
        except OSError:
            pass  # the cgroup is gone, or the kernel is older than 5.14
        else:
            if is_v2:
                return
    for pid in _pids_below(target.directory):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def ask_to_end(target: PodTarget) -> None:
    """Sends SIGTERM to the first process of each container: the one whose parent is not in the container."""
    for _, directory in target.containers:
        pids = _pids_below(directory)
        for pid in pids:
            with suppress(OSError):  # the process is gone
                if _parent(pid) not in pids:
                    os.kill(pid, signal.SIGTERM)


def _parent(pid: int) -> int:
    """Raises OSError if there is no such process."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def _pids_below(directory: str) -> list[int]:
    pids = pids_of(directory)
    try:
        children = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return pids
    for child in children:
        pids += _pids_below(child)
    return pids
