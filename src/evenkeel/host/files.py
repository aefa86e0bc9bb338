"""Reading the files that users name: bounded, text only, with a sentence for every failure. And writing our own."""

import os
import stat
from collections.abc import Iterable, Iterator

from evenkeel.errors import EvenkeelError, is_shortage, reason

MAX_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1 << 16  # for a larger buffer memory is mapped, and unmapped afterwards
MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
_FEW_DESCRIPTORS = 8  # about as many as the start of a container takes


def descriptor_shortage() -> str:
    """Says that this process can open no more files, as the end of a sentence; empty if it can open a few."""
    opened: list[int] = []
    try:
        while len(opened) < _FEW_DESCRIPTORS:
            opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        return f"can open no more files: {reason(error)}" if is_shortage(error) else ""
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""


def read_text(path: str) -> str:
    """The text of the file at `path`; `-` is standard input."""
    try:
        # O_NONBLOCK: a named pipe that is given by mistake must not block.
        descriptor = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EvenkeelError(f"cannot read {path}: {reason(error)}") from None
    except ValueError:
        raise EvenkeelError(f"cannot read {path!r}: a path has no zero byte") from None
    try:
        if path != "-" and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EvenkeelError(f"cannot read {path}: it is not a file")
        return decoded(path, _bounded(path, descriptor))
    finally:
        if path != "-":
            os.close(descriptor)


def manifest_paths(path: str) -> Iterator[str]:
    """`path` itself, or if it is a directory every YAML and JSON file in it, ordered by name."""
    if path == "-" or not os.path.isdir(path):
        yield path
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise EvenkeelError(f"cannot read {path}: {reason(error)}") from None
    found = [name for name in names if is_manifest_name(name)]
    if not found:
        raise EvenkeelError(f"{path} holds no manifest: no file there ends in {', '.join(MANIFEST_SUFFIXES)}")
    for name in found:
        yield os.path.join(path, name)


def is_manifest_name(name: str) -> bool:
    """Whether a directory entry is a manifest, and not a hidden file or the backup of an editor."""
    return name.endswith(MANIFEST_SUFFIXES) and not name.startswith(".")


def write_own(path: str, content: bytes, *, is_lasting: bool = False) -> None:
    """Writes a file that only this user can read; no symlink is followed. With `is_lasting` it returns when the content
    is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if is_lasting:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_own(path: str, content: bytes) -> None:
    """Writes a file that only this user can read, as a whole or not at all. A reader finds the former content or this
    one, at any moment and also after a crash. Raises OSError."""
    new = f"{path}.new"
    write_own(new, content, is_lasting=True)
    os.rename(new, path)
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def file_stamps(paths: Iterable[str]) -> tuple[tuple[int, int], ...] | None:
    """Differs from an earlier result if one of the files was written or replaced meanwhile. None if one is missing: it
    may be being replaced."""
    try:
        return tuple((seen.st_mtime_ns, seen.st_ino) for seen in map(os.stat, paths))
    except OSError:
        return None


def decoded(path: str, content: bytes) -> str:
    """The text of a file. `path` is for the error message."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise EvenkeelError(f"{path}:{line}: is not text in UTF-8") from None


def _bounded(path: str, descriptor: int) -> bytes:
    parts: list[bytes] = []
    left = MAX_BYTES + 1
    while left > 0:
        try:
            part = os.read(descriptor, min(left, _READ_BYTES))
        except OSError as error:
            raise EvenkeelError(f"cannot read {path}: {reason(error)}") from None
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    raise EvenkeelError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which no manifest needs")
