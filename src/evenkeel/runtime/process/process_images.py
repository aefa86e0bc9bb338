"""Root filesystems of this machine: `image: host`, a directory, or an archive that is unpacked once.

Any other `image` is the name of an image in a registry (`pulls`).
"""

import hashlib
import os
import secrets
import stat
import threading
from typing import IO

from evenkeel.api.pod import Pod
from evenkeel.errors import raise_shortage, reason
from evenkeel.runtime.images.references import HOST, is_relative
from evenkeel.runtime.network_files import ETC
from evenkeel.runtime.paths import StatePaths, attempts_of, every_attempt, read_json
from evenkeel.runtime.process.image_config import ImageRefused
from evenkeel.runtime.process.image_store import REFERENCES, STAGING
from evenkeel.runtime.process.skopeo import BLOBS
from evenkeel.runtime.process.supervisor.image_root import UPPER
from evenkeel.runtime.process.supervisor_protocol import LAUNCH
from evenkeel.runtime.procfs import is_below, other_ways, read_mounts
from evenkeel.runtime.tree_removal import Resists, remove_tree

__all__ = ("HOST", "ImageRefused", "Images", "refusal")

_FORMS = (
    "host, the name of an image in a registry, or the path of a directory or archive with a root filesystem, as "
    "/srv/images/app.tar.gz or ./app"
)
_UNFINISHED = ".unpacking-"
_OF_REGISTRIES = (BLOBS, REFERENCES)  # directories beside the root filesystems
_READ_BYTES = 1 << 20


def refusal(image: str) -> str:
    """Returns why `image` cannot be run here; empty if it can, as far as its form shows. Pure."""
    if not image:
        return f"missing: write {_FORMS}"
    if "\0" in image:
        return "a path has no zero byte"
    if is_relative(image):
        return (
            f"{image[:200]}: a relative path is relative to its manifest's file, and this pod comes from none"
        )
    return ""


class Images:
    """The images of one state directory. Several threads may use it at once. An archive is unpacked only once."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._unpacking: dict[str, threading.Lock] = {}  # by path: one thread after the other
        # The archive's identity: the directory into which it was unpacked.
        self._known: dict[tuple[object, ...], str] = {}

    def directory(self, image: str) -> str:
        """Returns the directory with the root filesystem, and unpacks it if needed; "" is the host's root.

        Blocks: run it in a thread. Raises ImageRefused.
        """
        if problem := refusal(image):
            raise ImageRefused(f"image {problem}")
        if image == HOST:
            return ""
        try:
            status = os.stat(image)
            if stat.S_ISDIR(status.st_mode):
                return self._whole_directory(image)
            if not stat.S_ISREG(status.st_mode):
                raise ImageRefused(f"image {image} is neither a directory nor an archive")
            with self._lock:
                lock = self._unpacking.setdefault(image, threading.Lock())
            with lock:
                return self._ready(image) or self._unpacked(image)
        except (OSError, ValueError) as error:
            raise ImageRefused(f"image {image} cannot be used: {reason(error)}") from None

    def is_ready(self, image: str) -> bool:
        """Returns whether `directory` would answer at once, without a thread."""
        try:
            return image == HOST or stat.S_ISDIR(os.stat(image).st_mode) or bool(self._ready(image))
        except (OSError, ValueError):
            return False

    def remove_unused(self, directories: frozenset[str]) -> None:
        """Removes root filesystems other than `directories`, and partly unpacked ones.

        No archive may be unpacked meanwhile. Raises ImageRefused if a directory cannot be removed.
        """
        try:
            names = os.listdir(self._paths.images)
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self._paths.images, name)
            if path not in directories and name not in _OF_REGISTRIES and not name.startswith(STAGING):
                try:
                    remove_tree(path)
                except Resists as error:
                    raise ImageRefused(error.message) from None
        self._known.clear()

    def _ready(self, image: str) -> str:
        directory = self._known.get(_identity(image, os.stat(image)), "")
        return directory if directory and os.path.isdir(directory) else ""

    def _unpacked(self, image: str) -> str:
        descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
        with open(descriptor, "rb") as archive:
            identity = _identity(image, os.fstat(descriptor))
            digest = hashlib.sha256()
            while part := archive.read(_READ_BYTES):
                digest.update(part)
            directory = self._paths.image(digest.hexdigest())
            if not os.path.isdir(directory):
                archive.seek(0)
                self._unpack(archive, image, directory)
        self._known[identity] = directory
        return directory

    def _unpack(self, archive: IO[bytes], image: str, directory: str) -> None:
        """Unpacks beside the final directory, and renames at the end.

        So a directory with the final name is always complete.
        """
        from evenkeel.runtime.process.archives import unpack  # 1 MiB, which many agents never need

        os.makedirs(self._paths.images, 0o700, exist_ok=True)
        unfinished = os.path.join(self._paths.images, f"{_UNFINISHED}{secrets.token_hex(8)}")
        os.mkdir(unfinished, 0o700)
        try:
            root = unpack(archive, unfinished, image)
            try:
                os.rename(root, directory)
            except OSError:
                if not os.path.isdir(directory):  # the same archive under another name was unpacked first
                    raise
        finally:
            remove_tree(unfinished)

    def _whole_directory(self, image: str) -> str:
        """Raises ImageRefused if the image contains the state directory or lies in it: pods would see the state."""
        directory, root = os.path.realpath(image), self._paths.root
        for way in (root, *other_ways(root, read_mounts())):
            if is_below(way, directory):
                raise ImageRefused(
                    f"image {image} has the agent's state directory {way} in it; write image: host"
                )
            if is_below(directory, way):
                raise ImageRefused(f"image {image} lies in the agent's state directory, which is no pod's")
        return directory


def _identity(image: str, status: os.stat_result) -> tuple[object, ...]:
    """Identifies a file and its present content. After a change of content the result is different."""
    return (image, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def layers_of(pod: Pod, paths: StatePaths) -> tuple[tuple[str, str], ...]:
    """Returns the directories to which attempts write, each with the container's name: the layer over the image, and
    the files of /etc that are the pod's own."""
    uid = pod.metadata.uid
    tried = tuple(attempts_of(uid, paths))
    return tuple(
        (name, f"{paths.attempt(uid, name, number)}/{part}")
        for container in pod.spec.every_container
        for name, number in tried
        if name == container.name
        for part in (UPPER, ETC)
    )


def images_in_use(paths: StatePaths) -> frozenset[str]:
    """Returns the image directories of containers that run or are about to.

    If a plan cannot be read, its image is not known. Then all images count as used.
    """
    used = set()
    for uid, container, number in every_attempt(paths):
        plan = read_json(paths.attempt(uid, container, number), LAUNCH)
        filesystem = plan.get("filesystem") if plan is not None else None
        if not isinstance(filesystem, dict):
            return _every_image(paths)
        used.add(str(filesystem.get("image", "")))
    return frozenset(used)


def _every_image(paths: StatePaths) -> frozenset[str]:
    try:
        return frozenset(f"{paths.images}/{name}" for name in os.listdir(paths.images))
    except OSError as error:
        raise_shortage(error)
        return frozenset()
