"""The memory directories of pods: memory-backed volumes, values of Secrets, and mounts that end with their pod.

All of it is mounted below one directory of the state directory. Its own mount keeps it apart from other mount
namespaces, so that memory is free as soon as it is unmounted here. All functions block.
"""

import errno
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import StatePaths, is_uid, make_directory, names_in, write_json
from evenkeel.runtime.procfs import is_below, read_mounts
from evenkeel.runtime.tree_removal import Resists, empty_tree, remove_tree

FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
# The first mount of a pod mounts the tmpfs that holds all mount points. The end of the last pod unmounts it.
MEMORY_LOCK = threading.Lock()
_MEMORY_ROOT_OPTIONS = "mode=0700,size=4m"  # it holds directories only


class VolumeRefused(EvenkeelError):
    """A volume cannot be made as the manifest describes it, or the host refused it."""


def mount_in_memory(
    uid: str,
    volume: str,
    size_bytes: int,
    group: int | None,
    paths: StatePaths,
    base_mode: int,
) -> None:
    with MEMORY_LOCK:
        mount_memory_root(paths)
        point = paths.memory_volume(uid, volume)
        make_directory(point)
        if os.path.ismount(point):
            return
        mode = base_mode | (stat.S_ISGID if group is not None else 0)
        options = f"mode={mode:o}" + (f",gid={group}" if group is not None else "")
        if size_bytes:
            options += f",size={size_bytes}"
        _mount_tmpfs(point, options)


def write_private(path: str, value: Mapping[str, object], paths: StatePaths) -> None:
    """Writes a JSON file to a directory of the pod that is in memory: it has values of Secrets. `path` is
    `paths.private`. Raises OSError."""
    with MEMORY_LOCK:
        mount_memory_root(paths)
        directory = os.path.dirname(path)
        make_directory(directory)
        if not os.path.ismount(directory):
            _mount_tmpfs(directory, "mode=0700")
    write_json(directory, os.path.basename(path), value)


def remove_private(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def make_memory_directory(uid: str, paths: StatePaths) -> None:
    """Makes the pod's directory for mounts, where containers of other pods do not keep them alive. Raises OSError."""
    with MEMORY_LOCK:
        mount_memory_root(paths)
        make_directory(paths.pod_memory(uid))


def empty_memory(uid: str, paths: StatePaths) -> None:
    """Removes the content of the pod's memory-backed volumes, as far as possible.

    The pod is being killed, and its memory is needed soon. The memory of open files is freed when the processes have
    ended.
    """
    directory = paths.pod_memory(uid)
    for name in filter(is_uid, names_in(directory)):  # not the termination logs and the network
        with suppress(Resists):  # `remove` reports it
            empty_tree(os.path.join(directory, name))


def unmount_memory(uid: str, paths: StatePaths) -> None:
    directory = paths.pod_memory(uid)
    with MEMORY_LOCK:
        if not os.path.isdir(paths.memory):
            return
        try:
            # The last mount first, because one may cover another.
            for mount in reversed([mount for mount in read_mounts() if is_below(mount.point, directory)]):
                syscalls.umount(mount.point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
            remove_tree(directory)
            if not os.listdir(paths.memory):
                if os.path.ismount(paths.memory):
                    syscalls.umount(paths.memory, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
                os.rmdir(paths.memory)
        except Resists as error:
            raise VolumeRefused(error.message) from None
        except OSError as error:
            raise VolumeRefused(f"{error.filename or directory} cannot be removed: {reason(error)}") from None


def mount_memory_root(paths: StatePaths) -> None:
    make_directory(paths.memory)
    if not os.path.ismount(paths.memory):
        syscalls.mount("tmpfs", paths.memory, "tmpfs", FLAGS, _MEMORY_ROOT_OPTIONS)
    # Otherwise services in other mount namespaces would keep the volumes mounted after they are removed here.
    syscalls.mount(None, paths.memory, flags=syscalls.MS_PRIVATE)


def _mount_tmpfs(point: str, options: str) -> None:
    try:
        # noswap (Linux 6.4): the content must not evade the memory limit through swap, and no secret gets to the disk.
        syscalls.mount("tmpfs", point, "tmpfs", FLAGS, f"{options},noswap")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.mount("tmpfs", point, "tmpfs", FLAGS, options)
