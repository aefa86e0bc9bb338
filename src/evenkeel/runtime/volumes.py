"""The volumes of a pod on the host: made before its first container starts, removed when the pod is gone.

All functions block, except `refusal`, `memory_volume_bytes` and `source_path`, which do no I/O.
"""

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from evenkeel.api.claims import claim_name
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.api.volume_types import IN_MEMORY, Volume
from evenkeel.errors import reason
from evenkeel.host.files import write_own
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.quantity import ZERO
from evenkeel.runtime import network_files, volume_content
from evenkeel.runtime.memory_mounts import VolumeRefused, mount_in_memory, unmount_memory
from evenkeel.runtime.paths import StatePaths, checked, is_uid, make_directory, names_in
from evenkeel.runtime.start_errors import DataMissing, NoValue
from evenkeel.runtime.tree_removal import Resists, remove_tree
from evenkeel.runtime.volume_content import files_refusal, volume_files

__all__ = (
    "VolumeRefused",
    "make_pod_directories",
    "memory_volume_bytes",
    "pods",
    "prepare",
    "problems",
    "remove",
    "remove_claim",
    "remove_logs",
    "rewrite_hosts",
    "write_network_file",
)

_GROUP_MODE = stat.S_ISGID | stat.S_IRWXG
_VOLUME_MODE = 0o777  # any user that a container runs as may write there
_MEMORY_MODE = 0o1777  # as kubelet's: that of a tmpfs, where a user removes only what is its own
_MOST_NETWORK_CHARACTERS = 1 << 20
_GONE = ".gone-"  # of the directory of a deleted claim, while it is being removed
_DATA_MODE = 0o755  # of volumes whose files the agent writes
_FILE_MODE = 0o644
_DEVICES = ("CharDevice", "BlockDevice")


def problems(pod: Pod, *, is_root: bool = True) -> Iterator[str]:
    """Why volumes of the pod cannot be made, as far as the manifest shows."""
    mounted = {mount.name for container in pod.spec.every_container for mount in container.volume_mounts}
    for volume in pod.spec.volumes:
        if volume.name in mounted and (problem := _problem(pod, volume, is_root=is_root)):
            yield f'volume "{volume.name}": {problem}'


def prepare(pod: Pod, paths: StatePaths, *, allocatable_memory_bytes: int, data: PodData = NO_DATA) -> None:
    """Makes the volumes of the pod, except hostPath volumes (`host_paths`). Existing volumes are not changed, except
    that those with data are brought up to date. Raises VolumeRefused."""
    uid = pod.metadata.uid
    group = pod.spec.security_context.fs_group if pod.spec.security_context else None
    for volume in pod.spec.volumes:
        try:
            if volume.is_in_memory:
                size = memory_volume_bytes(pod, volume, allocatable_memory_bytes)
                mount_in_memory(uid, volume.name, size, group, paths, _MEMORY_MODE)
            elif volume.has_data:
                directory = source_path(pod, volume, paths)
                if volume.has_secrets:
                    mount_in_memory(uid, volume.name, 0, group, paths, _DATA_MODE)
                else:
                    make_directory(directory)
                    os.chmod(directory, _DATA_MODE)
                volume_content.write(directory, volume_files(pod, volume, data), group)
            elif volume.is_scratch:
                _make_empty_dir(paths.volume(uid, volume.name), group)
            elif name := claim_name(volume):
                _make_claim(paths.claim(pod.metadata.namespace, name), group)
        except OSError as error:
            where = f" at {error.filename}" if error.filename else ""
            raise VolumeRefused(f'volume "{volume.name}" cannot be made{where}: {reason(error)}') from None
        except (VolumeRefused, DataMissing, NoValue, Resists) as refused:
            raise VolumeRefused(f'volume "{volume.name}": {refused.message}') from None


def write_network_file(path: str, name: str, pod: Pod) -> None:
    """Writes the pod's own version of a file in /etc, which every user of the container may read. Raises OSError."""
    write_own(path, network_files.file_text(name, pod, host_network_file(name)).encode())
    os.chmod(path, _FILE_MODE)


def rewrite_hosts(pod: Pod, directories: Iterable[str]) -> None:
    """Writes the pod's own /etc/hosts once more, in each of these directories that has one. Raises VolumeRefused.

    The file is mounted in containers, so it must stay the same file. It is overwritten before it is cut, and so is
    never empty. A container of a container runtime may write to it: it can make it large, or take a lease on it. So the
    amount that is read is bounded, and opening the file does not wait."""
    name = network_files.HOSTS
    content = network_files.file_text(name, pod, host_network_file(name)).encode()
    for directory in directories:
        path = f"{directory}/{name}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise VolumeRefused(f"{path} cannot be written: {reason(error)}") from None
        try:
            if os.pread(descriptor, len(content) + 1, 0) != content:
                _overwrite(descriptor, content)
        except OSError as error:
            raise VolumeRefused(f"{path} cannot be written: {reason(error)}") from None
        finally:
            os.close(descriptor)


def _overwrite(descriptor: int, content: bytes) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], done)
    os.ftruncate(descriptor, done)


