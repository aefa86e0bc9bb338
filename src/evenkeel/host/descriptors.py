"""The open files of processes, as /proc lists them. A process may end, or open a million files, at any moment."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

_MOST_DESCRIPTORS = 1 << 20  # that one call lists
_SLICE_DESCRIPTORS = 512


def open_descriptors(
    pids: Iterable[int], proc: str = "/proc", between: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, str]]:
    """The processes, and the number of each file that they have open. `between` is called now and then. The list ends
    after so many that a container cannot keep its reader busy."""
    count = 0
    for pid in pids:
        for name in descriptors_of(f"{proc}/{pid}"):
            count += 1
            if count % _SLICE_DESCRIPTORS == 0:
                between()
            if count > _MOST_DESCRIPTORS:
                return
            yield pid, name


def descriptors_of(process: str) -> Iterator[str]:
    """The numbers of the files that are open in a process, given its directory in /proc. None if it has ended."""
    with suppress(OSError), os.scandir(f"{process}/fd") as entries:
        for entry in entries:
            yield entry.name
