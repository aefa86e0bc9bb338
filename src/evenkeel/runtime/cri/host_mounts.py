"""Files and mounts on the host that a container runtime binds into containers: parts of volumes, termination logs, and
copies of the host's network files.

The runtime would follow symlinks of the container. So this module opens each part of a volume safely and mounts it, and
the runtime gets the path of that mount. All functions that make or remove something block.
"""

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import is_within
from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.host_paths import HostPlace, open_place
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.memory_mounts import FLAGS, MEMORY_LOCK, VolumeRefused, mount_memory_root
from evenkeel.runtime.network_files import file_text, own_files
from evenkeel.runtime.paths import StatePaths, make_directory, names_in
from evenkeel.runtime.start_errors import StartFailed
from evenkeel.runtime.sub_paths import SubPathRefused, open_sub_path
from evenkeel.runtime.volumes import source_path

_MOST_NETWORK_BYTES = 1 << 20  # of a copied file
_TERMINATION_LOG_BYTES = 16 << 10  # of each container; Kubernetes reads 4 KiB of it


def bind_parts(
    pod: Pod,
    container: Container,
    attempt: int,
    sub_paths: Mapping[int, str],
    places: Mapping[str, HostPlace],
    paths: StatePaths,
) -> dict[int, str]:
    """Mounts the parts of volumes that the container's subPaths name, by the index of its mount, where a container
    runtime finds them (`paths.sub_path`). `places` are those of hostPath volumes. Returns the paths of the host that
    were mounted, without symlinks. Raises VolumeRefused.

    A runtime would follow symlinks in the volume. Here each part is opened without leaving the volume, and then
    mounted."""
    uid = pod.metadata.uid
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    mounted = {}
    with MEMORY_LOCK:
        try:
            mount_memory_root(paths)
            _unmount(uid, container.name, paths)
            for index, sub_path in sub_paths.items():
                mount = container.volume_mounts[index]
                volume = by_name[mount.name]
                place = places.get(mount.name, HostPlace(source_path(pod, volume, paths)))
                point = paths.sub_path(uid, container.name, attempt, index)
                mounted[index] = _bind(place, sub_path, point, must_exist=volume.has_data)
        except SubPathRefused as error:
            raise VolumeRefused(f"container {container.name}: {error.message}") from None
        except OSError as error:
            raise VolumeRefused(
                f"container {container.name}: a part of a volume cannot be mounted: {reason(error)}"
            ) from None
    return mounted


def paths_to_state(container: Container, sources: Mapping[int, str], ways: Iterable[str]) -> tuple[str, ...]:
    """Lists the paths at which the container would see the agent's state directory.

    `sources` are the real paths of its hostPath volumes, by the index of the mount. `ways` are all paths of the host
    that lead to the state directory.
    """
    return tuple(
        posixpath.normpath(
            posixpath.join(
                f"/{container.volume_mounts[index].mount_path.lstrip('/')}", posixpath.relpath(way, source)
            )
        )
        for index, source in sources.items()
        for way in ways
        if is_within(way, source)
    )


def mount_termination_logs(pod: Pod, paths: StatePaths) -> None:
    """Mounts a small tmpfs for the termination logs of the pod's containers, for runtimes that bind a file of the host
    there. On disk a container could write without bound. Raises VolumeRefused.
    """
    place = paths.termination_logs(pod.metadata.uid)
    size = _TERMINATION_LOG_BYTES * sum(1 for _ in pod.spec.every_container)
    try:
        with MEMORY_LOCK:
            mount_memory_root(paths)
            make_directory(place)
            if not os.path.ismount(place):
                flags = FLAGS | syscalls.MS_NOEXEC
                syscalls.mount("tmpfs", place, "tmpfs", flags, f"mode=0700,size={size}")
    except OSError as error:
        raise VolumeRefused(
            f"the place of the termination logs, {place}, cannot be made: {reason(error)}"
        ) from None


def remove_termination_log(uid: str, container: str, number: int, paths: StatePaths) -> None:
    with suppress(FileNotFoundError):
        os.unlink(paths.termination_log(uid, container, number))


def _bind(place: HostPlace, sub_path: str, point: str, *, must_exist: bool) -> str:
    volume = open_place(place)
    try:
        found = open_sub_path(volume, sub_path, must_exist=must_exist)
    finally:
        os.close(volume)
    try:
        real = os.readlink(f"/proc/self/fd/{found}")
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
    return real


def _unmount(uid: str, container: str, paths: StatePaths) -> None:
    """Removes the mounts of earlier attempts of the container. These attempts have ended."""
    directory = os.path.dirname(paths.sub_path(uid, container, 0, 0))
    for name in names_in(directory):
        if name.startswith(f"{container}."):
            point = f"{directory}/{name}"
            with suppress(OSError):
                syscalls.umount(point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
            with suppress(OSError):  # it is still mounted: `remove` unmounts it
                if os.path.isdir(point):
                    os.rmdir(point)
                else:
                    os.unlink(point)


def make_files(paths: StatePaths, launch: Launch, *names: str) -> None:
    """Makes the termination log, and the files of the attempt that `container_config` mounts into the container: copies
    of the host's files `names` in /etc, or the pod's own versions of them. Raises StartFailed."""
    attempt, pod = launch.attempt, launch.pod
    directory = paths.attempt(*attempt)
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        os.makedirs(paths.termination_logs(attempt.uid), 0o700, exist_ok=True)
        _make_file(paths.termination_log(*attempt), b"", 0o666)  # the container may run as any user
        own = own_files(pod)
        for name in names:
            content = _content(f"/etc/{name}")
            if name in own:
                content = file_text(name, pod, content.decode(errors="replace")).encode()
            _make_file(f"{directory}/{name}", content, 0o644)
    except OSError as error:
        raise StartFailed(f"the attempt's directory {directory} cannot be made: {reason(error)}") from None


def _make_file(path: str, content: bytes, mode: int) -> None:
    """Makes a file. If the attempt is started once more, the file exists already and keeps its content."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(descriptor, mode)
        if content and not os.fstat(descriptor).st_size:
            os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _content(path: str) -> bytes:
    """The host's file, or its beginning; empty if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_NETWORK_BYTES)
    except OSError:
        return b""
