"""The watches for pressure together: over memory, disk, CPU and stalls, with the objects that they share.

A live snapshot has the figures of memory, disk and processes on which an eviction would be decided now (E15)."""

import time
from collections.abc import Coroutine, Mapping

from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import Decision, State, settings_from
from evenkeel.policy.eviction.snapshot import ContainerFigures, PodFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.cpu_pressure import CpuPressure
from evenkeel.pressure.decision_records import eviction_given
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.disk.disk_readings import Measured
from evenkeel.pressure.eviction_backoff import EvictionBackoff
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.memory_pressure import MemoryPressure
from evenkeel.pressure.memory.sampling import MemorySampler, with_parts
from evenkeel.pressure.memory_stalls import MemoryStalls
from evenkeel.pressure.protocol import PodRecords
from evenkeel.pressure.socket_queues import SocketQueues
from evenkeel.pressure.targets import watch_targets


class Watches(NamedTuple):
    intents: Intents
    conditions: NodeConditions
    memory: MemoryPressure
    disk: DiskPressure
    cpu: CpuPressure
    stalls: MemoryStalls
    queues: SocketQueues
    backoff: EvictionBackoff

    def take_up(self) -> None:
        """Continues what a former agent has begun. Call it when all containers are adopted."""
        self.stalls.take_up()
        self.cpu.take_up()

    async def open(self) -> None:
        """From now on, pods are evicted when memory, disk or process numbers run short."""
        await self.memory.open()
        self.disk.open()

    def loops(self, version: Version) -> list[Coroutine[object, object, None]]:
        """The loops that run in the event loop until the agent ends."""
        loops = [self.backoff.run(), self.queues.run()]
        if version == Version.V2:
            loops.append(self.stalls.run())
        if self.cpu.is_on:
            loops.append(self.cpu.run())
        return loops


def live_snapshot(
    node: NodeView,
    tree: Tree | None,
    records: PodRecords,
    driver: Driver,
    measured: Measured | None,
    queues: Mapping[str, int],
) -> Snapshot:
    """Memory is read now. Disk and processes are taken from `measured`. `queues` are the bytes in queues of sockets, by
    the pod's UID."""
    figures = MemorySampler(node.profile)
    try:
        pods: tuple[PodSnapshot, ...] = ()
        if tree is not None:
            targets = watch_targets(tree, records, driver, node.pods_limits.memory_bytes)
            figures.follow(targets)
            figures.count_queues(queues)
            _, seen = figures.snapshot(time.monotonic(), is_exact=True)
            of_pod = {target.uid: target for target in targets.pods}
            pods = tuple(with_parts(one, figures.parts(of_pod[one.pod.metadata.uid])) for one in seen.pods)
        else:
            _, seen = figures.snapshot(time.monotonic())
    finally:
        figures.close()
    if measured is None:
        return seen._replace(pods=pods)
    return Snapshot(
        seen.time_seconds,
        measured.node._replace(memory=seen.node.memory, pods_cgroup_memory=seen.node.pods_cgroup_memory),
        tuple(
            one._replace(stats=_joined(one.stats, measured.pods.get(one.pod.metadata.uid))) for one in pods
        ),
    )


def live_given(node: NodeView, snapshot: Snapshot) -> dict[str, object]:
    """The snapshot in the journal's format, with the node's thresholds and settings."""
    thresholds, settings = config_thresholds(node.config), settings_from(node.config)
    return eviction_given(Step(State(), snapshot, thresholds, settings, Decision()))


def _joined(memory: PodFigures | None, more: PodFigures | None) -> PodFigures | None:
    if memory is None or more is None:
        return memory if more is None else more
    of_container = {one.name: one for one in more.containers}
    of_memory = {one.name: one for one in memory.containers}
    containers = tuple(
        of_container.get(name, ContainerFigures(name))._replace(
            memory_working_set_bytes=of_memory[name].memory_working_set_bytes if name in of_memory else None
        )
        for name in dict.fromkeys((*of_memory, *of_container))
    )
    return more._replace(
        memory_working_set_bytes=memory.memory_working_set_bytes,
        socket_queue_bytes=memory.socket_queue_bytes,
        containers=containers,
    )
