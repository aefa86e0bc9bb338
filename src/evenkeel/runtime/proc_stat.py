"""/proc/PID/stat: a process's number alone proves nothing, with the time at which it started it does."""

import os
from typing import NamedTuple

_START_TIME = 19  # field 22


class Stat(NamedTuple):
    start_ticks: int
    has_ended: bool  # and only waits for its parent to take note


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
    return Stat(int(fields[_START_TIME]), fields[0] in (b"Z", b"X"))
