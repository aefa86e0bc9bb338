"""Figures of processes from the kernel: children, memory and time."""

import os
from pathlib import Path

from evenkeel.named_tuples import NamedTuple


def below(pid: int) -> list[int]:
    """The processes that it started, and those that they started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in children for child in file.read_text().split()]
    return [*found, *(one for child in found for one in below(child))]


def named(pids: list[int], name: str) -> int:
    return next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == name)


def proportional_mib(pid: int) -> float:
    """A page that several processes share counts once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def together_mib(pids: list[int]) -> float:
    """The memory of processes that belong together. What several of them map of the same file counts once, and what
    other processes map of it does not matter."""
    own_kib = 0
    of_files: dict[tuple[str, str], int] = {}
    for pid in pids:
        part = ("", "")
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):  # a mapping begins: addresses, rights, offset, device, inode, file
                part = (words[5] if len(words) > 5 else "", words[2])
            elif words[0] == "Rss:":
                resident_kib = int(words[1])
            elif words[0] == "Anonymous:":
                own_kib += int(words[1])
                of_files[part] = max(of_files.get(part, 0), resident_kib - int(words[1]))
    return (own_kib + sum(of_files.values())) / 1024


def cpu_seconds(pid: int) -> float:
    """How long it has run, threads that have ended included, in whole ticks of the kernel's clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_seconds(pid: int) -> float:
    """How long its threads have run, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Waits(NamedTuple):
    """How often and how long its first thread has waited so far."""

    queued_seconds: float  # it could have run, and had no processor
    faults: int  # pages that were not in its memory
    disk_faults: int  # and had to be read
    pushed_aside: int  # how often another one got its processor

    def __sub__(self, before: "Waits") -> "Waits":
        return Waits(
            self.queued_seconds - before.queued_seconds,
            self.faults - before.faults,
            self.disk_faults - before.disk_faults,
            self.pushed_aside - before.pushed_aside,
        )


def waits(pid: int) -> Waits:
    task = Path(f"/proc/{pid}/task/{pid}")
    queued = int((task / "schedstat").read_text().split()[1]) / 1e9
    stat = (task / "stat").read_text().rpartition(")")[2].split()
    switches = (task / "status").read_text().rpartition("nonvoluntary_ctxt_switches:")[2]
    return Waits(queued, int(stat[7]), int(stat[9]), int(switches))
