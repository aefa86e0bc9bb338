"""What the node's signals say, and which thresholds that crosses (B16)."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.policy.eviction.snapshot import FilesystemFigures, MemoryFigures, NodeFigures
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_quantity
from evenkeel.quantity import Quantity


class Observation(NamedTuple):
    """Bytes, inodes or processes, whatever the signal counts."""

    available: int
    capacity: int


Observations = Mapping[Signal, Observation]
NO_OBSERVATIONS: Observations = MappingProxyType({})

_CONTAINERFS = (Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE)


def observations(node: NodeFigures) -> Observations:
    """The signals of which both figures are known; the others are not there."""
    found: dict[Signal, Observation] = {}
    _memory(found, Signal.MEMORY_AVAILABLE, node.memory)
    _memory(found, Signal.ALLOCATABLE_MEMORY_AVAILABLE, node.pods_cgroup_memory)
    _filesystem(found, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE, node.nodefs)
    _filesystem(found, Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE, node.imagefs)
    _filesystem(found, *_CONTAINERFS, node.imagefs if node.containerfs is None else node.containerfs)
    processes = node.processes
    if processes is not None and processes.maximum is not None and processes.running is not None:
        left = processes.maximum - processes.running
        found[Signal.PID_AVAILABLE] = Observation(left, processes.maximum)
    return found


def thresholds_met(
    thresholds: Iterable[Threshold], seen: Observations, *, enforce_min_reclaim: bool = False
) -> tuple[Threshold, ...]:
    """The thresholds that `seen` falls below, whatever their grace periods.

    `enforce_min_reclaim` asks for more: a threshold once crossed is over only when its minimum reclaim is
    there on top. Else a node would sit at the edge and evict a pod a minute.
    """
    return tuple(
        threshold
        for threshold in thresholds
        if threshold.signal in seen
        and _due(threshold, seen[threshold.signal].capacity, enforce_min_reclaim)
        > Quantity.of(seen[threshold.signal].available)
    )


def with_containerfs(thresholds: Iterable[Threshold], node: NodeFigures) -> tuple[Threshold, ...]:
    """`thresholds` and those of the containerfs, which are never set by hand: they are those of the
    filesystem that it shares a device with."""
    shares_imagefs = node.dedicated_imagefs and not node.separate_containerfs
    sources = (
        (Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE)
        if shares_imagefs
        else (Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE)
    )
    own = tuple(threshold for threshold in thresholds if threshold.signal not in _CONTAINERFS)
    derived = (
        threshold._replace(signal=signal)
        for source, signal in zip(sources, _CONTAINERFS, strict=True)
        for threshold in own
        if threshold.signal is source
    )
    return own + tuple(derived)


def is_relieved(thresholds: Iterable[Threshold], node: NodeFigures) -> bool:
    """After unused containers and images were deleted: whether that was enough, minimum reclaim included,
    so that no pod has to go."""
    met = thresholds_met(with_containerfs(thresholds, node), observations(node), enforce_min_reclaim=True)
    return not met


def _due(threshold: Threshold, capacity: int, enforce_min_reclaim: bool) -> Quantity:  # noqa: FBT001
    due = threshold_quantity(threshold.value, capacity)
    if enforce_min_reclaim and threshold.min_reclaim is not None:
        return due + threshold_quantity(threshold.min_reclaim, capacity)
    return due


def _memory(found: dict[Signal, Observation], signal: Signal, memory: MemoryFigures | None) -> None:
    if memory is None or memory.available_bytes is None or memory.working_set_bytes is None:
        return
    capacity = memory.available_bytes + memory.working_set_bytes
    found[signal] = Observation(memory.available_bytes, capacity)


def _filesystem(
    found: dict[Signal, Observation], of_bytes: Signal, of_inodes: Signal, figures: FilesystemFigures | None
) -> None:
    if figures is None:
        return
    if figures.available_bytes is not None and figures.capacity_bytes is not None:
        found[of_bytes] = Observation(figures.available_bytes, figures.capacity_bytes)
    if figures.inodes_free is not None and figures.inodes is not None:
        found[of_inodes] = Observation(figures.inodes_free, figures.inodes)
