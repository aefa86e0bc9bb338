"""What the kernel counts of processes: their children, memory and time."""

from pathlib import Path


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


def run_seconds(pid: int) -> float:
    """How long its threads have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def queued_seconds(pid: int) -> float:
    """How long its first thread could have run and had no processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
