"""The files of a container's log: the present one and the rotated ones, and the attempts that have a log.

A log may be rotated while its files are listed and opened.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO

from evenkeel.errors import EvenkeelError, reason

_TRIES = 8
_STEP_BYTES, _HEAD_BYTES = 64 << 10, 64


def open_files(path: str, tail: int | None) -> list[IO[bytes]]:
    """Opens the files of the log, each at the position where reading starts."""
    files = _all_files(path)
    if not files:
        raise EvenkeelError(
            f"there is no log at {path}", hint="the container has not started yet, or its log was removed"
        )
    if tail is None:
        return files
    wanted = _at_last_lines(files, tail)
    close_files(file for file in files if file not in wanted)
    return wanted


def newer_files(path: str, last: IO[bytes]) -> list[IO[bytes]]:
    """Opens the files after `last`, if it was rotated."""
    identity = _identity(last)
    with suppress(OSError):
        status = os.stat(path)
        if (status.st_dev, status.st_ino) == identity:
            return []
    files = _all_files(path)
    known = [_identity(file) for file in files]
    if identity not in known:
        return files  # `last` was removed: all files are newer
    after = known.index(identity) + 1
    close_files(files[:after])
    return files[after:]


def close_files(files: Iterable[IO[bytes]]) -> None:
    for file in files:
        file.close()


def attempts(directory: str) -> tuple[int, ...]:
    """Returns the attempts with a log in the log directory of a container, in order.

    The last one is the current attempt, or the last that has ended. During a rotation only the rotated file exists.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        logs = (name.partition(".log") for name in os.listdir(directory))
        numbers = {number for number, suffix, stamp in logs if suffix and (not stamp or stamp[0] == ".")}
        return tuple(sorted(int(number) for number in numbers if number.isascii() and number.isdigit()))
    return ()


def present_attempt(known: tuple[int, ...], *, has_begun: bool, restarts: int) -> int:
    """The attempt whose log is shown by default; 0 if there is none. `known` are the attempts with a log. An attempt
    that has begun has no log until it writes something; then the log of the previous attempt is not shown instead."""
    return max((*known[-1:], restarts + 1 if has_begun else 0))


def previous_attempt(
    known: tuple[int, ...], *, is_waiting: bool, restarts: int, id_: str, ended_id: str | None
) -> int | None:
    """The attempt of `known` that `--previous` shows, as kubectl does; None if there is none.

    A container that waits for its restart has its last attempt as its previous one: its status has the id of the run
    that has ended last. The next attempt may have a log already. `ended_id` is None if no run has ended. An attempt
    that runs has no log until it writes something."""
    if is_waiting and ended_id == id_:
        known = tuple(number for number in known if number <= restarts + 1)
    has_log = known[-1:] >= (restarts + 1,)
    is_begun = not is_waiting or ended_id not in (None, id_)
    ended = known[:-1] if has_log and is_begun else known
    return ended[-1] if ended else None


def _all_files(path: str) -> list[IO[bytes]]:
    """Opens all files, oldest first. If a rotation happens between listing and opening, it starts again."""
    files: list[IO[bytes]] = []
    for _ in range(_TRIES):
        names = _names(path)
        close_files(files)
        files = []
        for name in names:
            with suppress(FileNotFoundError):
                files.append(_open(name))
        if _names(path) == names:
            break
    return files


def _names(path: str) -> list[str]:
    directory, name = os.path.split(path)
    try:
        found = sorted(other for other in os.listdir(directory) if other.startswith(f"{name}."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise EvenkeelError(f"cannot read {directory}: {reason(error)}") from None
    current = [path] if os.path.lexists(path) else []
    return [os.path.join(directory, other) for other in found] + current


def _open(path: str) -> IO[bytes]:
    try:
        return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EvenkeelError(f"cannot read {path}: {reason(error)}") from None


def _at_last_lines(files: list[IO[bytes]], count: int) -> list[IO[bytes]]:
    """Returns the files with the last `count` lines. The first file is at the position where these lines begin."""
    is_last_entry = True
    for index in range(len(files) - 1, -1, -1):
        for end, head in _backwards(files[index].fileno()):
            is_whole = head.split(b" ", 3)[2:3] == [b"F"]
            if is_whole or is_last_entry:  # the last line counts even if it is not complete
                if count == 0:
                    files[index].seek(end)
                    return files[index:]
                count -= 1
            is_last_entry = False
    return files


def _backwards(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """Yields the end of each entry of the file and its first bytes, the last entry first."""
    position, held = os.fstat(descriptor).st_size, b""
    while position > 0:
        step = min(_STEP_BYTES, position)
        position -= step
        held = os.pread(descriptor, step, position) + held
        end = len(held)
        while (before := held.rfind(b"\n", 0, max(end - 1, 0))) >= 0:
            yield position + end, held[before + 1 : min(end, before + 1 + _HEAD_BYTES)]
            end = before + 1
        held = held[:end]
    if held:
        yield len(held), held[:_HEAD_BYTES]


def _identity(file: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino
