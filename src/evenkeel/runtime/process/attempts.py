"""Where on disk an attempt is, and the little files that tell of it.

`STATE/pods/<uid>/<container>.<number>/` holds

- `launch`: everything the start needs (`spawn.Plan`), written by the client before it asks for the start;
- `process`: which process it is, written by the keeper after the fork and before the program runs;
- `exit`: how it ended, written before anybody is told;
- `stdout`, `stderr`: FIFOs.

A file is complete or not there: each is written beside and then renamed. One that cannot be read back (a disk that was
full, a machine that lost power) counts as not there.
"""

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from evenkeel.runtime.process.messages import AttemptKey, is_name
from evenkeel.runtime.process.paths import StatePaths

LAUNCH = "launch"
PROCESS = "process"
EXIT = "exit"
STDOUT = "stdout"
STDERR = "stderr"

_MOST_BYTES = 64 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class ProcessFile(NamedTuple):
    """Which process an attempt is. A number alone proves nothing: the time it started and the cgroup it is in do."""

    pid: int
    ticks: int
    cgroup: str  # the plan's path
    procs: tuple[str, ...]  # as the plan has them
    started_at: float
    has_pid_namespace: bool
    notes: tuple[str, ...] = ()


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
    text = json.dumps(value, separators=(",", ":")).encode("ascii")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        while text:
            text = text[os.write(descriptor, text) :]
    finally:
        os.close(descriptor)
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


def read_process(directory: str) -> ProcessFile | None:
    value = read_json(directory, PROCESS)
    return None if value is None else process_from(value)


def process_from(value: dict[str, Any]) -> ProcessFile | None:
    """What `_asdict` made; None if that is something else."""
    try:
        return ProcessFile(
            int(value["pid"]),
            int(value["ticks"]),
            str(value["cgroup"]),
            tuple(str(path) for path in value["procs"]),
            float(value["started_at"]),
            bool(value["has_pid_namespace"]),
            tuple(str(note) for note in value["notes"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def write_process(directory: str, process: ProcessFile) -> None:
    write_json(directory, PROCESS, process._asdict())


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: when the process started; None if it is not there. A zombie has one too."""
    stat = _stat(pid)
    return None if stat is None else int(stat[19])


def is_running(process: ProcessFile) -> bool:
    """Whether it is still that process and in that cgroup: alive, not only waiting for its parent to take note."""
    stat = _stat(process.pid)
    if stat is None or int(stat[19]) != process.ticks or stat[0] in (b"Z", b"X"):
        return False
    try:
        with open(f"/proc/{process.pid}/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    path = os.fsencode(process.cgroup)
    below = path.rstrip(b"/") + b"/"  # it may have made cgroups of its own
    return any((place := line.split(b":", 2)[2]) == path or place.startswith(below) for line in lines)


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if is_name(name))
    except OSError:
        return []


def _stat(pid: int) -> list[bytes] | None:
    """The fields from the third on: the name in brackets before them may hold anything."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", _READ)
    except OSError:
        return None
    try:
        fields = os.read(descriptor, 4096).rpartition(b") ")[2].split()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return fields if len(fields) > 19 else None
