"""Reading container logs in the CRI format back, across rotation."""

from collections.abc import Callable, Iterator
from typing import NamedTuple


class LogLine(NamedTuple):
    timestamp: str  # RFC 3339, nanoseconds
    stream: str
    text: bytes  # without its newline
    is_whole: bool = True  # False: the container has not ended the line yet


def read_logs(path: str, *, tail: int | None = None, since_seconds: float | None = None) -> Iterator[LogLine]:
    """The lines of the log at `path` (STATE/logs/…/<attempt>.log) and of the files it was rotated to, oldest first;
    the last `tail` of them; of those not older than `since_seconds` (since the epoch). Raises EvenkeelError if there is no log."""
    raise NotImplementedError


def follow(
    path: str,
    *,
    tail: int | None = None,
    since_seconds: float | None = None,
    is_over: Callable[[], bool],
) -> Iterator[LogLine]:
    """The same, and then what is added, until `is_over` (asked about once a second) and nothing more is there. Blocks."""
    raise NotImplementedError


def attempts(directory: str) -> tuple[int, ...]:
    """The attempts of which a container's log directory has a log, in order: the last is the current one, the one
    before it is what `--previous` shows."""
    raise NotImplementedError


def last_lines(path: str, *, lines: int = 80, max_bytes: int = 2048) -> str:
    """For a termination message: the end of a log."""
    raise NotImplementedError


def termination_message(attempt_directory: str, log_path: str, policy: str, *, is_error: bool) -> str:
    """What the container left in its termination message file (at most 4096 bytes), or with
    `FallbackToLogsOnError`, where that is empty and it failed, the end of its log."""
    raise NotImplementedError
