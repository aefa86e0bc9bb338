"""Node snapshots: all figures of the node at one moment. Readers get them together, so that they are consistent."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from types import MappingProxyType

from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.observe.counters import Counters
from evenkeel.agent.observe.sweep import Sweep, Sweeper
from evenkeel.agent.pod_store import PodStore
from evenkeel.api.node import Node, NodeCondition, NodeStatus
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.tree import Kind
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import parse_meminfo
from evenkeel.host.disk_usage import Usage
from evenkeel.host.files import read_text
from evenkeel.host.memory_figures import node_memory
from evenkeel.journal.records import Event
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import node_capacity
from evenkeel.policy.eviction.conditions import CPU_PRESSURE, Pressure
from evenkeel.policy.eviction.snapshot import PodFigures
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.runtime.interface import Readiness, Runtime

# Reasons of notable events. Events about the node's conditions are notable too.
NOTABLE = frozenset({"Evicted", "OOMKilling", "OOMKilled", "MemoryHighStall", "CPUShortage", "DriftRepaired"})

_MOST_NOTABLE = 200
_LOOK_BACK = 5000  # events that are searched for notable ones
_DISK_SECONDS = 30.0  # a walk through pods' directories is expensive
_DISK_WAIT_SECONDS = 1.0


class NodeSnapshot(NamedTuple):
    sweep: Sweep
    view: NodeView
    node: Node
    pods: tuple[Pod, ...]
    disk: Mapping[str, PodFigures]  # by UID, at most half a minute old
    images: Usage | None  # disk usage of images, measured at the same time
    notable: tuple[Event, ...]  # oldest first
    counts: Counters  # not a copy: it continues to count
    since: float  # when the agent was started


class ContainerUsage(NamedTuple):
    pod: str  # namespace/name
    container: str  # empty: the pod as a whole
    statistics: Statistics


class NodeUsage(NamedTuple):
    """Usage at one moment. CPU usage is the difference between two of them."""

    at: float
    capacity_bytes: int
    available_bytes: int
    capacity_millicpu: int
    pods: Statistics | None  # all pods together
    containers: tuple[ContainerUsage, ...]


def node_usage(view: NodeView, cgroups: NodeCgroups, at: float) -> NodeUsage:
    """Reads the usage now, without a sweep."""
    tree = cgroups.tree
    found = []
    root = None
    for cgroup in tree.cgroups if tree is not None else ():
        if cgroup.kind not in (Kind.ROOT, Kind.POD, Kind.CONTAINER):
            continue
        statistics = cgroups.statistics(cgroup)
        if cgroup.kind == Kind.ROOT:
            root = statistics
        elif statistics is not None:
            found.append(ContainerUsage(cgroup.pod, cgroup.container, statistics))
    capacity = view.capacity
    memory = node_memory(parse_meminfo(read_text("/proc/meminfo")), view.profile)
    # If the node is only a part of the machine, the free memory of that part.
    left = capacity.memory_bytes - (root.memory_working_set_bytes if root is not None else 0)
    available = max(min(memory.available_bytes or 0, left), 0)
    return NodeUsage(at, capacity.memory_bytes, available, capacity.millicpu, root, tuple(found))


class NodeSnapshots:
    def __init__(
        self,
        view: NodeView,
        runtime: Runtime,
        journal: Journal,
        conditions: NodeConditions,
        pod_store: PodStore,
        sweeper: Sweeper,
        disk: DiskPressure,
        counts: Counters,
        since: float,
    ) -> None:
        """`since` is when the agent was started."""
        self._view = view
        self._runtime = runtime
        self._journal = journal
        self._conditions = conditions
        self._pod_store = pod_store
        self._sweeper = sweeper
        self._disk_pressure = disk
        self._counts = counts
        self._since = since
        self._disk: Mapping[str, PodFigures] = MappingProxyType({})
        self._images: Usage | None = None
        self._disk_at = -_DISK_SECONDS
        self._walking: asyncio.Task[None] | None = None
        self._notable: deque[Event] = deque(maxlen=_MOST_NOTABLE)
        self._last_number = 0
        self._shown: tuple[Event, ...] = ()

    def node(self) -> Node:
        """The node as it is now, with capacity, allocatable and conditions."""
        return node_object(self._view, self._conditions.current, self._runtime.readiness)

    async def node_snapshot(self) -> NodeSnapshot:
        sweep = await self._sweeper.sweep()
        await self._measure()
        return NodeSnapshot(
            sweep,
            self._view,
            self.node(),
            self._pod_store.shown(),
            self._disk,
            self._images,
            self._latest(),
            self._counts,
            self._since,
        )

    async def close(self) -> None:
        if self._walking is not None:
            self._walking.cancel()
            await asyncio.gather(self._walking, return_exceptions=True)

    async def _measure(self) -> None:
        """Measures disk usage. If that takes long, the snapshot does not wait and has the previous figures."""
        if self._walking is None and time.monotonic() - self._disk_at > _DISK_SECONDS:
            self._disk_at = time.monotonic()
            self._walking = asyncio.create_task(self._walk())
            await asyncio.wait([self._walking], timeout=_DISK_WAIT_SECONDS)

    async def _walk(self) -> None:
        try:
            measured = await self._disk_pressure.measured()
            if measured is not None:
                self._disk = measured.pods
            self._images = await self._runtime.images_usage()
        except (OSError, EvenkeelError):
            pass  # the disk watch reports it
        finally:
            self._walking = None

    def _latest(self) -> tuple[Event, ...]:
        try:
            new = self._journal.events(most=_LOOK_BACK, after=self._last_number)
        except JournalError:
            return self._shown
        if new:
            self._last_number = new[-1].number
            self._notable.extend(one for one in new if is_notable(one))
            self._shown = tuple(self._notable)
        return self._shown


def is_notable(event: Event) -> bool:
    return event.reason in NOTABLE or event.reason.startswith("NodeHas")


_WORDS = {
    Pressure.MEMORY: ("memory is short", "enough memory is available"),
    Pressure.DISK: ("disk space or inodes are short", "enough disk space and inodes are free"),
    Pressure.PID: ("process numbers are short", "enough process numbers are free"),
}
_ANSWERS = Readiness(True, "")
_CPU_WORDS = ("pods receive less cpu than they requested", "pods receive the cpu they requested")


def node_object(node: NodeView, pressures: Collection[str] = (), runtime: Readiness = _ANSWERS) -> Node:
    """The node as an API object. `pressures` are the conditions that are true now."""
    words: dict[str, tuple[str, str]] = {str(one): both for one, both in _WORDS.items()}
    if node.config.cpu_kills:
        words[CPU_PRESSURE] = _CPU_WORDS
    conditions = [
        NodeCondition(
            str(pressure),
            "True" if pressure in pressures else "False",
            f"NodeHas{pressure}" if pressure in pressures else f"NodeHasNo{pressure}",
            short if pressure in pressures else enough,
        )
        for pressure, (short, enough) in words.items()
    ]
    status, reason = ("True", "RuntimeAnswers") if runtime.is_ready else ("False", "RuntimeAway")
    conditions.append(NodeCondition("RuntimeReady", status, reason, runtime.message))
    # As kubelet: a node that cannot start containers is not ready. Running containers continue.
    message = "the agent is running" if runtime.is_ready else f"nothing can be started: {runtime.message}"
    reason = "AgentReady" if runtime.is_ready else "RuntimeAway"
    conditions.append(NodeCondition("Ready", status, reason, message))
    return Node(
        metadata=ObjectMeta(name=os.uname().nodename),
        status=NodeStatus(
            capacity=node_capacity(node.capacity, node.config),
            allocatable=node.allocatable,
            conditions=tuple(conditions),
        ),
    )
