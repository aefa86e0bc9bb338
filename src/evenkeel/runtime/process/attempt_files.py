"""The files that client and keeper have in an attempt's directory:

- `launch`: everything the start needs (`spawn.Plan`), written by the client before it asks for the start;
- `process`: which process it is, written by the keeper after the fork and before the program runs;
- `exit`: how it ended, written before anybody is told;
- `stdout`, `stderr`: FIFOs.
"""

import os
from typing import Any, NamedTuple

from evenkeel.runtime.attempts import read_json, write_json
from evenkeel.runtime.proc_stat import read_stat

LAUNCH = "launch"
PROCESS = "process"
EXIT = "exit"
STDOUT = "stdout"
STDERR = "stderr"


class ProcessFile(NamedTuple):
    """Which process an attempt is. A number alone proves nothing: the time it started and the cgroup it is in do."""

    pid: int
    ticks: int
    cgroup: str  # the plan's path
    procs: tuple[str, ...]  # as the plan has them
    started_at: float
    has_pid_namespace: bool
    notes: tuple[str, ...] = ()


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


def is_running(process: ProcessFile) -> bool:
    """Whether it is still that process and in that cgroup: alive, not only waiting for its parent to take note."""
    stat = read_stat(process.pid)
    if stat is None or stat.start_ticks != process.ticks or stat.has_ended:
        return False
    try:
        with open(f"/proc/{process.pid}/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    path = os.fsencode(process.cgroup)
    below = path.rstrip(b"/") + b"/"  # it may have made cgroups of its own
    return any((place := line.split(b":", 2)[2]) == path or place.startswith(below) for line in lines)
