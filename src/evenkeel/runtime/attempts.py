"""The directories of attempts, `STATE/pods/<uid>/<container>.<number>/`, and the little files that runtimes keep there.

A file is complete or not there: each is written beside and then renamed. One that cannot be read back (a disk that was
full, a machine that lost power) counts as not there.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from evenkeel.host.files import write_own
from evenkeel.runtime.paths import StatePaths, is_name

AttemptKey = tuple[str, str, int]  # `interface.Attempt`, where its module is too much to import

TERMINATION_LOG = "termination-log"  # the container's own, in the attempt's directory

_MOST_BYTES = 64 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def every_attempt(paths: StatePaths) -> Iterator[AttemptKey]:
    """All attempts that have a directory."""
    for uid in _names_in(paths.pods):
        for container, number in attempts_of(uid, paths):
            yield uid, container, number


def attempts_of(uid: str, paths: StatePaths) -> Iterator[tuple[str, int]]:
    """Those of one pod: container and number."""
    for name in _names_in(f"{paths.pods}/{uid}"):
        container, _, number = name.rpartition(".")
        if container and number.isascii() and number.isdecimal() and str(int(number)) == number:
            yield container, int(number)


def write_json(directory: str, name: str, value: object) -> None:
    """Raises OSError."""
    temporary = f"{directory}/.{name}"
    write_own(temporary, json.dumps(value, separators=(",", ":")).encode("ascii"))
    os.rename(temporary, f"{directory}/{name}")


def read_json(directory: str, name: str) -> dict[str, Any] | None:
    """None if there is no such file, or nothing in it that can be read."""
    try:
        descriptor = os.open(f"{directory}/{name}", _READ)
    except OSError:
        return None
    try:
        parts = []
        left = _MOST_BYTES
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
        value = json.loads(b"".join(parts))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return value if isinstance(value, dict) else None


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if is_name(name))
    except OSError:
        return []
