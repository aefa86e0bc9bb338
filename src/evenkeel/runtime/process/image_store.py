"""Images of registries on disk: their blobs by digest, their root filesystems, and the names that lead to them.

    images/blobs/sha256/<digest>      configurations and layers as the registry sent them, shared by all images
    images/<key>/                     a root filesystem; the key is made of the digests of configuration and layers
    images/references/<hash>.json     a name, and the image that it led to when it was last pulled
    images/.pulling-…/                a pull under way

Each file and directory is made under a temporary name and renamed at the end. So whatever has its final name is
complete. A pull that was interrupted leaves only a staging directory, which the next agent removes."""

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Any

from evenkeel.host.disk_usage import usage_below
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.images.credentials import FOR_ALL, ImageAccess
from evenkeel.runtime.images.references import ImageReference, is_digest
from evenkeel.runtime.interface import Image
from evenkeel.runtime.paths import StatePaths, read_json, write_json
from evenkeel.runtime.process import image_config
from evenkeel.runtime.process.image_config import ImageConfig, ImageRefused, Manifest
from evenkeel.runtime.process.skopeo import BLOBS, LAYOUT
from evenkeel.runtime.tree_removal import Resists, remove_tree

STAGING = ".pulling-"
REFERENCES = "references"
_SHA256 = "sha256"
_READ_BYTES = 1 << 20
_MOST_DOCUMENT_BYTES = 8 << 20


class StoredImage(NamedTuple):
    """A name and its image."""

    reference: str
    digest: str  # as the registry names it
    key: str  # of the root filesystem
    manifest: Manifest
    config: ImageConfig
    size_bytes: int  # of configuration and layers, as the registry sent them
    pulled_at: float
    access: ImageAccess = FOR_ALL

    @property
    def repository_digest(self) -> str:
        """`registry/name@sha256:…`, the imageID of a container's status."""
        name = self.reference.partition("@")[0]
        colon = name.rfind(":")
        return f"{name[:colon] if colon > name.rfind('/') else name}@{self.digest}"

    @property
    def blobs(self) -> tuple[str, ...]:
        return (self.manifest.config, *self.manifest.layers)


