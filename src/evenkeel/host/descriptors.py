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
        try:
            entries = os.scandir(f"{proc}/{pid}/fd")
        except OSError:
            continue  # it has ended
        with entries:
            for name in _names(entries):
                count += 1
                if count % _SLICE_DESCRIPTORS == 0:
                    between()
                if count > _MOST_DESCRIPTORS:
                    return
                yield pid, name


def _names(entries: Iterator["os.DirEntry[str]"]) -> Iterator[str]:
    with suppress(OSError):  # the process has ended
        for entry in entries:
            yield entry.name
