"""The statistics of a cgroup from the text of its files: parsing apart from reading.

`V1_FILES` and `V2_FILES` name the files, in the order in which `v1_statistics` and `v2_statistics` take their contents,
and their greatest length. The content of a file that the kernel does not have is empty. This runs for every container
at every sweep, so it searches the bytes for the few lines that it needs.
"""

from collections.abc import Sequence

from evenkeel.cgroup.driver import Statistics

_NUMBER_BYTES = 64
_LINES_BYTES = 1024
MOST_BYTES = 8192  # more than memory.stat has

# Without the first file of each there are no statistics.
V2_FILES = {
    "memory.current": _NUMBER_BYTES,
    "memory.stat": MOST_BYTES,
    "cpu.stat": _LINES_BYTES,
    "pids.current": _NUMBER_BYTES,
    "memory.events": _LINES_BYTES,
    "memory.swap.current": _NUMBER_BYTES,
}
V1_FILES = {
    "memory.usage_in_bytes": _NUMBER_BYTES,
    "memory.stat": MOST_BYTES,
    "cpuacct.usage": _NUMBER_BYTES,
    "cpu.stat": _LINES_BYTES,
    "pids.current": _NUMBER_BYTES,
    "memory.oom_control": _LINES_BYTES,
}


def v2_statistics(contents: Sequence[bytes]) -> Statistics:
    current, stat, cpu, pids, events, swap = contents
    usage = int(current)
    anon, dirty, writeback, inactive_file, active_file, faults, major_faults = _V2_STAT.numbers(stat)
    return Statistics(
        usage,
        usage - inactive_file if inactive_file < usage else 0,
        droppable(inactive_file + active_file, dirty + writeback),
        anon,
        field(b"\n" + cpu, b"\nusage_usec "),
        field(cpu, b"\nthrottled_usec "),
        int(pids or 0),
        faults,
        major_faults,
        field(events, b"\noom_kill "),
        int(swap) if swap else None,
    )


def v1_statistics(contents: Sequence[bytes]) -> Statistics:
    """v1 counts a cgroup alone, and with all below it (`total_`). v2 does the latter only, so that is used."""
    usage_text, stat, cpu_usage, cpu, pids, oom_control = contents
    usage = int(usage_text)
    rss, dirty, writeback, swap, inactive_file, active_file, faults, major_faults = _V1_STAT.numbers(stat)
    return Statistics(
        usage,
        usage - inactive_file if inactive_file < usage else 0,
        droppable(inactive_file + active_file, dirty + writeback),
        rss,
        int(cpu_usage or 0) // 1000,
        field(cpu, b"\nthrottled_time ") // 1000,
        int(pids or 0),
        faults,
        major_faults,
        field(oom_control, b"\noom_kill "),
        swap if b"\ntotal_swap " in stat else None,
    )


def droppable(file_pages: int, unwritten: int) -> int:
    """File cache that the kernel can free at once (E3). Its file lists have neither tmpfs nor locked pages. They do
    have pages that must be written to disk first, which are subtracted."""
    return file_pages - unwritten if unwritten < file_pages else 0


def field(text: bytes, key: bytes) -> int:
    """The number after `key`, which is a line break, a name and a blank; 0 if there is no such line."""
    start = text.find(key)
    if start < 0:
        return 0
    start += len(key)
    return int(text[start : text.find(b"\n", start)])


class Layout:
    """Numbers of a long file with lines `name number`. A kernel writes them always in the same order, so the place of
    each name is searched once for each number of lines."""

    def __init__(self, *names: bytes) -> None:
        self._names = names
        self._places: dict[int, list[tuple[int, int]]] = {}

    def numbers(self, text: bytes) -> list[int]:
        """The number of each name, 0 where there is no such line."""
        lines = text.split(b"\n")
        lines[-1] = b"0"  # the empty rest after the last line: stands for names that are missing
        places = self._places.get(len(lines))
        if places is None:
            of_name = {line.partition(b" ")[0]: index for index, line in enumerate(lines)}
            places = [(of_name.get(name, -1), len(name) if name in of_name else 0) for name in self._names]
            self._places[len(lines)] = places
        return [int(lines[index][start:]) for index, start in places]


_V2_STAT = Layout(
    b"anon", b"file_dirty", b"file_writeback", b"inactive_file", b"active_file", b"pgfault", b"pgmajfault"
)
_V1_STAT = Layout(
    b"total_rss",
    b"total_dirty",
    b"total_writeback",
    b"total_swap",
    b"total_inactive_file",
    b"total_active_file",
    b"total_pgfault",
    b"total_pgmajfault",
)
