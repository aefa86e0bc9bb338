"""From a container's stdout and stderr to its log file, in the CRI format, bounded in size and in speed."""

from collections.abc import Callable
from typing import NamedTuple


class LogLimits(NamedTuple):
    max_bytes: int = 10 << 20  # of a file, then it is rotated
    max_files: int = 5
    bytes_per_second: int = 2 << 20  # sustained; what is above waits in the container's pipe
    burst_bytes: int = 8 << 20


class LogRelay:
    """Between two FIFOs (or pipes) and a file; never blocks. Its owner polls `descriptors` and calls `pump`."""

    def __init__(
        self,
        stdout: int,
        stderr: int,
        path: str,
        limits: LogLimits,
        *,
        wall_clock_ns: Callable[[], int] = ...,
        clock: Callable[[], float] = ...,
    ) -> None:
        """Owns both descriptors, which must not block. The file's directory exists; the file is appended to."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those still open, to be polled for reading. One that is at its end has been closed and is gone from here."""
        raise NotImplementedError

    def pump(self, descriptor: int) -> float:
        """Moves what is there (a bounded amount). Returns for how many seconds none of `descriptors` wants to be polled:
        0.0 mostly, more when the container has used up its budget. Never raises."""
        raise NotImplementedError

    def finish(self) -> None:
        """The container has ended: takes what is left in the pipes (whatever the budget), the last unterminated line
        too, and closes everything."""
        raise NotImplementedError
