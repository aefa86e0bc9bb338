"""/proc/PID/stat: a process's number alone proves nothing, with the time at which it started it does."""

import os
from typing import NamedTuple

# Fields 4, 10, 12, 14, 15, 20 and 22.
_PARENT, _MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM, _THREADS, _START_TIME = 1, 7, 9, 11, 12, 17, 19


class Process(NamedTuple):
    """A process, told apart from another that may have the same number later."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


class Stat(NamedTuple):
    start_ticks: int
    has_ended: bool  # and only waits for its parent to take note
    parent: int
    cpu_ticks: int
    threads: int
    minor_faults: int
    major_faults: int


def process_at(pid: int) -> Process | None:
    """The one that has this number now."""
    ticks = start_ticks(pid)
    return None if ticks is None else Process(pid, ticks)


def start_ticks(pid: int) -> int | None:
    """When the process started; None if it is not there. A zombie has one too."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def read_stat(pid: int) -> Stat | None:
    """None if there is no such process."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # From the third field on: the name in brackets before them may hold anything.
    fields = text.rpartition(b") ")[2].split()
    if len(fields) <= _START_TIME:
        return None
    return Stat(
        int(fields[_START_TIME]),
        fields[0] in (b"Z", b"X"),
        int(fields[_PARENT]),
        int(fields[_USER]) + int(fields[_SYSTEM]),
        int(fields[_THREADS]),
        int(fields[_MINOR_FAULTS]),
        int(fields[_MAJOR_FAULTS]),
    )
