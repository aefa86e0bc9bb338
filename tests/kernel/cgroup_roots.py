"""A cgroup for a test at the top of every hierarchy. It is limited, and removed at the end with everything in it."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.kernel import systemd
from tests.kernel.cgroups import UNIFIED, Cgroup, hierarchies, named_hierarchies, removed, temporary
from tests.kernel.waiting import eventually

# Bounds of everything that is done in it, whatever else is set: the host has other work.
MEMORY_BYTES = 1 << 30
PROCESSES = 512


def is_systemd_in_charge() -> bool:
    """Whether systemd manages the cgroups. On a hybrid host the controllers are on v1, which systemd leaves alone."""
    return "memory" not in hierarchies() and Path("/run/systemd/system").exists()


@contextlib.contextmanager
def bounded_root(name: str, *, is_slice: bool) -> Iterator[Cgroup]:
    """A new cgroup in every hierarchy, with a bound on memory and processes; under systemd it is a slice."""
    with _slice_root(f"{name}.slice") if is_slice else _plain_root(name) as root:
        yield root


@contextlib.contextmanager
def _plain_root(name: str) -> Iterator[Cgroup]:
    tops = Cgroup(hierarchies())
    root = Cgroup({key: path / name for key, path in tops.directories.items()})
    try:
        with temporary(root):
            # On a hybrid host what v2 hands on from its top is not ours to change; v1 has the controllers that matter.
            tops.child(name, controllers=set(tops.directories) == {UNIFIED})
            if root.has("memory.max"):
                root.write("memory.max", MEMORY_BYTES)
            else:
                root.write("memory.limit_in_bytes", MEMORY_BYTES)
            root.write("pids.max", PROCESSES)
            yield root
    finally:
        for top in named_hierarchies():
            eventually(partial(removed, top / name))


@contextlib.contextmanager
def _slice_root(unit: str) -> Iterator[Cgroup]:
    """A cgroup made behind systemd's back may lose its controllers to it."""
    root = Cgroup({UNIFIED: hierarchies()[UNIFIED] / unit})
    # A controller reaches the slice where a property needs it.
    properties = {"CPUWeight": 100, "IOWeight": 100, "MemoryMax": MEMORY_BYTES, "TasksMax": PROCESSES}
    with temporary(root):
        systemd.start_slice(unit, {name: ("t", str(value)) for name, value in properties.items()})
        try:
            # The last that systemd writes: until then it may still take away controllers that we hand on.
            eventually(lambda: root.has("pids.max") and root.read("pids.max") == str(PROCESSES))
            yield root
        finally:
            systemd.stop_unit(unit)
