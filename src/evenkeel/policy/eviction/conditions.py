"""Node conditions under pressure: which thresholds are crossed, what the node reports, which pods it refuses (B16)."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod, Toleration
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import FilesystemFigures, MemoryFigures, NodeFigures
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_quantity
from evenkeel.policy.eviction.usage import Resource, resource_of
from evenkeel.policy.qos import QoSClass, is_critical, pod_class
from evenkeel.quantity import Quantity


class Observation(NamedTuple):
    """The measurement of a signal: bytes, inodes or processes."""

    available: int
    capacity: int


Observations = Mapping[Signal, Observation]
NO_OBSERVATIONS: Observations = MappingProxyType({})

_CONTAINERFS = (Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE)


def observations(node: NodeFigures) -> Observations:
    """The observations of all signals whose two figures are known."""
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
    """The thresholds that `seen` has crossed, whatever their grace periods.

    With `enforce_min_reclaim` a threshold is crossed until the minimum reclaim is available on top of it. Without it a
    node would stay close to the threshold and evict a pod every minute.
    """
    return tuple(
        threshold
        for threshold in thresholds
        if threshold.signal in seen
        and _due(threshold, seen[threshold.signal].capacity, enforce_min_reclaim)
        > Quantity.of(seen[threshold.signal].available)
    )


def with_containerfs(thresholds: Iterable[Threshold], node: NodeFigures) -> tuple[Threshold, ...]:
    """`thresholds` and those of the containerfs. They cannot be configured: they are those of the filesystem with which
    it shares a device."""
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
    """Whether the deletion of unused containers and images has freed enough, minimum reclaim included, so that no pod
    must be evicted."""
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


# Conditions of the node


class Pressure(StrEnum):
    """Pressure conditions of a node, by their Kubernetes names."""

    MEMORY = "MemoryPressure"
    DISK = "DiskPressure"
    PID = "PIDPressure"


CPU_PRESSURE = "CPUPressure"  # A22: Kubernetes has no such condition; only `cpuKills` reports it
MEMORY_PRESSURE_TAINT = "node.kubernetes.io/memory-pressure"

_PRESSURE = {
    Resource.MEMORY: Pressure.MEMORY,
    Resource.STORAGE: Pressure.DISK,
    Resource.INODES: Pressure.DISK,
    Resource.PIDS: Pressure.PID,
}


def pressure_of(signal: Signal) -> Pressure:
    return _PRESSURE[resource_of(signal)]


def pressures(thresholds: Iterable[Threshold]) -> tuple[Pressure, ...]:
    """The conditions that the crossed `thresholds` cause, each once."""
    found = {pressure_of(threshold.signal) for threshold in thresholds}
    return tuple(pressure for pressure in Pressure if pressure in found)


def last_seen(
    before: Mapping[Pressure, float], crossed: Iterable[Threshold], now_seconds: float
) -> Mapping[Pressure, float]:
    """When each condition was last true."""
    return {**before, **dict.fromkeys(pressures(crossed), now_seconds)}


def reported(
    seen_at: Mapping[Pressure, float], transition_period_seconds: float, now_seconds: float
) -> tuple[Pressure, ...]:
    """The conditions to report: those that were true in the last `transition_period_seconds`. So a node close to a
    threshold does not switch a condition on and off."""
    return tuple(
        pressure
        for pressure in Pressure
        if pressure in seen_at and now_seconds - seen_at[pressure] < transition_period_seconds
    )


def pressure_refusal(pod: Pod, conditions: Collection[str], profile: Profile) -> str | None:
    """Why the node refuses `pod` under `conditions`; None if it admits the pod.

    Critical pods are always admitted, because the node may need them to recover. MemoryPressure alone refuses only
    BestEffort pods that do not tolerate its taint. CPUPressure refuses only BestEffort pods.
    """
    under = [pressure for pressure in Pressure if pressure in conditions]
    if is_critical(pod, profile):
        return None
    if CPU_PRESSURE in conditions and pod_class(pod, profile) is QoSClass.BEST_EFFORT:
        return (
            f"the node is under {CPU_PRESSURE}, and {pod.key} is BestEffort: give it a cpu or memory request"
        )
    if not under:
        return None
    if under == [Pressure.MEMORY]:
        if pod_class(pod, profile) is not QoSClass.BEST_EFFORT or _tolerates_memory_pressure(pod):
            return None
        return (
            f"the node is under {Pressure.MEMORY}, and {pod.key} is BestEffort: give it a cpu or memory"
            f" request or a toleration of {MEMORY_PRESSURE_TAINT}"
        )
    return (
        f"the node is under {' and '.join(under)}, and takes only critical pods until that is over;"
        f" {pod.key} is not critical"
    )


def _tolerates_memory_pressure(pod: Pod) -> bool:
    return any(map(_tolerates, pod.spec.tolerations))


def _tolerates(toleration: Toleration) -> bool:
    if toleration.effect not in ("", "NoSchedule") or toleration.key not in ("", MEMORY_PRESSURE_TAINT):
        return False
    # The taint has no value, so Equal (the default operator) matches only a toleration without value.
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and not toleration.value)
