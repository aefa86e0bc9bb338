"""The kernel's own filesystems in a container: /proc, /sys with the container's own cgroup, and /dev.

Files that would change the machine are read-only. Files that reveal the whole machine are masked.
"""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from evenkeel.runtime import syscalls

_SHM_BYTES = 64 << 20  # the size that container runtimes give
_DEV_BYTES = 64 << 10  # it holds the termination log too: Kubernetes reads 4 KiB of it
SAFE = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# The parts of /proc that would change the machine for all processes.
PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "driver", "mtrr")
# Paths that reveal the whole machine. Container runtimes hide the same.
MASKED = ("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats",
          "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
          "/sys/devices/virtual/powercap")  # fmt: skip
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# The machine has 3072 terminals for all containers (kernel.pty.max without its reserve).
_PTS_OPTIONS = "newinstance,ptmxmode=0666,mode=0620,max=256"
CGROUPS = "/sys/fs/cgroup"


def cover(path: str) -> None:
    """Covers a directory: its content is hidden, and no file can be made there."""
    syscalls.mount("tmpfs", path, "tmpfs", SAFE | syscalls.MS_RDONLY, "size=4k,nr_inodes=2,mode=0555")


def make_read_only(path: str) -> None:
    try:
        syscalls.mount_setattr(path, add=syscalls.MOUNT_ATTR_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # it is not a mount point, or no longer
            raise


def mount_proc(names: tuple[str, ...], *, is_fresh: bool) -> None:
    if is_fresh:
        syscalls.mount("proc", "/proc", "proc", SAFE)
    for name in names:
        path = f"/proc/{name}"
        with suppress(FileNotFoundError):  # this kernel does not have it
            syscalls.mount(path, path, flags=syscalls.MS_BIND | syscalls.MS_REC)
    # All mounts in it, and then not /proc itself.
    syscalls.mount_setattr("/proc", add=syscalls.MOUNT_ATTR_RDONLY)
    syscalls.mount_setattr("/proc", clear=syscalls.MOUNT_ATTR_RDONLY, flags=0)


def mount_cgroups(trees: Mapping[str, int], links: tuple[tuple[str, str], ...]) -> None:
    """Replaces the host's hierarchies by those of the container's own cgroup, and shows only that cgroup of them.

    `links` are the symlinks that the host has there, with their targets.
    """
    if trees and CGROUPS not in trees:  # v1: one directory per hierarchy, and symlinks for controllers
        syscalls.mount("tmpfs", CGROUPS, "tmpfs", SAFE, "mode=0755,size=64k")
        for path in trees:
            os.mkdir(path)
        for name, leads_to in links:
            if f"{CGROUPS}/{leads_to}" in trees:
                os.symlink(leads_to, f"{CGROUPS}/{name}")
    for path, tree in trees.items():
        syscalls.move_mount(tree, syscalls.AT_FDCWD, path)
        os.close(tree)


def mask(paths: tuple[str, ...], empty: str) -> None:
    """Masks paths.

    `empty` is a directory that is covered already. Masked files become /dev/null, which does not open here.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            source = empty if os.path.isdir(path) else "/dev/null"
            syscalls.mount(source, path, flags=syscalls.MS_BIND)


def mount_dev(first: int = 0, *, has_host_shm: bool = False) -> None:
    """`first` is the container's root."""
    shm = syscalls.open_tree("/dev/shm") if has_host_shm else -1  # noqa: S108
    host = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", "/dev", "tmpfs", flags, f"mode=0755,size={_DEV_BYTES}")
    for name, (major, minor) in _DEVICES.items():
        try:
            os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:  # in a user namespace
            _borrow_device(name, host)
    os.close(host)
    for name, leads_to in _DEVICE_LINKS.items():
        os.symlink(leads_to, f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")  # noqa: S108
    if has_host_shm:
        syscalls.mount_setattr("", clear=syscalls.MOUNT_ATTR_RDONLY, flags=syscalls.AT_EMPTY_PATH, dir_fd=shm)
        syscalls.move_mount(shm, syscalls.AT_FDCWD, "/dev/shm")  # noqa: S108
        os.close(shm)
    else:
        syscalls.mount("tmpfs", "/dev/shm", "tmpfs", SAFE, f"mode=1777,size={_SHM_BYTES}")  # noqa: S108
    try:
        # Group 5 is tty on all distributions.
        syscalls.mount("devpts", "/dev/pts", "devpts", flags, f"{_PTS_OPTIONS},gid={first + 5}")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The user namespace does not have that group.
        syscalls.mount("devpts", "/dev/pts", "devpts", flags, _PTS_OPTIONS)


def _borrow_device(name: str, host: int) -> None:
    tree = syscalls.open_tree(name, dir_fd=host)
    syscalls.mount_setattr("", clear=syscalls.MOUNT_ATTR_NODEV, flags=syscalls.AT_EMPTY_PATH, dir_fd=tree)
    make_empty(f"/dev/{name}")
    syscalls.move_mount(tree, syscalls.AT_FDCWD, f"/dev/{name}")
    os.close(tree)


def make_empty(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
