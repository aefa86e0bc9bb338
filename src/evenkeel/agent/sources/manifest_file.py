"""Reads one manifest file again after a change, even while another program still writes it.

A file that is open for writing is not read until its writer has closed it. A file with an error keeps the pods that it
had before, and its problems are reported. A file with unchanged bytes is not parsed again.
"""

import errno
import fcntl
import gc
import hashlib
import os
import signal
import stat
import time

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.api.stored_objects import StoredObject
from evenkeel.api.workloads import Workload, replicas_of
from evenkeel.errors import EvenkeelError, Problem, reason
from evenkeel.host.allocator import give_back_memory
from evenkeel.host.files import decoded
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.images.relative_images import with_absolute_images, workload_with_absolute_images

MAX_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 256 * 1024
MAX_PODS = 1000
MAX_PROBLEMS = 20
# A file may be open for writing for this long before that is reported as a problem.
PATIENCE_SECONDS = 2.0
# Some file systems do not say whether a file is open for writing. Such a file counts as being written until this long
# after its last change.
_SETTLE_SECONDS = 0.5
# Two changes within one tick of the file system's clock have the same timestamp. Only the bytes differ.
_TICK_SECONDS = 0.05


class PodFile(NamedTuple):
    """One manifest file. If it has `problems`, `pods`, `objects` and `workloads` are those of its last version without
    problems."""

    path: str  # absolute
    pods: tuple[Pod, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    objects: tuple[StoredObject, ...] = ()  # ConfigMaps and Secrets
    workloads: tuple[Workload, ...] = ()


class FileState(NamedTuple):
    """The state of a file when it was last read. The next reading compares the file with it."""

    file: PodFile
    fingerprint: tuple[int, ...] = ()  # of the inode; empty: not known
    digest: bytes = b""  # of the content
    busy_since: float | None = None  # set while the file is being written


def reread(path: str, last: FileState | None, profile: Profile) -> FileState | None:
    """Returns the present state of the file at `path`; None if the file is gone. `last` is its previous state."""
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
    """Whether `path` does not exist. A dangling symbolic link exists."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(path)


def sentence(path: str, message: str) -> str:
    return str(Problem("", message, source=path))


def _read(descriptor: int, known: FileState, profile: Profile) -> FileState:
    began_at = time.time()  # a change within a tick of it may have the timestamp that is seen here
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):  # replaced since the stat
        return _busy(known)
    if _is_being_written(descriptor, before):
        return _busy(known)
    content = _bytes(descriptor)
    after = os.fstat(descriptor)
    if _fingerprint(before) != _fingerprint(after) or _is_being_written(descriptor, after):
        return _busy(known)
    is_old = abs(began_at - after.st_mtime) > _TICK_SECONDS
    fingerprint = _fingerprint(after) if is_old else ()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    if digest == known.digest:
        return known._replace(fingerprint=fingerprint, busy_since=None)
    file = _parsed(known.file, content, profile)
    if len(content) > _LARGE_BYTES:
        gc.collect()
        give_back_memory()
    return FileState(file, fingerprint, digest)


def _parsed(last: PodFile, content: bytes, profile: Profile) -> PodFile:
    path = last.path
    if len(content) > MAX_BYTES:
        return _with_problem(last, f"is larger than {MAX_BYTES >> 20} MiB, which no manifest needs")
    if not content.strip():
        # An editor on a full disk leaves an empty file, and so does a writer that was killed. So an empty file removes
        # no pods. The user removes the file to remove its pods.
        return _with_problem(last, "is empty: to take its pods away, remove the file")
    try:
        reading = read_manifests(decoded(path, content), path, profile).without_duplicates()
    except EvenkeelError as error:
        return last._replace(problems=(str(error),), warnings=())
    except (RecursionError, MemoryError):
        return _with_problem(last, "is too complex to be read")
    count = len(reading.pods) + sum(replicas_of(one.workload) for one in reading.workloads)
    if count > MAX_PODS:
        return _with_problem(last, f"holds {count} pods, and one file may hold {MAX_PODS}")
    warnings = _some(reading.warnings)
    if reading.problems:
        return last._replace(problems=_some(reading.problems), warnings=warnings)
    directory = os.path.dirname(path)
    pods = tuple(with_absolute_images(pod, directory) for pod in reading.pods)
    workloads = tuple(workload_with_absolute_images(one.workload, directory) for one in reading.workloads)
    return PodFile(path, pods, (), warnings, reading.objects, workloads)


def _some(problems: tuple[Problem, ...]) -> tuple[str, ...]:
    """Only the first problems: a reader has no use for a longer list."""
    shown = tuple(str(problem)[:1000] for problem in problems[:MAX_PROBLEMS])
    more = len(problems) - len(shown)
    return (*shown, f"{problems[0].source}: and {more} more") if more else shown


def _failed(known: FileState, message: str) -> FileState:
    return FileState(_with_problem(known.file, message))


def _with_problem(file: PodFile, message: str) -> PodFile:
    return file._replace(problems=(sentence(file.path, message),), warnings=())


def _busy(known: FileState) -> FileState:
    """The file keeps its last state. It gets a problem if it is being written for too long."""
    now = time.monotonic()
    since = now if known.busy_since is None else known.busy_since
    file = known.file
    if now - since >= PATIENCE_SECONDS:
        file = _with_problem(file, "is being written: it is read when its writer has closed it")
    return FileState(file, busy_since=since)


def _is_being_written(descriptor: int, status: os.stat_result) -> bool:
    """Whether a process has the file open for writing. In that case the kernel grants no read lease."""
    try:
        # If a process opens the file for writing while we hold the lease, the kernel sends us a signal. SIGURG has no
        # effect by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        # The file system has no leases, or the file belongs to another user.
        return abs(time.time() - status.st_mtime) < _SETTLE_SECONDS
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _bytes(descriptor: int) -> bytes:
    """The content of the file, up to one byte more than the limit. The extra byte shows that the file is too large."""
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
    return f"cannot be read: {reason(error)}"
