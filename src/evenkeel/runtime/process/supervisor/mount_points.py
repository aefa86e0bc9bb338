"""Mount points in a container's filesystem. Missing mount points are made.

An image has a layer of the container's own, so a mount point can be made there. The host's own files may not be
changed. If a directory of the host lacks a mount point, a directory in memory is mounted over it. That cover shows all
entries of the host's directory, and has the mount point in addition.
"""

import errno
import os
import stat

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

WHOLE = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE  # a mount and all mounts below it
_MOST_ENTRIES = 1024  # of a directory that is covered: each entry is a mount
_COVER_BYTES = 64 << 20
_KERNEL_DIRECTORIES = ("/proc", "/sys")
# The files of /proc that may be covered, as with runc: programs read figures of the machine there, which lxcfs replaces
# by those of the container. Anything else may be what decides over a process.
_FIGURES = frozenset(
    f"/proc/{name}"
    for name in ("cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime")
)


class FilesystemRefused(EvenkeelError):
    """The filesystem cannot be made as requested. The message names the necessary change."""


class MountPoints:
    """The mount points below the root of the calling process."""

    def __init__(self, *, is_root_ours: bool) -> None:
        """`is_root_ours`: only this container sees a file that is made in the root."""
        self._proc = os.stat("/proc").st_dev
        self._is_ours = {"/": is_root_ours, "/dev": True, "/proc": False, "/sys": False}
        self._covers: list[str] = []

    def attach(self, tree: int, target: str, what: str, *, is_ours: bool = False) -> None:
        """Mounts `tree` (a descriptor of open_tree, closed here) at the path `target`.

        `what` is its name in messages.
        """
        path = os.path.normpath(f"/{target.lstrip('/')}")
        point = self._point(path, what, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        try:
            if os.fstat(point).st_dev == self._proc and path not in _FIGURES:
                raise FilesystemRefused(
                    f"{what}: nothing can be mounted at {target}: it is in /proc, the kernel's"
                )
            real = os.path.realpath(path)
            syscalls.move_mount(tree, point)
        except OSError as error:
            raise FilesystemRefused(f"{what}: nothing can be mounted at {target}: {reason(error)}") from None
        finally:
            os.close(point)
            os.close(tree)
        self._is_ours[real] = is_ours

    def own(self, path: str) -> None:
        """Marks a mount that exists already as the container's."""
        self._is_ours[path] = True

    def seal(self) -> None:
        """Makes the covers read-only."""
        for path in self._covers:
            syscalls.mount_setattr(path, add=syscalls.MOUNT_ATTR_RDONLY, flags=0)

    def _point(self, path: str, what: str, *, is_directory: bool) -> int:
        try:
            point = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                self._make(path, what, is_directory=is_directory)
                point = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError as error:
                raise FilesystemRefused(f"{what}: {path} cannot be made: {reason(error)}") from None
        except OSError as error:
            raise FilesystemRefused(f"{what}: {path} cannot be reached: {reason(error)}") from None
        if stat.S_ISDIR(os.fstat(point).st_mode) != is_directory:
            os.close(point)
            kinds = ("a directory", "a file")
            volume, found = kinds if is_directory else kinds[::-1]
            raise FilesystemRefused(
                f"{what}: what is to be mounted is {volume}, but {path} is {found} in the container"
            )
        return point

    def _make(self, path: str, what: str, *, is_directory: bool) -> None:
        parent, missing = os.path.split(path)
        while not os.path.isdir(parent):
            parent, missing = os.path.split(parent)
        real = os.path.realpath(parent)
        if os.path.lexists(os.path.join(real, missing)):
            found = os.path.join(parent, missing)
            raise FilesystemRefused(f"{what}: {found} is a symlink that leads nowhere, or no directory")
        if any(real == top or real.startswith(f"{top}/") for top in _KERNEL_DIRECTORIES):
            raise FilesystemRefused(f"{what}: {path} cannot be made, {real} is the kernel's")
        if not self._owns(real):
            self._cover(real, what)
        place = os.path.join(real, os.path.relpath(path, parent))
        os.makedirs(place if is_directory else os.path.dirname(place), 0o755, exist_ok=True)
        if not is_directory:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))

    def _owns(self, path: str) -> bool:
        while path not in self._is_ours:
            path = os.path.dirname(path)
        return self._is_ours[path]

    def _cover(self, directory: str, what: str) -> None:
        below = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        names = os.listdir(below)
        if len(names) > _MOST_ENTRIES:
            raise FilesystemRefused(
                f"{what}: a mount point in {directory} is missing, and with {len(names)} entries it is too large for"
                f" one to be added without changing the host; make it there, or choose a path elsewhere"
            )
        # A new root has to be mounted at some path before it becomes the root. It must not be copied into itself
        # there.
        ready = {"proc": syscalls.open_tree("/proc", WHOLE)} if directory == "/" else {}
        place = "/proc" if ready else directory
        _mount_cover(place, os.fstat(below))
        cover = os.open(place, os.O_PATH | os.O_CLOEXEC)
        for name in names:
            try:
                _carry(name, below, cover, ready.get(name, -1))
            except FileNotFoundError:
                continue  # it was removed meanwhile
            self._is_ours.setdefault(os.path.join(directory, name), False)
        if directory == "/":
            change_root(cover)
        os.close(cover)
        os.close(below)
        self._is_ours[directory] = True
        self._covers.append(directory)


def change_root(directory: int) -> None:
    """Makes the mount behind a descriptor the root. The old root is unmounted."""
    os.fchdir(directory)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _mount_cover(place: str, status: os.stat_result) -> None:
    """Mounts a cover with the mode and the owner of the directory below.

    In a user namespace that does not know this owner, the owner is the namespace's root.
    """
    options = f"mode={status.st_mode & 0o7777:o},size={_COVER_BYTES}"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    try:
        syscalls.mount("tmpfs", place, "tmpfs", flags, f"{options},uid={status.st_uid},gid={status.st_gid}")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.mount("tmpfs", place, "tmpfs", flags, options)


def _carry(name: str, below: int, cover: int, ready: int) -> None:
    """Carries the entry `name` of the directory `below` unchanged into the directory `cover`."""
    mode = os.stat(name, dir_fd=below, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=below), name, dir_fd=cover)
        return
    tree = ready if ready >= 0 else syscalls.open_tree(name, WHOLE | syscalls.AT_SYMLINK_NOFOLLOW, below)
    try:
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(name, dir_fd=cover)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, dir_fd=cover))
        syscalls.move_mount(tree, cover, name)
    finally:
        os.close(tree)
