"""Unpacks a root filesystem from an archive. The archive is not trusted.

The archive is a tar file, plain or compressed, or the archive of a whole image from `docker save` or `podman save` (a
tar file with one tar file per layer). Each entry is made through a descriptor of its directory. The kernel resolves
its path within the root, so no name and no symlink leads out. Device nodes are left out.
"""

import bz2
import gzip
import json
import lzma
import os
import tarfile
import zlib
from typing import IO, cast

from evenkeel.runtime import syscalls
from evenkeel.runtime.process import zstd
from evenkeel.runtime.process.image_config import ImageRefused
from evenkeel.runtime.process.unpacking import Bounds, Unpacking

_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
_LARGEST_READ_BYTES = 16 << 20  # a header can ask for any size
_LARGEST_JSON_BYTES = 4 << 20
_BLOCK_BYTES = 512
_LOOK_BACK_BYTES = 4096
_SKIP_BYTES = 1 << 20
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)


def unpack(archive: IO[bytes], directory: str, name: str, bounds: Bounds | None = None) -> str:
    """Unpacks into new directories below `directory`, which exists. Returns the directory with the root filesystem.

    `name` is for messages. Raises ImageRefused; the caller then removes the files unpacked so far.
    """
    bounds = bounds or Bounds()
    try:
        whole = _unpack_all([archive], os.path.join(directory, "archive"), bounds, are_layers=False)
        if not os.listdir(whole):
            raise tarfile.ReadError("it is empty")
        layers = _layers(whole)
        if layers is None:
            return whole
        files: list[IO[bytes]] = [open(descriptor, "rb") for descriptor in _opened(whole, layers)]  # noqa: SIM115 closed below
        try:
            return _unpack_all(files, os.path.join(directory, "root"), bounds, are_layers=True)
        finally:
            for file in files:
                file.close()
    except _DAMAGE as error:
        raise ImageRefused(f"{name} is no sound archive: {_text(error)}") from None
    except OSError as error:
        raise ImageRefused(f"{name} cannot be unpacked: {_text(error)}") from None


def unpack_layers(layers: list[IO[bytes]], directory: str, name: str, bounds: Bounds | None = None) -> str:
    """Unpacks layers over each other, the lowest first, into a new directory below `directory`, and returns it.

    `name` is for messages. Raises ImageRefused; the caller then removes the files unpacked so far.
    """
    try:
        return _unpack_all(layers, os.path.join(directory, "root"), bounds or Bounds(), are_layers=True)
    except _DAMAGE as error:
        raise ImageRefused(f"{name} has a layer that is not sound: {_text(error)}") from None
    except OSError as error:
        raise ImageRefused(f"{name} cannot be unpacked: {_text(error)}") from None


def _unpack_all(archives: list[IO[bytes]], directory: str, bounds: Bounds, *, are_layers: bool) -> str:
    os.mkdir(directory)
    os.chmod(directory, 0o755)  # noqa: S103 every user of a container needs access to its root
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for archive in archives:
            _unpack_one(archive, Unpacking(root, bounds, is_layer=are_layers))
    finally:
        os.close(root)
    return directory


def _unpack_one(archive: IO[bytes], unpacking: Unpacking) -> None:
    with _decompressed(archive) as plain:
        forwards = cast("IO[bytes]", _Forwards(plain))
        tar = tarfile.open(fileobj=forwards, mode="r:")  # noqa: SIM115 it opens no file of its own
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or it would remember every one of them
            unpacking.take(member, tar)
        # tarfile takes a damaged header for the end. A real end is two blocks of zeros, or the end of the file.
        forwards.seek(tar.offset)
        if forwards.read(_BLOCK_BYTES).strip(b"\0"):
            raise tarfile.ReadError(f"it is damaged {tar.offset} bytes from its beginning")
    unpacking.finish()


def _decompressed(archive: IO[bytes]) -> IO[bytes]:
    start = archive.read(8)
    archive.seek(0)
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=archive, mode="rb")  # type: ignore[return-value]
    if start.startswith(_BZIP2):
        return bz2.BZ2File(archive, "rb")
    if start.startswith(_XZ):
        return lzma.LZMAFile(archive, "rb")
    if start.startswith(_ZSTD):
        return cast("IO[bytes]", zstd.Reader(archive))
    plain = os.fdopen(os.dup(archive.fileno()), "rb")  # closing it must not close our file
    plain.seek(0)
    return plain


class _Forwards:
    """Reads a file forwards only, because going back in a compressed file means to start again.

    It limits the size of one read to the needs of a sound archive. It keeps the last bytes, because tarfile looks
    back a little.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._read_to = 0
        self._last = b""
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        self._at = position
        return position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_READ_BYTES:
            raise tarfile.ReadError("a header in it is too long")
        while self._read_to < self._at and self._more(min(self._at - self._read_to, _SKIP_BYTES)):
            pass
        back = self._read_to - self._at
        if not 0 <= back <= len(self._last):
            return b""  # beyond the end
        data = self._last[len(self._last) - back :][:size]
        if len(data) < size:
            data += self._more(size - len(data))
        self._at += len(data)
        return data

    def _more(self, size: int) -> bytes:
        data = self._file.read(size)
        self._read_to += len(data)
        self._last = (
            (self._last + data)[-_LOOK_BACK_BYTES:]
            if len(data) < _LOOK_BACK_BYTES
            else data[-_LOOK_BACK_BYTES:]
        )
        return data


def _layers(directory: str) -> list[str] | None:
    """Returns the layers' paths, lowest first; None if this is a root filesystem and not an image's archive."""
    names = set(os.listdir(directory))
    if names & {"bin", "etc", "usr", "lib", "sbin", "var"}:
        return None
    if "manifest.json" in names:
        images = _json(directory, "manifest.json")
        if not isinstance(images, list) or len(images) != 1:
            raise ValueError("manifest.json in it must name one image")
        return _strings(images[0], "Layers")
    if {"index.json", "oci-layout"} <= names:
        found = _json(directory, "index.json")
        for _ in range(3):  # an index may name another index, one per architecture
            if not isinstance(found, dict) or "manifests" not in found:
                break
            manifests = found["manifests"]
            if not isinstance(manifests, list) or len(manifests) != 1:
                raise ValueError("index.json in it must name one image")
            found = _json(directory, _blob(manifests[0]))
        layers = found.get("layers") if isinstance(found, dict) else None
        if not isinstance(layers, list):
            raise ValueError("its manifest has no layers")
        return [_blob(layer) for layer in layers]
    return None


def _strings(value: object, key: str) -> list[str]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(f"manifest.json in it has no {key}")
    return found


def _blob(descriptor: object) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str):
        raise ValueError("its manifest names something without a digest")  # noqa: TRY004 the error is in the archive
    return f"blobs/{digest.replace(':', '/', 1)}"


def _json(directory: str, path: str) -> object:
    (descriptor,) = _opened(directory, [path])
    with open(descriptor, "rb") as file:
        text = file.read(_LARGEST_JSON_BYTES + 1)
    if len(text) > _LARGEST_JSON_BYTES:
        raise ValueError(f"{path} in it is too long")
    return cast("object", json.loads(text))


def _opened(directory: str, paths: list[str]) -> list[int]:
    """Opens files of the unpacked archive. Its names and symlinks are not trusted."""
    root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors += [syscalls.open_within(root, path, os.O_RDONLY | os.O_NONBLOCK, resolve)]
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        os.close(root)
    return descriptors


def _text(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or "it ends too early"
