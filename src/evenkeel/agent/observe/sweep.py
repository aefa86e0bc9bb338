"""Sweeps: each sweep reads the statistics of all cgroups. One sweep serves all clients that ask within a second. While
no client asks, nothing is read.

A sweep runs in its own thread with its own driver. So neither the agent's loop nor the memory watch waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Protocol

from evenkeel.agent.node.daemons import Daemon, Daemons
from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Kind, Naming, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import parse_meminfo
from evenkeel.host.files import read_text
from evenkeel.host.memory_figures import cgroup_memory, node_memory
from evenkeel.host.node_figures import MachineFigures, Pressures, Rates, Sample, machine_figures
from evenkeel.host.psi import parse_pressure
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import NodeFigures
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.disk.disk_readings import DiskTargets, NodeReading
from evenkeel.runtime.procfs import Process

_FRESH_SECONDS = 0.95  # a younger sweep is used again; a client that asks once a second gets a new one
_APPLIED_SECONDS = 5.0
_KEPT_SECONDS = 60.0  # files stay open this long after the last sweep that was shown
_PRESSURE_FILES = ("cpu.pressure", "memory.pressure", "io.pressure")
_NO_TREE = Tree(Version.V2, Naming.CGROUPFS, ())


class Sweep(NamedTuple):
    number: int
    at: float
    tree: Tree
    samples: Mapping[str, Sample]  # by path; only cgroups of the tree that exist
    daemons: Mapping[str, Daemon]  # by name
    machine: MachineFigures
    machine_nanocores: int | None
    node: NodeFigures  # the eviction signals
    applied: Observed = MappingProxyType({})  # the kernel's values of the files that the tree sets (E17)
    took_seconds: float = 0.0
    is_shown: bool = True


class Sweeper:
    """`tree` returns the present cgroup tree. `daemon` returns the process that runs the containers."""

    def __init__(
        self,
        node: NodeView,
        make_driver: Callable[[], Driver],
        tree: Callable[[], Tree | None],
        runtime: "Disk",
        clock: Callable[[], float] = time.time,
        daemon: Callable[[], Process | None] = lambda: None,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "sweep")
        self._taking = SweepThread(node, make_driver, runtime, daemon)
        self._last: Sweep | None = None
        self._last_at = -_FRESH_SECONDS
        self._under_way: asyncio.Task[Sweep] | None = None
        self._is_closed = False

    async def sweep(self, *, is_shown: bool = True) -> Sweep:
        """Returns a sweep that is at most one second old. Without `is_shown` it may lack the `applied` settings."""
        while True:
            last = self._last
            if (
                last is not None
                and time.monotonic() - self._last_at < _FRESH_SECONDS
                and last.is_shown >= is_shown
            ):
                return last
            if self._is_closed:
                raise EvenkeelError("the agent is ending")
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._take(is_shown))
            taken = await asyncio.shield(self._under_way)  # a cancelled client must not cancel it for others
            if taken.is_shown >= is_shown:
                return taken

    async def _take(self, is_shown: bool) -> Sweep:  # noqa: FBT001
        try:
            loop = asyncio.get_running_loop()
            taken = await loop.run_in_executor(
                self._thread, self._taking.take, self._tree() or _NO_TREE, self._clock(), is_shown
            )
            self._last, self._last_at = taken, time.monotonic()
            return taken
        finally:
            self._under_way = None

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._under_way is not None:
            await asyncio.gather(self._under_way, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._taking.close)
        self._thread.shutdown(wait=False)


class Disk(Protocol):
    """The methods of a runtime that a sweep needs: the paths to which pods write."""

    @property
    def storage_path(self) -> str: ...

    @property
    def images_path(self) -> str: ...


class SweepThread:
    """The part of the sweeper that runs in its thread."""

    def __init__(
        self,
        node: NodeView,
        make_driver: Callable[[], Driver],
        runtime: "Disk",
        daemon: Callable[[], Process | None] = lambda: None,
    ) -> None:
        self._node = node
        self._make_driver = make_driver
        self._driver: Driver | None = None
        self._runtime = runtime
        self._reading: NodeReading | None = None
        self._number = 0
        self._at = 0.0  # time of the previous sweep, on the monotonic clock
        self._seen_us: dict[str, int] = {}  # CPU time at the previous sweep
        self._seen_tree: Tree | None = None
        self._applied: Observed = {}
        self._applied_at = 0.0
        self._shown_at = 0.0
        self._is_shown = True
        self._pressures: dict[str, tuple[list[bytes], Pressures | None]] = {}
        self._daemons = Daemons(node.config, daemon)

    def take(self, tree: Tree, at: float, is_shown: bool = True) -> Sweep:  # noqa: FBT001, FBT002
        began = time.monotonic()
        driver = self._driver = self._driver or self._make_driver()
        self._is_shown = is_shown
        if is_shown:
            self._shown_at = began
        if is_shown and (tree is not self._seen_tree or began - self._applied_at > _APPLIED_SECONDS):
            # This also closes the files of removed cgroups.
            try:
                self._applied = driver.observe(tree)
            except CgroupError:
                self._applied = {}  # the reconciliation reports files that cannot be read
            self._seen_tree, self._applied_at = tree, began
        rates = Rates(self._seen_us, began - self._at)
        samples = {}
        for cgroup in tree.cgroups:
            sample = self._sample(driver, cgroup.path, rates)
            if sample is not None:
                samples[cgroup.path] = sample
        daemons = self._daemons.look(
            driver, tree, lambda path: samples.get(path) or self._sample(driver, path, rates), rates
        )
        meminfo = parse_meminfo(read_text("/proc/meminfo"))
        machine = machine_figures(meminfo=meminfo)
        nanocores = rates.of("", machine.cpu_usage_us)
        self._pressures = {path: known for path, known in self._pressures.items() if path in rates.seen_us}
        self._seen_us, self._at = rates.seen_us, began
        self._number += 1
        node = self._signals(driver, tree, samples, meminfo)
        applied = self._applied if is_shown else {}
        if began - self._shown_at > _KEPT_SECONDS:
            self.close()
        took = time.monotonic() - began
        return Sweep(
            self._number, at, tree, samples, daemons, machine, nanocores, node, applied, took, is_shown
        )

    def close(self) -> None:
        """Closes all open files and forgets their contents."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        self._seen_tree, self._applied = None, {}
        self._pressures.clear()

    def _sample(self, driver: Driver, path: str, rates: Rates) -> Sample | None:
        try:
            statistics = driver.statistics(path)
            pressures = self._pressures_of(driver, path) if self._is_shown else None
        except CgroupError:
            return None  # the cgroup is gone, or has no memory controller
        return Sample(statistics, rates.of(path, statistics.cpu_usage_us), pressures)

    def _pressures_of(self, driver: Driver, path: str) -> Pressures | None:
        contents = list(driver.contents(path, _PRESSURE_FILES))
        known = self._pressures.get(path)
        if known is None or known[0] != contents:
            parsed = None
            if contents[0]:
                parsed = Pressures(*(parse_pressure(text.decode("ascii", "replace")) for text in contents))
            known = self._pressures[path] = (contents, parsed)
        return known[1]

    def _signals(
        self, driver: Driver, tree: Tree, samples: Mapping[str, Sample], meminfo: Mapping[str, int]
    ) -> NodeFigures:
        """The eviction signals, as far as they can be read without an eviction decision."""
        root = next((cgroup for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), None)
        sample = samples.get(root.path) if root is not None else None
        pods = None
        if self._reading is None:
            size, paths = self._node.capacity, (self._runtime.storage_path, self._runtime.images_path)
            self._reading = NodeReading(*paths, size.pids, self._node.profile)
        if root is not None and sample is not None:
            pids = driver.files(root.path).get("pids", "")
            self._reading.follow(DiskTargets(root.path, (), pids.removesuffix(root.path) if pids else ""))
            if limit := self._node.pods_limits.memory_bytes:
                pods = cgroup_memory(sample.statistics, limit, self._node.profile)
        memory = node_memory(meminfo, self._node.profile)
        try:
            return self._reading.read()._replace(memory=memory, pods_cgroup_memory=pods)
        except EvenkeelError:  # the pods' file system cannot be read
            return NodeFigures(memory=memory, pods_cgroup_memory=pods)
