"""Cgroups for tests, in every hierarchy that is mounted, made and removed without the code under test."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.kernel.live_tree import cgroups_below, processes_in
from tests.kernel.waiting import eventually

V1_CONTROLLERS = frozenset(
    ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls", "net_prio",
     "perf_event", "pids", "rdma")
)  # fmt: skip
UNIFIED = ""  # the key of the cgroup v2 hierarchy


def hierarchies(mountinfo: str | None = None) -> dict[str, Path]:
    """The mount of each cgroup v1 controller, and that of cgroup v2 as `UNIFIED`: see proc_pid_mountinfo(5)."""
    found: dict[str, Path] = {}
    for directory, kind, options in _mounted(mountinfo):
        for key in [UNIFIED] if kind == "cgroup2" else V1_CONTROLLERS.intersection(options):
            found.setdefault(key, directory)
    return found


def named_hierarchies(mountinfo: str | None = None) -> list[Path]:
    """The hierarchies of v1 without a controller, such as systemd's. runc makes a container's cgroup there too."""
    mounted = _mounted(mountinfo)
    return [directory for directory, _, options in mounted if any(one.startswith("name=") for one in options)]


def _mounted(mountinfo: str | None) -> Iterator[tuple[Path, str, list[str]]]:
    for line in (mountinfo or Path("/proc/self/mountinfo").read_text()).splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ")
        root, directory = mount.split(" ")[3:5]
        if kind in ("cgroup", "cgroup2") and root == "/":
            yield Path(directory), kind, options.split(",")


class Cgroup:
    """One cgroup: a directory in each hierarchy, found by the name of the file that is asked for."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self.directories = dict(directories)

    def __repr__(self) -> str:
        return f"Cgroup({', '.join(map(str, self.paths()))})"

    def paths(self) -> list[Path]:
        """Each directory once: controllers may be mounted together."""
        return list(dict.fromkeys(self.directories.values()))

    def path_in_hierarchy(self, root: "Cgroup") -> str:
        """The path as the kernel and plans have it. `root` is the test's own cgroup, at the top of every hierarchy."""
        return f"/{self.paths()[0].relative_to(root.paths()[0].parent)}"

    def file(self, name: str) -> Path:
        """The file `name`: in its v1 controller's hierarchy if it is there, else in the unified one."""
        candidates = [
            self.directories[key] / name
            for key in (name.partition(".")[0], UNIFIED)
            if key in self.directories
        ]
        for path in candidates:
            if path.exists():
                return path
        raise FileNotFoundError(f"no {name} in {self}")

    def has(self, name: str) -> bool:
        try:
            return self.file(name).exists()
        except FileNotFoundError:
            return False

    def read(self, name: str) -> str:
        return self.file(name).read_text().strip()

    def write(self, name: str, value: str | int) -> None:
        self.file(name).write_text(str(value))

    def counters(self, name: str) -> dict[str, int]:
        """A file of lines `KEY NUMBER`, such as memory.events or cpu.stat."""
        return {key: int(value) for key, value in (line.split() for line in self.read(name).splitlines())}

    def processes(self) -> set[int]:
        """The processes in this cgroup and below, by any hierarchy."""
        found: set[int] = set()
        for path in self.paths():
            for directory in (path, *cgroups_below(path)):
                found.update(processes_in(directory))
        return found

    def child(self, name: str, *, controllers: bool = True) -> "Cgroup":
        """Make the cgroup `name` below, with every controller that v2 has here, unless they are to stay as they are."""
        if controllers and UNIFIED in self.directories:
            enable_controllers(self.directories[UNIFIED])
        made = Cgroup({key: path / name for key, path in self.directories.items()})
        for path in made.paths():
            path.mkdir()
        if "cpuset" in self.directories:
            for file in (
                "cpuset.cpus",
                "cpuset.mems",
            ):  # v1: empty in a new cgroup, and then nothing may enter
                made.write(file, self.read(file))
        return made

    def kill(self) -> None:
        """Kill everything in it and below, also what forks meanwhile or is frozen."""
        if not any(path.exists() for path in self.paths()):
            return
        with contextlib.suppress(OSError):
            self.write("pids.max", 0)
        eventually(self._kill_once)

    def remove(self) -> None:
        """Kill what is in it, and remove it with all below in every hierarchy."""
        self.kill()
        for path in self.paths():
            eventually(partial(removed, path))

    def _kill_once(self) -> bool:
        with contextlib.suppress(OSError):
            self.write("cgroup.kill", 1)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if "freezer" in self.directories:
            top = self.directories["freezer"]
            for directory in (*cgroups_below(top, deepest_first=True), top):
                with contextlib.suppress(OSError):
                    (directory / "freezer.state").write_text("THAWED")
        return not self.processes()


def enable_controllers(directory: Path) -> None:
    """Hand every controller of the v2 cgroup at `directory` on to those below it."""
    offered = set((directory / "cgroup.controllers").read_text().split())
    missing = offered - set((directory / "cgroup.subtree_control").read_text().split())
    if missing:
        (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(missing)))


@contextlib.contextmanager
def temporary(cgroup: Cgroup) -> Iterator[Cgroup]:
    """`cgroup`, removed at the end whatever happens."""
    try:
        yield cgroup
    finally:
        cgroup.remove()


def removed(path: Path) -> bool:
    """Remove the directory with all below it; False while something is still on its way out."""
    for directory in (*cgroups_below(path, deepest_first=True), path):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not path.exists()