def host_network_file(name: str) -> str:
    """Returns the beginning of the machine's own file in /etc; empty if there is none."""
    try:
        with open(f"/etc/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_NETWORK_CHARACTERS)
    except OSError:
        return ""


def make_pod_directories(pod: Pod, paths: StatePaths) -> None:
    """Makes the pod's directory and its log directories, for runtimes that do not make them on demand.

    Raises VolumeRefused.
    """
    metadata = pod.metadata
    try:
        make_directory(paths.pod(metadata.uid))
        for container in pod.spec.every_container:
            make_directory(
                paths.container_logs(metadata.namespace, metadata.name, metadata.uid, container.name)
            )
    except OSError as error:
        raise VolumeRefused(
            f"the pod's directories cannot be made at {error.filename}: {reason(error)}"
        ) from None


def remove(uid: str, paths: StatePaths) -> None:
    """Unmounts and removes everything of the pod except its logs. May be repeated.

    Raises VolumeRefused with the path that cannot be removed.
    """
    unmount_memory(uid, paths)
    _remove(paths.pod(uid))


def remove_claim(namespace: str, name: str, paths: StatePaths) -> None:
    """Removes the directory of a claim, and what an interrupted removal has left. Raises VolumeRefused."""
    with suppress(FileNotFoundError):
        os.rename(paths.claim(namespace, name), f"{paths.claims}/{_GONE}{secrets.token_hex(8)}")
    for left in names_in(paths.claims):
        if left.startswith(_GONE):
            _remove(f"{paths.claims}/{left}")


def remove_logs(uid: str, paths: StatePaths) -> None:
    """Removes the log directories of the pod. The pod's name is not needed."""
    checked(uid, "pod UID")
    for name in names_in(paths.logs):
        if name.rpartition("_")[2] == uid:
            _remove(os.path.join(paths.logs, name))


def pods(paths: StatePaths) -> frozenset[str]:
    """Returns the UIDs of pods that still have directories, mounts or logs."""
    logs = (name.rpartition("_")[2] for name in names_in(paths.logs))
    return frozenset(filter(is_uid, (*names_in(paths.pods), *names_in(paths.memory), *logs)))


def memory_volume_bytes(pod: Pod, volume: Volume, allocatable_memory_bytes: int) -> int:
    """D9: returns the size of a memory-backed emptyDir.

    It is the smallest of its own limit, the memory limit of the pod and the allocatable memory of the node; 0 if none
    of them is set.
    """
    own = volume.empty_dir.size_limit if volume.empty_dir else None
    bounds = (allocatable_memory_bytes, pod_limits(pod).get(MEMORY, ZERO).value, own.value if own else 0)
    return min((bound for bound in bounds if bound > 0), default=0)


def source_path(pod: Pod, volume: Volume, paths: StatePaths) -> str:
    """Returns the path of the volume on the host."""
    if volume.host_path is not None:
        return volume.host_path.path
    if volume.is_in_memory or volume.has_secrets:
        return paths.memory_volume(pod.metadata.uid, volume.name)
    if name := claim_name(volume):
        return paths.claim(pod.metadata.namespace, name)
    return paths.volume(pod.metadata.uid, volume.name)


def _problem(pod: Pod, volume: Volume, *, is_root: bool) -> str:
    if volume.has_data:
        if volume.has_secrets and not is_root:
            return "Secrets are kept in memory, and only root can mount memory: run the agent as root"
        return files_refusal(pod, volume)
    if volume.host_path is not None:
        if volume.host_path.type in _DEVICES:
            return f"hostPath.type {volume.host_path.type}: containers get no devices of the host here"
        return ""
    if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
        return ""
    if volume.empty_dir is None:
        return (
            "only emptyDir, hostPath, configMap, secret, downwardAPI, projected, persistentVolumeClaim and ephemeral "
            "are supported here; write emptyDir: {} for an empty directory"
        )
    medium = volume.empty_dir.medium
    if medium not in ("", IN_MEMORY):
        return f"emptyDir.medium {medium} is not supported here; write Memory, or leave it out for the disk"
    if medium and not is_root:
        return "emptyDir.medium Memory needs root, because only root can mount; leave it out for the disk"
    return ""


def _make_empty_dir(path: str, group: int | None) -> None:
    make_directory(path)
    if group is not None:
        os.chown(path, -1, group)
    # Files that are made in it later belong to the group too.
    os.chmod(path, _VOLUME_MODE | (stat.S_ISGID if group is not None else 0))


def _make_claim(path: str, group: int | None) -> None:
    """Makes the directory of a claim. An existing directory stays as pods have left it, except that it gets the pod's
    group."""
    if not os.path.isdir(path):
        _make_empty_dir(path, group)
    elif group is not None and (status := os.stat(path)).st_gid != group:
        os.chown(path, -1, group)
        os.chmod(path, stat.S_IMODE(status.st_mode) | _GROUP_MODE)


def _remove(path: str) -> None:
    try:
        remove_tree(path)
    except Resists as error:
        raise VolumeRefused(error.message) from None
