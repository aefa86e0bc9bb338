"""The root filesystem of a container that has an image, below a layer that takes the container's writes."""

import os

from evenkeel.errors import reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor.mount_points import WHOLE, FilesystemRefused
from evenkeel.runtime.process.supervisor.users import Users

# In the attempt's directory: the layer that the container writes over its image.
UPPER, WORK = "upper", "work"
_LOWER = "lower"  # where the image is mounted, if the container has users of its own
_WHAT = "the image"


class ImageRoot(NamedTuple):
    descriptor: int
    is_writable: bool


def image_root(image: str, place: str, users: Users, *, is_read_only: bool) -> ImageRoot:
    """Mounts the image on the attempt's directory `place`. If it needs no writable layer, it may have none."""
    upper, work, lower = f"{place}/{UPPER}", f"{place}/{WORK}", image
    status = os.stat(image)
    for path in (upper, work):
        os.makedirs(path, 0o700, exist_ok=True)
    os.chown(upper, status.st_uid, status.st_gid)
    os.chmod(upper, status.st_mode & 0o7777)
    if users.are_own:
        lower = f"{place}/{_LOWER}"
        os.makedirs(lower, 0o700, exist_ok=True)
        users.bind(place, place, _WHAT)  # upper and work have to be in one mount
        users.bind(image, lower, _WHAT)
    options = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    problem = ""
    # Volatile: the layer never outlives the attempt, so no write has to wait for the disk. With userxattr, overlay
    # uses attributes that a user namespace may write.
    for more in (",volatile", ",volatile,userxattr", ""):
        try:
            with users.owning():  # overlay makes files of its own, as the user that mounts it
                syscalls.mount("overlay", place, "overlay", syscalls.MS_NODEV, options + more)
        except OSError as error:
            problem = problem or reason(error)
        else:
            return ImageRoot(os.open(place, os.O_PATH | os.O_CLOEXEC), is_writable=True)
    if not is_read_only:
        own_users = " for a user namespace, which takes Linux 5.19" if users.are_own else ""
        raise FilesystemRefused(
            f"the image {image} cannot have a writable layer in {place}{own_users}: {problem}",
            hint="keep the state directory on ext4, xfs or the like, or set readOnlyRootFilesystem: true",
        )
    tree = syscalls.open_tree(image, WHOLE)
    users.map(tree, _WHAT, image)
    syscalls.mount_setattr(
        "", add=syscalls.MOUNT_ATTR_RDONLY, flags=syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH, dir_fd=tree
    )
    syscalls.move_mount(tree, syscalls.AT_FDCWD, place)
    return ImageRoot(tree, is_writable=False)


def _escaped(path: str) -> str:
    """Escapes a path for overlay's options: colons separate layers, commas separate options."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
