"""The filesystem of a container, built by the container's own process before it executes its program.

The process is in a mount namespace of its own. Nothing is mounted in the host's mount namespace, so nothing can be
left behind there.

The order matters. First the host's tree is made safe, for this process alone: the state directory is covered, /proc
is fresh, kernel settings are read-only, only the container's own cgroups are left, and device nodes do not work. So
hostPath volumes, which are taken from this tree, are safe too, with any content. Then come /dev, the image's root in
place of the host's, and the volumes.

With `image: host` the root is the host's, read-only. A container writes to its volumes, and to directories of its own
at /tmp, /var/tmp and /run.
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evenkeel.errors import reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor.image_root import UPPER, ImageRoot, image_root
from evenkeel.runtime.process.supervisor.kernel_filesystems import (
    PROC_SETTINGS,
    SAFE,
    cover,
    make_empty,
    make_read_only,
    mask,
    mount_cgroups,
    mount_dev,
    mount_proc,
)
from evenkeel.runtime.process.supervisor.mount_points import (
    WHOLE,
    FilesystemRefused,
    MountPoints,
    change_root,
)
from evenkeel.runtime.process.supervisor.users import HOST_USERS, Users
from evenkeel.runtime.sub_paths import SubPathRefused, open_below, open_sub_path

__all__ = ("FilesystemRefused", "FilesystemSpec", "Mount", "as_json", "enter", "from_json")

MEMORY = "memory"  # in the state directory: all memory-backed volumes are mounted below it

_RUN_BYTES = 64 << 20
_ONE = 0  # flags of mount_setattr: this mount only, not the mounts below it
_NETWORK_FILES = ("resolv.conf", "hosts")  # in /etc; the network is the host's
_MOST_NETWORK_BYTES = 1 << 20
_OWN_DIRECTORIES = ("/tmp", "/var/tmp")  # noqa: S108 on the host's root: on disk, counted as the container's layer
_TERMINATION_LOG = "/dev/termination-log"


class Mount(NamedTuple):
    """A volume, or a part of it, and the path in the container at which it is mounted."""

    source: str  # on the host
    target: str
    sub_path: str = ""  # below the source, never outside it; created if it is missing
    is_read_only: bool = False
    is_ours: bool = True  # an emptyDir or data, not the host's own files
    has_data: bool = False  # the agent writes its files: a sub_path must be one of them
    # Below the source, never outside it: the volume, in a directory of the host that a pod may write to.
    below: str = ""


class FilesystemSpec(NamedTuple):
    """The description of a container's filesystem. It has only strings, booleans and tuples: it is sent as JSON."""

    state_directory: str  # hidden from the container
    attempt_directory: str  # the container's, below the state directory; it exists
    image: str = ""  # the directory with its root filesystem; "" is the host's root
    mounts: tuple[Mount, ...] = ()
    is_read_only: bool = False  # securityContext.readOnlyRootFilesystem
    termination_message_path: str = "/dev/termination-log"  # "" for none
    proc_settings: tuple[str, ...] = PROC_SETTINGS  # the settings that this kernel has
    masked: tuple[str, ...] = ()  # the paths of `MASKED` that this kernel has
    # Other paths on the host that lead to the state directory, and kernel filesystems that are not shown.
    hidden: tuple[str, ...] = ()
    # Other places on the host where kernel settings are mounted, such as cgroups outside /sys.
    read_only: tuple[str, ...] = ()
    # The directories of the container's own cgroup, each with the path at which it replaces the host's hierarchy.
    cgroups: tuple[tuple[str, str], ...] = ()
    cgroup_links: tuple[tuple[str, str], ...] = ()  # symlinks beside these paths, such as cpu -> cpu,cpuacct
    has_host_ipc: bool = False  # it shares the host's /dev/shm, as it shares its semaphores


def as_json(spec: FilesystemSpec) -> dict[str, object]:
    """Converts the description for a message to the supervisor."""
    return {**spec._asdict(), "mounts": [list(mount) for mount in spec.mounts]}


def from_json(value: Mapping[str, Any]) -> FilesystemSpec:
    """Reads the result of `as_json`."""
    fields: dict[str, Any] = {
        name: tuple(field) if isinstance(field, list) else field for name, field in value.items()
    }
    fields["mounts"] = tuple(Mount(*mount) for mount in fields["mounts"])
    for name in ("cgroups", "cgroup_links"):
        fields[name] = tuple((one, other) for one, other in fields.get(name, ()))
    return FilesystemSpec(**fields)


