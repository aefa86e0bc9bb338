"""One manifest file, read again: what it holds now, or what is wrong and what it held before.

Nothing here trusts the file to be at rest. One that is open for writing is left until its writer has closed it; one
that holds anything wrong keeps the pods it had; one whose bytes are the same is not parsed again.
"""

import errno
import fcntl
import gc
import hashlib
import os
import signal
import stat
import time
from ctypes import CDLL
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError, Problem
from evenkeel.host.files import decoded
from evenkeel.runtime.process.process_images import with_absolute_images

MAX_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 256 * 1024
MAX_PODS = 1000
MAX_PROBLEMS = 20
# A file that is being written is none of the user's worry at first.
PATIENCE_SECONDS = 2.0
# Where the kernel does not say whether a file is open for writing: for so long after its last change it may be.
_SETTLE_SECONDS = 0.5
# A change within the same tick of the file system's clock leaves no other trace than its bytes.
_TICK_SECONDS = 0.05


class PodFile(NamedTuple):
    """One file. With `problems`, `pods` are those it held when it was last without fault."""

    path: str  # absolute
    pods: tuple[Pod, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class FileState(NamedTuple):
    """What is known of a file, to be compared with what it is later."""

    file: PodFile
    fingerprint: tuple[int, ...] = ()  # of the inode; empty says nothing
    digest: bytes = b""  # of the content
    busy_since: float | None = None  # it is being written


def reread(path: str, last: FileState | None, profile: Profile) -> FileState | None:
    """The state of the file at `path` now, `last` being the one before; None if the file is gone."""
    known = last or FileState(PodFile(path))
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return _failed(known, "is not a file")
        if status.st_size > MAX_BYTES:
            return _failed(known, f"is larger than {MAX_BYTES >> 20} MiB, which no manifest needs")
        if known.fingerprint and _fingerprint(status) == known.fingerprint:
            return known
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        return None if is_gone(path, error) else _failed(known, _cannot_read(error))
    try:
        return _read(descriptor, known, profile)
    except OSError as error:
        return _failed(known, _cannot_read(error))
    finally:
        os.close(descriptor)


def is_gone(path: str, error: OSError) -> bool:
    """Whether there is nothing at `path`, not even a link to nothing."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(path)


def sentence(path: str, message: str) -> str:
    return str(Problem("", message, source=path))


def _read(descriptor: int, known: FileState, profile: Profile) -> FileState:
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):  # replaced since we looked
        return _busy(known)
    if _is_being_written(descriptor, before):
        return _busy(known)
    content = _bytes(descriptor)
    after = os.fstat(descriptor)
    if _fingerprint(before) != _fingerprint(after) or _is_being_written(descriptor, after):
        return _busy(known)
    is_old = abs(time.time() - after.st_mtime) > _TICK_SECONDS
    fingerprint = _fingerprint(after) if is_old else ()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    if digest == known.digest:
        return known._replace(fingerprint=fingerprint, busy_since=None)
    file = _parsed(known.file, content, profile)
    if len(content) > _LARGE_BYTES:
        _give_back_memory()
    return FileState(file, fingerprint, digest)


def _parsed(last: PodFile, content: bytes, profile: Profile) -> PodFile:
    path = last.path
    if len(content) > MAX_BYTES:
        return _with_problem(last, f"is larger than {MAX_BYTES >> 20} MiB, which no manifest needs")
    if not content.strip():
        # An editor on a full disk, or a writer that was killed, leaves nothing; whoever wants the pods to go removes
        # the file.
        return _with_problem(last, "is empty: to take its pods away, remove the file")
    try:
        reading = read_manifests(decoded(path, content), path, profile).without_duplicates()
    except EvenkeelError as error:
        return last._replace(problems=(str(error),), warnings=())
    except (RecursionError, MemoryError):
        return _with_problem(last, "is too complex to be read")
    if len(reading.pods) > MAX_PODS:
        return _with_problem(last, f"holds {len(reading.pods)} pods, and one file may hold {MAX_PODS}")
    warnings = _some(reading.warnings)
    if reading.problems:
        return last._replace(problems=_some(reading.problems), warnings=warnings)
    directory = os.path.dirname(path)
    return PodFile(path, tuple(with_absolute_images(pod, directory) for pod in reading.pods), (), warnings)


def _give_back_memory() -> None:
    """What a large file took to be read is not needed until the next; the C library would keep it."""
    gc.collect()
    trim = getattr(CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _some(problems: tuple[Problem, ...]) -> tuple[str, ...]:
    """Nobody reads the second page of them."""
    told = tuple(str(problem)[:1000] for problem in problems[:MAX_PROBLEMS])
    more = len(problems) - len(told)
    return (*told, f"{problems[0].source}: and {more} more") if more else told


def _failed(known: FileState, message: str) -> FileState:
    return FileState(_with_problem(known.file, message))


def _with_problem(file: PodFile, message: str) -> PodFile:
    return file._replace(problems=(sentence(file.path, message),), warnings=())


def _busy(known: FileState) -> FileState:
    """As it was; with a problem if it goes on for long."""
    now = time.monotonic()
    since = now if known.busy_since is None else known.busy_since
    file = known.file
    if now - since >= PATIENCE_SECONDS:
        file = _with_problem(file, "is being written: it is read when its writer has closed it")
    return FileState(file, busy_since=since)


def _is_being_written(descriptor: int, status: os.stat_result) -> bool:
    """Whether somebody has the file open for writing: then the kernel grants no lease for reading."""
    try:
        # Who opens it for writing while we hold the lease makes the kernel send us a signal: one without effect.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        # A file system without leases, or another's file.
        return abs(time.time() - status.st_mtime) < _SETTLE_SECONDS
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _bytes(descriptor: int) -> bytes:
    """At most one byte too many."""
    parts: list[bytes] = []
    left = MAX_BYTES + 1
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _cannot_read(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "is a link to nothing"
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
