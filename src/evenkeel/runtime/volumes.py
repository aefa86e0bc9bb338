"""The volumes of a pod on the host: made before its first container starts, removed when the pod is gone.

All functions block, except `refusal`, `memory_volume_bytes` and `source_path`, which do no I/O.
"""

import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import IN_MEMORY, HostPathVolumeSource, Pod, Volume
from evenkeel.api.resources import MEMORY
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import write_own
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.quantity import ZERO
from evenkeel.runtime import data_volumes, network_files, syscalls
from evenkeel.runtime.environment import DataMissing, NoValue
from evenkeel.runtime.paths import StatePaths, UnsafeName, checked, write_json
from evenkeel.runtime.procfs import is_below, read_mounts
from evenkeel.runtime.sub_paths import SubPathRefused, open_sub_path
from evenkeel.runtime.tree_removal import Resists, empty_tree, remove_tree
from evenkeel.runtime.volume_content import files_refusal, volume_files

__all__ = (
    "VolumeRefused",
    "bind_sub_paths",
    "empty_memory",
    "make_directory",
    "make_memory_directory",
    "make_pod_directories",
    "memory_volume_bytes",
    "mount_termination_logs",
    "pods",
    "prepare",
    "refusal",
    "remove",
    "remove_logs",
    "remove_private",
    "remove_termination_log",
    "remove_tree",
    "write_network_file",
    "write_private",
)

_VOLUME_MODE = 0o777  # any user that a container runs as may write there
_MOST_NETWORK_CHARACTERS = 1 << 20
_DATA_MODE = 0o755  # of volumes whose files the agent writes
_MEMORY_ROOT_OPTIONS = "mode=0700,size=4m"  # it holds directories only
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_TERMINATION_LOG_BYTES = 16 << 10  # of each container; Kubernetes reads 4 KiB of it
_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o644  # of directories and files that a hostPath volume makes
_KINDS = {"Directory": stat.S_ISDIR, "DirectoryOrCreate": stat.S_ISDIR, "File": stat.S_ISREG,
          "FileOrCreate": stat.S_ISREG, "Socket": stat.S_ISSOCK}  # fmt: skip
_WORDS = {"Directory": "directory", "DirectoryOrCreate": "directory", "File": "file", "FileOrCreate": "file",
          "Socket": "socket"}  # fmt: skip
_DEVICES = ("CharDevice", "BlockDevice")
# The first memory-backed volume mounts the tmpfs that holds all their mount points. The last one unmounts it.
_memory_lock = threading.Lock()


class VolumeRefused(EvenkeelError):
    """A volume cannot be made as the manifest describes it, or the host refused it."""


def refusal(pod: Pod, *, is_root: bool = True) -> str:
    """Returns why the volumes of the pod cannot be made, as far as the manifest shows; empty if they can."""
    mounted = {mount.name for container in pod.spec.every_container for mount in container.volume_mounts}
    for volume in pod.spec.volumes:
        if volume.name in mounted and (problem := _problem(pod, volume, is_root=is_root)):
            return f'volume "{volume.name}": {problem}'
    return ""


def prepare(pod: Pod, paths: StatePaths, *, allocatable_memory_bytes: int, data: PodData = NO_DATA) -> None:
    """Makes the volumes of the pod. Existing volumes are not changed, except that those with data are brought up to
    date. Raises VolumeRefused."""
    uid = pod.metadata.uid
    group = pod.spec.security_context.fs_group if pod.spec.security_context else None
    for volume in pod.spec.volumes:
        try:
            if volume.host_path is not None:
                _check_host_path(volume.host_path, paths)
            elif volume.is_in_memory:
                size = memory_volume_bytes(pod, volume, allocatable_memory_bytes)
                _mount_in_memory(uid, volume.name, size, group, paths)
            elif volume.has_data:
                directory = source_path(pod, volume, paths)
                if volume.has_secrets:
                    _mount_in_memory(uid, volume.name, 0, group, paths, _DATA_MODE)
                else:
                    make_directory(directory)
                    os.chmod(directory, _DATA_MODE)
                data_volumes.write(directory, volume_files(pod, volume, data), group)
            elif volume.empty_dir is not None:
                _make_empty_dir(paths.volume(uid, volume.name), group)
        except OSError as error:
            where = f" at {error.filename}" if error.filename else ""
            raise VolumeRefused(f'volume "{volume.name}" cannot be made{where}: {reason(error)}') from None
        except (VolumeRefused, DataMissing, NoValue, Resists) as refused:
            raise VolumeRefused(f'volume "{volume.name}": {refused.message}') from None


def write_private(path: str, value: Mapping[str, object], paths: StatePaths) -> None:
    """Writes a JSON file to a directory of the pod that is in memory: it has values of Secrets. `path` is
    `paths.private`. Raises OSError."""
    with _memory_lock:
        _mount_memory_root(paths)
        directory = os.path.dirname(path)
        make_directory(directory)
        if not os.path.ismount(directory):
            _mount_tmpfs(directory, "mode=0700")
    write_json(directory, os.path.basename(path), value)


