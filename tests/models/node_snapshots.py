"""Snapshots of a node that does not exist: a real plan for real pods, with figures that a test chooses."""

from collections.abc import Callable, Sequence

from evenkeel.agent.node.daemons import AGENT, RUNTIME, Daemon
from evenkeel.agent.observe.counters import Counters
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, node_object
from evenkeel.agent.observe.sweep import Sweep
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.plan import Planner
from evenkeel.cgroup.tree import Cgroup, Tree
from evenkeel.host.disk_usage import Usage
from evenkeel.host.node_figures import Interface, MachineFigures, Pressures, Sample
from evenkeel.host.psi import PressureFigures, Stalls
from evenkeel.journal.records import Event
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    DiskFigures,
    FilesystemFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
)
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from tests.strategies import as_observed

GIB, MIB = 2**30, 2**20
STALLED = Pressures(
    memory=PressureFigures(Stalls(12.5, 3.0, 1.0, 500_000), Stalls(2.5, 0.5, 0.1, 90_000)),
)


def sample(cgroup: Cgroup, number: int = 1) -> Sample:
    used = Statistics(200 * MIB, 100 * MIB, 50 * MIB, 90 * MIB, 1_000_000 * number, 0, 3, 700, 7, 0, 0)
    return Sample(used, 250_000_000 if number > 1 else None, STALLED)


class SnapshotMaker:
    """Makes snapshots of the same pods one after the other, as an agent does."""

    def __init__(
        self,
        config: KubeletConfiguration | None = None,
        millicpu: int = 8000,
        swap_bytes: int = 0,
    ) -> None:
        capacity = NodeCapacity(millicpu, 32 * GIB, 100 * GIB, swap_bytes=swap_bytes)
        self.view = node_view(capacity, config or KubeletConfiguration())
        self.counts = Counters()
        self._planner = Planner(self.view)
        self.number = 0
        self._tree: Tree | None = None
        self._pods: tuple[Pod, ...] = ()

    def node_snapshot(
        self,
        pods: Sequence[Pod] = (),
        notable: Sequence[Event] = (),
        sampled: Callable[[Cgroup, int], Sample] = sample,
    ) -> NodeSnapshot:
        self.number += 1
        if self._tree is None or self._pods != tuple(pods):
            self._tree = self._planner.tree([PlannedPod(pod) for pod in pods])
            self._pods = tuple(pods)
        samples = {cgroup.path: sampled(cgroup, self.number) for cgroup in self._tree.cgroups}
        machine = MachineFigures(
            memory_total_bytes=32 * GIB,
            memory_working_set_bytes=11 * GIB,
            memory_usage_bytes=14 * GIB,
            memory_rss_bytes=9 * GIB,
            swap_total_bytes=0,
            swap_used_bytes=0,
            cpu_usage_us=5_000_000 * self.number,
            page_faults=1000,
            major_page_faults=10,
            booted_at=1_794_000_000.0,
            pressures=STALLED,
            interfaces=(Interface("eth0", 1000, 1, 2000, 2),),
        )
        node = NodeFigures(
            memory=MemoryFigures(Amount(20 * GIB), Amount(12 * GIB)),
            pods_cgroup_memory=MemoryFigures(Amount(25 * GIB), Amount(3 * GIB)),
            nodefs=FilesystemFigures(Amount(60 * GIB), Amount(100 * GIB), Amount(900), Amount(1000)),
            processes=ProcessFigures(Amount(32768), Amount(300)),
        )
        own = Statistics(40 * MIB, 30 * MIB, 0, 25 * MIB, 10_000 * self.number, 0, 5, 10, 0)
        supervisor = Statistics(12 * MIB, 12 * MIB, 0, 8 * MIB, 2000 * self.number, 0, 1, 10, 0)
        sweep = Sweep(
            self.number,
            1_794_800_000.0 + self.number,
            self._tree,
            samples,
            {
                AGENT: Daemon("/evenkeel/agent", Sample(own, 5_000_000)),
                RUNTIME: Daemon("", Sample(supervisor, 1_000_000)),
            },
            machine,
            2_000_000_000 if self.number > 1 else None,
            node,
            as_observed(self._tree),
        )
        disk = {
            pod.metadata.uid: PodFigures(
                process_count=Amount(3),
                containers=tuple(
                    ContainerFigures(
                        one.name,
                        rootfs=DiskFigures(Amount(4096), Amount(2)),
                        logs=DiskFigures(Amount(8192), Amount(1)),
                    )
                    for one in pod.spec.containers
                ),
            )
            for pod in pods
        }
        node_now = node_object(self.view)
        return NodeSnapshot(
            sweep,
            self.view,
            node_now,
            tuple(pods),
            disk,
            Usage(7 * GIB, 70),
            tuple(notable),
            self.counts,
            1_794_799_000.0,
        )