def enter(spec: FilesystemSpec, *, has_pid_namespace: bool = True, users: Users = HOST_USERS) -> int:
    """Makes the filesystem and enters it. The working directory afterwards is `/`.

    The caller is in a mount namespace of its own. If `has_pid_namespace`, it is also the first process of a pid
    namespace. It still has root's capabilities (those of the user namespace, if there is one). It has opened all
    files of the host that it needs (FIFOs, cgroup files) before. It enters the container's own users afterwards.

    Returns a descriptor to read the termination log, which exists only in the container; -1 if there is none. Raises
    FilesystemRefused. The process must then end, because the steps done so far are not undone.
    """
    umask = os.umask(0)
    try:
        return _make(spec, users, has_pid_namespace=has_pid_namespace)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise FilesystemRefused(
                "containers need Linux 5.12 or later, which can set mounts read-only as a whole"
            ) from None
        where = f" at {error.filename}" if error.filename else ""
        raise FilesystemRefused(
            f"the container's filesystem could not be made{where}: {reason(error)}"
        ) from None
    finally:
        os.umask(umask)


def _make(spec: FilesystemSpec, users: Users, *, has_pid_namespace: bool) -> int:
    _isolate()
    trees = {mount: _volume(mount, users) for mount in spec.mounts if mount.is_ours}
    root = None
    if spec.image:
        root = image_root(spec.image, spec.attempt_directory, users, is_read_only=spec.is_read_only)
    own_directories = {} if root else _own_directories(spec.attempt_directory, users)
    cgroups = {target: syscalls.open_tree(directory) for directory, target in spec.cgroups}
    network = {name: _content(f"/etc/{name}") for name in _NETWORK_FILES} if root else _names_in_run()

    _let_go_of_memory(spec.state_directory)
    cover(spec.state_directory)
    mask(spec.hidden, spec.state_directory)
    mount_proc(spec.proc_settings, is_fresh=has_pid_namespace)
    mount_cgroups(cgroups, spec.cgroup_links)
    mask(spec.masked, spec.state_directory)
    for path in ("/sys", *spec.read_only):
        make_read_only(path)
    trees.update((mount, _volume(mount, HOST_USERS)) for mount in spec.mounts if not mount.is_ours)
    if not users.are_own:
        return _furnish(spec, trees, root, own_directories, network, users)
    with users.owning():
        return _furnish(spec, trees, root, own_directories, network, users)


def _furnish(
    spec: FilesystemSpec,
    trees: Mapping[Mount, int],
    root: ImageRoot | None,
    own_directories: Mapping[str, int],
    network: Mapping[str, bytes],
    users: Users,
) -> int:
    """Enters the root and mounts everything in it. What is made here belongs to the container's root."""
    if not root:
        syscalls.mount_setattr("/", add=syscalls.MOUNT_ATTR_RDONLY)
        syscalls.mount_setattr("/proc", clear=syscalls.MOUNT_ATTR_RDONLY, flags=_ONE)
    mount_dev(users.first, has_host_shm=spec.has_host_ipc)
    message = -1
    if spec.termination_message_path:
        make_empty(_TERMINATION_LOG)  # the container may write there as any user
        message = os.open(_TERMINATION_LOG, os.O_RDONLY | os.O_CLOEXEC)

    points = MountPoints(is_root_ours=root is not None and root.is_writable)
    if root:
        kernel = {path: syscalls.open_tree(path, WHOLE) for path in ("/proc", "/sys", "/dev")}
        change_root(root.descriptor)
        if root.is_writable:
            _write_network_files(network)  # before /proc is mounted, because links in /proc can lead anywhere
        for path, tree in kernel.items():
            points.attach(tree, path, f"the container's {path}", is_ours=path == "/dev")
    else:
        for path, tree in own_directories.items():
            points.attach(tree, path, f"the container's {path}", is_ours=True)
        if os.path.isdir("/run"):
            _settle_run(network)
            points.own("/run")
    if spec.termination_message_path not in ("", _TERMINATION_LOG):
        log = syscalls.open_tree(_TERMINATION_LOG)
        points.attach(log, spec.termination_message_path, "terminationMessagePath")
    # A mount comes before the mounts below it, in any order of the manifest.
    for mount in sorted(trees, key=lambda mount: mount.target.rstrip("/").count("/")):
        is_ours = mount.is_ours and not mount.is_read_only
        points.attach(trees[mount], mount.target, f"volumeMount {mount.target}", is_ours=is_ours)
    if spec.is_read_only or not root:
        points.seal()
    if spec.is_read_only:
        for path in ("/",) if root else (*own_directories, "/run"):
            with suppress(FileNotFoundError):
                syscalls.mount_setattr(path, add=syscalls.MOUNT_ATTR_RDONLY, flags=_ONE)
    os.chdir("/")
    return message