class ImageStore:
    """The images of one state directory. `find` is for the event loop; the others block, so run them in a thread."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._blobs = f"{paths.images}/{BLOBS}/{_SHA256}"
        self._references = f"{paths.images}/{REFERENCES}"
        self._lock = threading.Lock()  # for the names; held for a moment
        self._changing = threading.Lock()  # for the files: images are not stored and removed at the same time
        self._known: dict[str, StoredImage] = {}
        self._sizes: dict[str, int] = {}

    def open(self) -> None:
        """Reads the names, and removes what an interrupted pull left."""
        found = {}
        for name in _names(self._paths.images):
            if name.startswith(STAGING):
                with suppress(Resists):  # it is tried again at the next start
                    remove_tree(f"{self._paths.images}/{name}")
        for name in _names(self._references):
            stored = _stored(read_json(self._references, name))
            if stored is not None and os.path.isdir(self.directory(stored)):
                found[stored.reference] = stored
        with self._lock:
            self._known = found

    def find(self, reference: str) -> StoredImage | None:
        return self._known.get(reference)

    def images(self) -> tuple[StoredImage, ...]:
        with self._lock:
            return tuple(self._known.values())

    def directory(self, stored: StoredImage) -> str:
        """The root filesystem."""
        return self._paths.image(stored.key)

    def unpacked_bytes(self, root: str) -> int:
        """The size of a root filesystem. It never changes, so it is measured once."""
        if root not in self._sizes:
            self._sizes[root] = usage_below(root).used_bytes
        return self._sizes[root]

    # Pulling

    def make_staging(self) -> str:
        """Makes a directory for a pull, with links to all blobs that are there already."""
        staging = f"{self._paths.images}/{STAGING}{secrets.token_hex(8)}"
        os.makedirs(self._paths.images, 0o700, exist_ok=True)
        os.mkdir(staging, 0o700)
        blobs = f"{staging}/{BLOBS}/{_SHA256}"
        os.makedirs(blobs)
        for name in _names(self._blobs):
            # The link is read-only for the process that pulls: it can neither change the blob nor replace ours.
            os.link(f"{self._blobs}/{name}", f"{blobs}/{name}")
        for directory in (blobs, f"{staging}/{BLOBS}", staging):
            os.chmod(directory, 0o777)  # noqa: S103 the directory above is ours alone
        return staging

    def remove_staging(self, staging: str) -> None:
        with suppress(Resists):
            remove_tree(staging)

    def adopt(
        self, staging: str, image: ImageReference, digest: str, at: float, access: ImageAccess
    ) -> StoredImage:
        """Checks what a pull has put into its staging directory, unpacks it, and gives it its name.

        Raises ImageRefused.
        """
        try:
            with self._changing:
                return self._adopt(staging, image, digest, at, access)
        except ValueError as error:
            raise ImageRefused(f"image {image} is not sound: {error}") from None
        except OSError as error:
            raise ImageRefused(
                f"image {image} cannot be stored: {(error.strerror or str(error)).lower()}"
            ) from None

    def _adopt(
        self, staging: str, image: ImageReference, digest: str, at: float, access: ImageAccess
    ) -> StoredImage:
        index = _document(f"{staging}/{LAYOUT}/index.json")
        document = self._checked_document(staging, image_config.index_digest(index))
        found = image_config.manifest(document)
        config = image_config.image_config(self._checked_document(staging, found.config))
        key = hashlib.sha256("\n".join((found.config, *found.layers)).encode()).hexdigest()
        layers = [self._opened(staging, layer) for layer in found.layers]
        try:
            size = sum(os.fstat(layer.fileno()).st_size for layer in layers)
            if not os.path.isdir(self._paths.image(key)):
                for layer, name in zip(layers, found.layers, strict=True):
                    _check(layer, name)
                self._unpack(layers, staging, image, key)
        finally:
            for layer in layers:
                layer.close()
        self._keep_blobs(staging, (found.config, *found.layers))
        stored = StoredImage(str(image), digest, key, found, config, size, at, access)
        self.put(stored)
        return stored

    def put(self, stored: StoredImage) -> None:
        """Records a name. Raises OSError."""
        os.makedirs(self._references, 0o700, exist_ok=True)
        value = {**stored._asdict(), "manifest": stored.manifest._asdict(), "config": stored.config._asdict()}
        write_json(self._references, _file_name(stored.reference), value)
        with self._lock:
            self._known[stored.reference] = stored

    def _unpack(self, layers: list[IO[bytes]], staging: str, image: ImageReference, key: str) -> None:
        from evenkeel.runtime.process.archives import unpack_layers  # 1 MiB, which many agents never need

        for layer in layers:
            layer.seek(0)
        root = unpack_layers(layers, staging, f"image {image}")
        try:
            os.rename(root, self._paths.image(key))
        except OSError:
            if not os.path.isdir(
                self._paths.image(key)
            ):  # the same image under another name was pulled first
                raise

    def _keep_blobs(self, staging: str, digests: Iterable[str]) -> None:
        os.makedirs(self._blobs, 0o700, exist_ok=True)
        for digest in digests:
            with suppress(FileExistsError):
                os.link(_blob(staging, digest), f"{self._blobs}/{_hexadecimal(digest)}")

    def _opened(self, staging: str, digest: str) -> IO[bytes]:
        """Opens a blob, and makes root its owner. The process that pulled it has ended."""
        descriptor = os.open(
            _blob(staging, digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        if os.geteuid() == 0:
            os.fchown(descriptor, 0, 0)
        os.fchmod(descriptor, 0o444)
        return open(descriptor, "rb")

    def _checked_document(self, staging: str, digest: str) -> bytes:
        with self._opened(staging, digest) as file:
            text = file.read(_MOST_DOCUMENT_BYTES + 1)
        if hashlib.sha256(text).hexdigest() != _hexadecimal(digest):
            raise ValueError(f"{digest} does not have that digest")
        return text

    # Removing

    def remove_unused(self, used: frozenset[str], remove_roots: Callable[[frozenset[str]], None]) -> None:
        """Forgets the names of images whose root filesystem is not in `used`, and removes the files that no name leads
        to any more.

        `remove_roots` removes all root filesystems but the given ones.
        """
        with self._changing:
            for stored in self.images():
                if self.directory(stored) not in used:
                    self._forget(stored.reference)
            remove_roots(used)
            self._remove_unnamed_blobs()

    def remove(self, key: str) -> None:
        """Removes one image with all its names. Its root filesystem must not be in use. Raises Resists."""
        with self._changing:
            for stored in self.images():
                if stored.key == key:
                    self._forget(stored.reference)
            remove_tree(self._paths.image(key))
            self._remove_unnamed_blobs()

    def _forget(self, reference: str) -> None:
        with self._lock:
            self._known.pop(reference, None)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._references}/{_file_name(reference)}")

    def _remove_unnamed_blobs(self) -> None:
        kept = {_hexadecimal(digest) for stored in self.images() for digest in stored.blobs}
        for name in _names(self._blobs):
            if name not in kept:
                with suppress(OSError):
                    os.unlink(f"{self._blobs}/{name}")


def list_images(store: ImageStore, paths: StatePaths, used: frozenset[str]) -> tuple[Image, ...]:
    """Lists the images of registries, and the archives that were unpacked. `used` are root filesystems."""
    names: dict[str, list[StoredImage]] = {}
    for stored in store.images():
        names.setdefault(stored.key, []).append(stored)
    found = [
        Image(key, tuple(one.reference for one in every), every[0].size_bytes, paths.image(key) in used)
        for key, every in names.items()
    ]
    for key in _names(paths.images):
        if key not in names and not key.startswith(".") and key not in (BLOBS, REFERENCES):
            root = paths.image(key)
            found.append(Image(key, (), store.unpacked_bytes(root), root in used))
    return tuple(found)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _file_name(reference: str) -> str:
    return f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _hexadecimal(digest: str) -> str:
    assert is_digest(digest)
    return digest.partition(":")[2]


def _blob(staging: str, digest: str) -> str:
    return f"{staging}/{BLOBS}/{_SHA256}/{_hexadecimal(digest)}"


def _document(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(_MOST_DOCUMENT_BYTES)


def _check(blob: IO[bytes], digest: str) -> None:
    found = hashlib.sha256()
    while part := blob.read(_READ_BYTES):
        found.update(part)
    if found.hexdigest() != _hexadecimal(digest):
        raise ValueError(f"layer {digest} does not have that digest")


def _stored(value: dict[str, Any] | None) -> StoredImage | None:
    if value is None:
        return None
    try:
        manifest = Manifest(str(value["manifest"]["config"]), tuple(map(str, value["manifest"]["layers"])))
        salt, fingerprints = value["access"]
        if not all(map(is_digest, (manifest.config, *manifest.layers))):
            return None
        return StoredImage(
            str(value["reference"]),
            str(value["digest"]),
            str(value["key"]),
            manifest,
            image_config.config_from(value["config"]),
            int(value["size_bytes"]),
            float(value["pulled_at"]),
            ImageAccess(str(salt), tuple(map(str, fingerprints))),
        )
    except (KeyError, TypeError, ValueError):
        return None
