"""How long the tasks of a cgroup waited for a CPU.

cgroup v2 counts it for each cgroup (`cpu.pressure`): the time in which at least one task waited. Version 1 does not;
there the kernel's count for each task is added up (`/proc/TASK/schedstat`). What a task waited since it was last looked
at is not known if it has ended since: the sum is then less than it was.
"""

import os

from evenkeel.host.pressure import Resource, cgroup_file, parse_pressure

_MOST_TASKS = 512  # of one cgroup: of more than that, the sum is of these


def waited_some_us(directory: str) -> int | None:
    """cgroup v2: since it was made, as far as that is counted; None if it is not."""
    text = _read(cgroup_file(directory, Resource.CPU))
    return parse_pressure(text.decode("ascii", "replace")).some.total_us if text else None


class TaskWaits:
    """cgroup v1: adds up over looks at the tasks of one or more directories."""

    def __init__(self) -> None:
        self.waited_us = 0
        self._seen_ns: dict[int, int] = {}  # by task

    def look(self, directories: tuple[str, ...]) -> None:
        tasks = [int(task) for one in directories for task in _read(f"{one}/tasks").split()[:_MOST_TASKS]]
        now: dict[int, int] = {}
        for task in tasks:
            words = _read(f"/proc/{task}/schedstat").split()  # time on a CPU, time waiting for one, turns
            if len(words) == 3:
                now[task] = int(words[1])
        # A number that is smaller than before is another task's.
        added = sum(max(waited - self._seen_ns.get(task, 0), 0) for task, waited in now.items())
        if self._seen_ns:
            self.waited_us += added // 1000
        self._seen_ns = now


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