def _isolate() -> None:
    """Isolates the mounts: a mount made here is not seen elsewhere, nor the other way round.

    Device nodes open no devices, in any directory. /dev will have the devices that a container may use.
    """
    syscalls.mount_setattr("/", add=syscalls.MOUNT_ATTR_NODEV, propagation=syscalls.MS_PRIVATE)


def _let_go_of_memory(state_directory: str) -> None:
    """Unmounts other pods' memory-backed volumes.

    Their memory would not be freed as long as they are mounted here too.
    """
    # EINVAL also if it belongs to the parent of the user namespace and cannot be unmounted.
    none = (errno.EINVAL, errno.ENOENT, errno.EACCES)
    syscalls.umount(f"{state_directory}/{MEMORY}", syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW, none)


def _names_in_run() -> dict[str, bytes]:
    """Reads the file behind /etc/resolv.conf if it is in /run, as with systemd-resolved.

    Returns its path and content.
    """
    if not os.path.islink("/etc/resolv.conf"):
        return {}
    path = os.path.realpath("/etc/resolv.conf")
    return {path: _content(path)} if path.startswith("/run/") else {}


def _settle_run(files: Mapping[str, bytes]) -> None:
    """Replaces /run. The host's /run has the sockets of services, and root may connect to all of them."""
    syscalls.mount("tmpfs", "/run", "tmpfs", SAFE, f"mode=0755,size={_RUN_BYTES}")
    for path, content in files.items():
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        _make_file(path, content)


def _own_directories(attempt_directory: str, users: Users) -> dict[str, int]:
    """Makes one directory for all these paths. Its disk usage is counted as the container's."""
    own = f"{attempt_directory}/{UPPER}"
    with suppress(FileExistsError):
        os.mkdir(own, 0o1777)
    trees = {path: syscalls.open_tree(own) for path in filter(os.path.isdir, _OWN_DIRECTORIES)}
    for path, tree in trees.items():
        users.map(tree, f"the container's {path}", own)
    return trees


def _content(path: str) -> bytes:
    """Reads a small file of the host; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST_NETWORK_BYTES)
    finally:
        os.close(descriptor)


def _write_network_files(contents: Mapping[str, bytes]) -> None:
    """Copies the host's files into the container's own layer. Its writes there are counted as its own.

    Files and symlinks of the image at these paths are removed.
    """
    os.makedirs("/etc", 0o755, exist_ok=True)
    for name, content in contents.items():
        path = f"/etc/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            continue  # an unusual image has a directory here; it stays
        with suppress(FileNotFoundError):
            os.unlink(path)
        _make_file(path, content)


def _make_file(path: str, content: bytes) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    os.write(descriptor, content)
    os.close(descriptor)


def _volume(mount: Mount, users: Users) -> int:
    """Copies the volume's mount, with the owners that `users` have. The copy is not attached anywhere yet."""
    try:
        source = os.open(mount.source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise FilesystemRefused(
            f"volumeMount {mount.target}: {mount.source} cannot be opened: {reason(error)}"
        ) from None
    if mount.below:
        source = _below(source, mount)
    if mount.sub_path:
        volume = source
        try:
            source = open_sub_path(volume, mount.sub_path, must_exist=mount.has_data)
        except SubPathRefused as error:
            raise FilesystemRefused(f"volumeMount {mount.target}: {error.message}") from None
        finally:
            os.close(volume)
    tree = syscalls.open_tree("", WHOLE | syscalls.AT_EMPTY_PATH, source)
    os.close(source)
    users.map(tree, f"volumeMount {mount.target}", mount.source)
    if mount.is_read_only:
        flags = syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH
        syscalls.mount_setattr("", add=syscalls.MOUNT_ATTR_RDONLY, flags=flags, dir_fd=tree)
    return tree


def _below(directory: int, mount: Mount) -> int:
    try:
        return open_below(directory, mount.below)
    except OSError as error:
        raise FilesystemRefused(
            f"volumeMount {mount.target}: {mount.below} cannot be opened within {mount.source}, where pods may write: "
            f"{reason(error)}"
        ) from None
    finally:
        os.close(directory)
