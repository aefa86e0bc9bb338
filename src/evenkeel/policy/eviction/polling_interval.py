"""How long nobody needs to look: until what is left above a threshold could be gone at the earliest (A15, E1).

An idle node has much left and is looked at rarely; the closer it comes to a threshold, the more often. What lies below
a hard threshold is a reserve that is still there when it is crossed, so looking somewhat late is no harm: how late
depends on the size of that reserve.
"""

from collections.abc import Iterable
from typing import NamedTuple

# What one processor can allocate and touch in a second, with huge pages, on the fastest machines of today.
GROWTH_BYTES_PER_CPU_SECOND = 4 * 2**30
LEAST_SECONDS = 0.001
MOST_SECONDS = 2.0
_EDGE_SECONDS = 0.004  # how late a crossing may be seen where the reserve is large
_SAFETY = 0.5  # of the time in which the headroom could be gone
_SAFETY_OF_RESERVE = 0.25
# The kernel compares usage and mark once in 128 pages, on each processor, and counts pages that are not used yet: what
# falls below the mark by less than that, and rises again, has not crossed it for the kernel.
_UNTOLD_BYTES_PER_CPU = 2**20


class Distance(NamedTuple):
    """How far a signal is from a threshold. `reserve_bytes` is what is left at the crossing, of which some may be used
    while nobody looks. `is_told` says that the kernel tells of the crossing, so that nobody needs to look for it."""

    headroom_bytes: int
    reserve_bytes: int
    is_told: bool = False


def fastest_growth(cpus: int) -> int:
    """Bytes that all processors together can use up in a second."""
    return max(cpus, 1) * GROWTH_BYTES_PER_CPU_SECOND


def will_be_told(usage_bytes: int, mark_bytes: int, cpus: int) -> bool:
    """Whether the kernel, asked to tell when the usage crosses the mark (cgroup v1), will: not at the mark itself."""
    return usage_bytes < mark_bytes - max(cpus, 1) * _UNTOLD_BYTES_PER_CPU


def look_after_seconds(distances: Iterable[Distance], growth_bytes_per_second: int) -> float:
    """When to look again, whatever happens until then."""
    soonest = MOST_SECONDS
    for distance in distances:
        if not distance.is_told:
            soonest = min(soonest, _wait_seconds(distance, growth_bytes_per_second))
    return soonest


def _wait_seconds(distance: Distance, growth: int) -> float:
    gone_seconds = max(distance.headroom_bytes, 0) / growth * _SAFETY
    late_seconds = max(distance.reserve_bytes, 0) / growth * _SAFETY_OF_RESERVE
    least = min(max(late_seconds, LEAST_SECONDS), _EDGE_SECONDS)
    return min(max(gone_seconds, least), MOST_SECONDS)
