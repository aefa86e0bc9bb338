"""A cache of things that are made once and used by many runs. Each is a directory, named after a digest of its inputs.

A directory counts only once its marker is there, and the marker is written last, so that a half-made one is
never used. One process makes a thing at a time; the others wait for it. (Making it elsewhere and renaming it
would not do: a virtual environment holds its own path.)
"""

import contextlib
import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.machines import PROJECT

CACHE = (PROJECT / ".cache" / "machines").resolve()  # pods are given paths below it, and follow no link to it
MARKER = ".complete"
_DIGITS = 12  # of what it was made from, in a directory's name
KEPT_UNUSED_SECONDS = 7 * 24 * 3600.0


def made_once(
    name: str, inputs: Iterable[str | bytes], make: Callable[[Path], None], *, cache: Path = CACHE
) -> Path:
    """The directory that `make` filled from `inputs`, now or in an earlier run."""
    directory = cache / f"{name}-{_digest(inputs)}"
    if _is_complete(directory):
        return directory
    with locked(name, cache=cache):
        if not _is_complete(directory):
            _remove_unused(name, cache)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            try:
                make(directory)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
            (directory / MARKER).touch()
    return directory


@contextlib.contextmanager
def locked(name: str, *, cache: Path = CACHE) -> Iterator[None]:
    """Hold `name` against other processes of this project; the kernel lets go of it however this one ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(inputs: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for item in inputs:
        content = item.encode() if isinstance(item, str) else item
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()[:_DIGITS]


def _is_complete(directory: Path) -> bool:
    marker = directory / MARKER
    if not marker.exists():
        return False
    with contextlib.suppress(OSError):  # a guest sees the cache read-only
        marker.touch()
    return True


def _remove_unused(name: str, cache: Path) -> None:
    """Removes older versions of `name`: incomplete ones (we hold the lock, so no process is making them) and those long
    unused."""
    # Not `name-*`: another name may begin so, and has another lock.
    for directory in cache.glob(f"{name}-{'[0-9a-f]' * _DIGITS}"):
        marker = directory / MARKER
        if not marker.exists() or time.time() - marker.stat().st_mtime > KEPT_UNUSED_SECONDS:
            shutil.rmtree(directory, ignore_errors=True)