def bind_sub_paths(
    pod: Pod, container: Container, attempt: int, sub_paths: Mapping[int, str], paths: StatePaths
) -> None:
    """Mounts the parts of volumes that the container's subPaths name, by the index of its mount, where a container
    runtime finds them (`paths.sub_path`). Raises VolumeRefused.

    A runtime would follow symlinks in the volume. What is mounted here was opened without leaving the volume.
    """
    uid = pod.metadata.uid
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    with _memory_lock:
        try:
            _mount_memory_root(paths)
            _unmount_sub_paths(uid, container.name, paths)
            for index, sub_path in sub_paths.items():
                mount = container.volume_mounts[index]
                volume = by_name[mount.name]
                _bind(source_path(pod, volume, paths), sub_path, paths.sub_path(uid, container.name, attempt, index),
                      must_exist=volume.has_data)  # fmt: skip
        except SubPathRefused as error:
            raise VolumeRefused(f"container {container.name}: {error.message}") from None
        except OSError as error:
            raise VolumeRefused(
                f"container {container.name}: a subPath cannot be mounted: {reason(error)}"
            ) from None


def _bind(source: str, sub_path: str, point: str, *, must_exist: bool) -> None:
    volume = os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        found = open_sub_path(volume, sub_path, must_exist=must_exist)
    finally:
        os.close(volume)
    try:
        make_directory(os.path.dirname(point))
        if stat.S_ISDIR(os.fstat(found).st_mode):
            make_directory(point)
        else:
            os.close(os.open(point, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        tree = syscalls.open_tree(
            "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH, found
        )
    finally:
        os.close(found)
    try:
        syscalls.move_mount(tree, syscalls.AT_FDCWD, point)
    finally:
        os.close(tree)


def _unmount_sub_paths(uid: str, container: str, paths: StatePaths) -> None:
    """Unmounts what earlier attempts of the container had. They have ended."""
    directory = os.path.dirname(paths.sub_path(uid, container, 0, 0))
    for name in _names(directory):
        if name.startswith(f"{container}."):
            point = f"{directory}/{name}"
            with suppress(OSError):
                syscalls.umount(point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
            with suppress(OSError):  # it is still mounted: `remove` unmounts it
                if os.path.isdir(point):
                    os.rmdir(point)
                else:
                    os.unlink(point)


def write_network_file(path: str, name: str, pod: Pod) -> None:
    """Writes the pod's own version of a file in /etc, which every user of the container may read. Raises OSError."""
    write_own(path, network_files.file_text(name, pod, host_network_file(name)).encode())
    os.chmod(path, _FILE_MODE)


def host_network_file(name: str) -> str:
    """Returns the beginning of the machine's own file in /etc; empty if there is none."""
    try:
        with open(f"/etc/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_NETWORK_CHARACTERS)
    except OSError:
        return ""


def remove_private(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


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


def mount_termination_logs(pod: Pod, paths: StatePaths) -> None:
    """Mounts a small tmpfs for the termination logs of the pod's containers, for runtimes that bind a file of the host
    there. On disk a container could write without bound. Raises VolumeRefused.
    """
    place = paths.termination_logs(pod.metadata.uid)
    size = _TERMINATION_LOG_BYTES * sum(1 for _ in pod.spec.every_container)
    try:
        with _memory_lock:
            _mount_memory_root(paths)
            make_directory(place)
            if not os.path.ismount(place):
                flags = _FLAGS | syscalls.MS_NOEXEC
                syscalls.mount("tmpfs", place, "tmpfs", flags, f"mode=0700,size={size}")
    except OSError as error:
        raise VolumeRefused(
            f"the place of the termination logs, {place}, cannot be made: {reason(error)}"
        ) from None


def remove_termination_log(uid: str, container: str, number: int, paths: StatePaths) -> None:
    with suppress(FileNotFoundError):
        os.unlink(paths.termination_log(uid, container, number))


def remove(uid: str, paths: StatePaths) -> None:
    """Unmounts and removes everything of the pod except its logs. May be repeated.

    Raises VolumeRefused with the path that cannot be removed.
    """
    _unmount_memory(uid, paths)
    _remove(paths.pod(uid))


def make_memory_directory(uid: str, paths: StatePaths) -> None:
    """Makes the pod's directory for mounts, where containers of other pods do not keep them alive. Raises OSError."""
    with _memory_lock:
        _mount_memory_root(paths)
        make_directory(paths.pod_memory(uid))


def empty_memory(uid: str, paths: StatePaths) -> None:
    """Removes the content of the pod's memory-backed volumes, as far as possible.

    The pod is being killed, and its memory is needed soon. The memory of open files is freed when the processes have
    ended.
    """
    directory = paths.pod_memory(uid)
    for name in filter(_is_uid, _names(directory)):  # not the termination logs and the network
        with suppress(Resists):  # `remove` reports it
            empty_tree(os.path.join(directory, name))


def remove_logs(uid: str, paths: StatePaths) -> None:
    """Removes the log directories of the pod. The pod's name is not needed."""
    checked(uid, "pod UID")
    for name in _names(paths.logs):
        if name.rpartition("_")[2] == uid:
            _remove(os.path.join(paths.logs, name))


def pods(paths: StatePaths) -> frozenset[str]:
    """Returns the UIDs of pods that still have directories, mounts or logs."""
    logs = (name.rpartition("_")[2] for name in _names(paths.logs))
    return frozenset(filter(_is_uid, (*_names(paths.pods), *_names(paths.memory), *logs)))


def make_directory(path: str) -> None:
    """Makes a directory and its parents, readable only by root.

    Other threads may make the same ones. Raises OSError.
    """
    with suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            make_directory(os.path.dirname(path))
            os.mkdir(path, 0o700)


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
    if volume.empty_dir is None:
        return (
            "only emptyDir, hostPath, configMap, secret, downwardAPI and projected can be had here; write "
            "emptyDir: {} for an empty directory"
        )
    medium = volume.empty_dir.medium
    if medium not in ("", IN_MEMORY):
        return f"emptyDir.medium {medium} cannot be had here; write Memory, or leave it out for the disk"
    if medium and not is_root:
        return "emptyDir.medium Memory needs root, because only root can mount; leave it out for the disk"
    return ""


def _make_empty_dir(path: str, group: int | None) -> None:
    make_directory(path)
    if group is not None:
        os.chown(path, -1, group)
    # Files that are made in it later belong to the group too.
    os.chmod(path, _VOLUME_MODE | (stat.S_ISGID if group is not None else 0))


def _mount_in_memory(
    uid: str,
    volume: str,
    size_bytes: int,
    group: int | None,
    paths: StatePaths,
    base_mode: int = _VOLUME_MODE,
) -> None:
    with _memory_lock:
        _mount_memory_root(paths)
        point = paths.memory_volume(uid, volume)
        make_directory(point)
        if os.path.ismount(point):
            return
        mode = base_mode | (stat.S_ISGID if group is not None else 0)
        options = f"mode={mode:o}" + (f",gid={group}" if group is not None else "")
        if size_bytes:
            options += f",size={size_bytes}"
        _mount_tmpfs(point, options)


def _mount_tmpfs(point: str, options: str) -> None:
    try:
        # noswap (Linux 6.4): the content must not evade the memory limit through swap, and no secret gets to the disk.
        syscalls.mount("tmpfs", point, "tmpfs", _FLAGS, f"{options},noswap")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.mount("tmpfs", point, "tmpfs", _FLAGS, options)


def _mount_memory_root(paths: StatePaths) -> None:
    make_directory(paths.memory)
    if not os.path.ismount(paths.memory):
        syscalls.mount("tmpfs", paths.memory, "tmpfs", _FLAGS, _MEMORY_ROOT_OPTIONS)
    # Otherwise services in other mount namespaces would keep the volumes mounted after they are removed here.
    syscalls.mount(None, paths.memory, flags=syscalls.MS_PRIVATE)


def _unmount_memory(uid: str, paths: StatePaths) -> None:
    directory = paths.pod_memory(uid)
    with _memory_lock:
        if not os.path.isdir(paths.memory):
            return
        try:
            # The last mount first, because one may cover another.
            for mount in reversed([mount for mount in read_mounts() if is_below(mount.point, directory)]):
                syscalls.umount(mount.point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
            _remove(directory)
            if not os.listdir(paths.memory):
                if os.path.ismount(paths.memory):
                    syscalls.umount(paths.memory, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
                os.rmdir(paths.memory)
        except OSError as error:
            raise VolumeRefused(f"{error.filename or directory} cannot be removed: {reason(error)}") from None


def _check_host_path(source: HostPathVolumeSource, paths: StatePaths) -> None:
    path = source.path
    for place in _upwards(os.path.realpath(path)):
        if _is_same(place, paths.root):
            raise VolumeRefused(f"hostPath {path} lies in the agent's state directory, which is no pod's")
    wanted = source.type or ""
    if not os.path.exists(path):
        if wanted in ("", "DirectoryOrCreate"):
            os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)
        elif wanted == "FileOrCreate":
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE))
        else:
            raise VolumeRefused(
                f"hostPath {path} is not there, and type {wanted} says it must be; make it, or write {wanted}OrCreate"
                if wanted != "Socket"
                else f"hostPath {path} is not there; start what listens there first"
            )
    is_right = _KINDS.get(wanted)
    if is_right and not is_right(os.stat(path).st_mode):
        raise VolumeRefused(f"hostPath {path} is no {_WORDS[wanted]}, as type {wanted} says it must be")


def _upwards(path: str) -> Iterator[str]:
    while True:
        yield path
        if path == "/":
            return
        path = os.path.dirname(path)


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _remove(path: str) -> None:
    try:
        remove_tree(path)
    except Resists as error:
        raise VolumeRefused(error.message) from None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _is_uid(name: str) -> bool:
    try:
        checked(name, "pod UID")
    except UnsafeName:
        return False
    return True
