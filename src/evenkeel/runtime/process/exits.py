"""How an attempt ended, on disk: written by the keeper before it tells anybody, so that it outlives all of them."""

import os
from typing import Any, NamedTuple

from evenkeel.runtime.attempts import read_json, write_json
from evenkeel.runtime.process.attempt_files import EXIT

SIGNALLED = 128  # a signal's exit code is this and its number
UNKNOWN_EXIT_CODE = 137  # as kubelet says of one of which nobody knows how it ended


class ExitFile(NamedTuple):
    exit_code: int
    signal: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    is_known: bool = True
    message: str = ""


def of_status(status: int, started_at: float, finished_at: float) -> ExitFile:
    """From what waitpid says."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitFile(SIGNALLED + number, number, started_at, finished_at)
    return ExitFile(os.WEXITSTATUS(status), 0, started_at, finished_at)


def unknown(started_at: float, finished_at: float) -> ExitFile:
    return ExitFile(UNKNOWN_EXIT_CODE, 0, started_at, finished_at, is_known=False)


def write_exit(directory: str, ended: ExitFile) -> None:
    """Raises OSError."""
    write_json(directory, EXIT, ended._asdict())


def read_exit(directory: str) -> ExitFile | None:
    value = read_json(directory, EXIT)
    return None if value is None else from_json(value)


def from_json(value: dict[str, Any]) -> ExitFile | None:
    try:
        return ExitFile(
            int(value["exit_code"]),
            int(value["signal"]),
            float(value["started_at"]),
            float(value["finished_at"]),
            bool(value["is_known"]),
            str(value["message"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
