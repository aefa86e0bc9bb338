"""From a pod's manifest to the filesystem of one of its containers. Runs in the agent, before a start."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.runtime import volumes
from evenkeel.runtime.mount_table import Mounted, is_below, other_ways, read_mounts
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.rootfs import PROC_SETTINGS, FilesystemSpec, Mount

_TERMINATION_MESSAGE_PATH = "/dev/termination-log"  # Kubernetes' own, where the manifest has none
# Kernel interfaces: root can change the machine through them wherever they are mounted.
_KERNEL_FILESYSTEMS = frozenset(
    ("cgroup", "cgroup2", "sysfs", "proc", "securityfs", "debugfs", "tracefs", "configfs", "bpf", "efivarfs", "pstore")
)  # fmt: skip


class Surroundings(NamedTuple):
    """Places on the host that containers must not reach as they are."""

    hidden: tuple[str, ...] = ()  # other ways to the state directory
    read_only: tuple[str, ...] = ()  # cgroups and the like, mounted elsewhere than in /sys
    proc_settings: tuple[str, ...] = PROC_SETTINGS


def surroundings(paths: StatePaths) -> Surroundings:
    """As /proc/self/mountinfo has them now. Once a pod is often enough."""
    mounts = read_mounts()
    hidden = tuple(path for path in other_ways(paths.root, mounts) if _is_directory(path))
    settings = tuple(name for name in PROC_SETTINGS if os.path.exists(f"/proc/{name}"))
    return Surroundings(hidden, kernel_mounts(paths.root, mounts), settings)


def filesystem_spec(
    pod: Pod,
    container: Container,
    attempt: int,
    paths: StatePaths,
    *,
    image_directory: str,  # of `images.Images.directory`; "" is the host
    around: Surroundings,
) -> FilesystemSpec:
    """Pure: the pod's volumes are where `volumes.prepare` puts them."""
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    mounts = tuple(
        Mount(
            source=volumes.source_path(pod, by_name[mount.name], paths),
            target=os.path.normpath(f"/{mount.mount_path.lstrip('/')}"),
            sub_path=mount.sub_path,
            is_read_only=mount.read_only,
            is_ours=by_name[mount.name].host_path is None,
        )
        for mount in container.volume_mounts
    )
    security = container.security_context
    return FilesystemSpec(
        state_directory=paths.root,
        attempt_directory=paths.attempt(pod.metadata.uid, container.name, attempt),
        image=image_directory,
        mounts=mounts,
        is_read_only=bool(security and security.read_only_root_filesystem),
        termination_message_path=container.termination_message_path or _TERMINATION_MESSAGE_PATH,
        proc_settings=around.proc_settings,
        hidden=around.hidden,
        read_only=around.read_only,
    )


def kernel_mounts(directory: str, mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Where kernel interfaces are mounted besides /sys and /proc. Pure."""
    points = (mount.point for mount in mounts if mount.kind in _KERNEL_FILESYSTEMS)
    return tuple(
        dict.fromkeys(
            point
            for point in points
            if not any(is_below(point, known) for known in ("/sys", "/proc", directory))
        )
    )


def _is_directory(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:
        return False
