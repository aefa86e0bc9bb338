"""What the node says about itself under pressure, and which new pods it then refuses (B16)."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from evenkeel.api.pod import Pod, Toleration
from evenkeel.api.profile import Profile
from evenkeel.policy.critical import is_critical
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.policy.eviction.usage import Resource, resource_of
from evenkeel.policy.qos import QoSClass, pod_class


class Pressure(StrEnum):
    """Conditions of a node, in Kubernetes' own words."""

    MEMORY = "MemoryPressure"
    DISK = "DiskPressure"
    PID = "PIDPressure"


CPU_PRESSURE = "CPUPressure"  # A22; Kubernetes has no such condition, and only `cpuKills` makes it appear
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
    """The conditions that crossed `thresholds` stand for, each once."""
    found = {pressure_of(threshold.signal) for threshold in thresholds}
    return tuple(pressure for pressure in Pressure if pressure in found)


def last_seen(
    before: Mapping[Pressure, float], crossed: Iterable[Threshold], now_seconds: float
) -> Mapping[Pressure, float]:
    """When each condition was last the case."""
    return {**before, **dict.fromkeys(pressures(crossed), now_seconds)}


def reported(
    seen_at: Mapping[Pressure, float], transition_period_seconds: float, now_seconds: float
) -> tuple[Pressure, ...]:
    """The conditions to report: those of the last `transition_period_seconds`, so that a node at the edge
    does not switch them on and off."""
    return tuple(
        pressure
        for pressure in Pressure
        if pressure in seen_at and now_seconds - seen_at[pressure] < transition_period_seconds
    )


def pressure_refusal(pod: Pod, conditions: Collection[str], profile: Profile) -> str | None:
    """Why the node does not take `pod` under `conditions`; None if it does.

    Critical pods are always taken, since the node may need them to recover. Short memory alone keeps only
    pods out that requested none of it and do not say that they can bear it; short CPU, only BestEffort ones.
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
    # The taint has no value, so Equal (which is what no operator means) wants none either.
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and not toleration.value)
