"""Headroom: when it must be measured again, and what to do when that of memory becomes small (A15, E1, E3).

Headroom is what is available above a threshold. The memory below a hard threshold is the reserve: it is still there
when the threshold is crossed. These are the rules of the watches as functions, so that they can be tested without a
kernel.
"""

from collections import deque
from collections.abc import Iterable

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.thresholds import Threshold, threshold_amount
from evenkeel.policy.eviction.usage import Resource, resource_of

# Polling interval: the earliest time at which the remaining headroom could be used up. An idle node has much headroom
# and is measured rarely. A crossing may be seen a little late, because the reserve is still there; the size of the
# reserve says how late.

# What one processor can allocate and touch in a second, with huge pages, on the fastest machines of today.
GROWTH_BYTES_PER_CPU_SECOND = 4 * 2**30
LEAST_SECONDS = 0.001
MOST_SECONDS = 2.0
_EDGE_SECONDS = 0.004  # how late a crossing may be seen where the reserve is large
_SAFETY = 0.5  # of the time in which the headroom could be used up
_SAFETY_OF_RESERVE = 0.25
# The kernel compares usage and threshold once in 128 pages, on each processor, and counts pages that are not used yet.
# A usage that crosses the threshold by less than that and falls again was no crossing to the kernel.
_UNNOTIFIED_BYTES_PER_CPU = 2**20


class Distance(NamedTuple):
    """How far a signal is from a threshold. A part of `reserve_bytes` may be used up before the next measurement.
    `is_notified` says that the kernel reports the crossing, so that no measurement is needed to see it."""

    headroom_bytes: int
    reserve_bytes: int
    is_notified: bool = False


def fastest_growth(cpus: int) -> int:
    """Bytes that all processors together can use up in a second."""
    return max(cpus, 1) * GROWTH_BYTES_PER_CPU_SECOND


def will_be_notified(usage_bytes: int, threshold_bytes: int, cpus: int) -> bool:
    """Whether the kernel will report the crossing of the threshold (cgroup v1). Close to the threshold it may not."""
    return usage_bytes < threshold_bytes - max(cpus, 1) * _UNNOTIFIED_BYTES_PER_CPU


def polling_interval_seconds(distances: Iterable[Distance], growth_bytes_per_second: int) -> float:
    """The time until the next measurement, if the kernel reports nothing before."""
    soonest = MOST_SECONDS
    for distance in distances:
        if not distance.is_notified:
            soonest = min(soonest, _wait_seconds(distance, growth_bytes_per_second))
    return soonest


def _wait_seconds(distance: Distance, growth: int) -> float:
    used_up_seconds = max(distance.headroom_bytes, 0) / growth * _SAFETY
    late_seconds = max(distance.reserve_bytes, 0) / growth * _SAFETY_OF_RESERVE
    least = min(max(late_seconds, LEAST_SECONDS), _EDGE_SECONDS)
    return min(max(used_up_seconds, least), MOST_SECONDS)


# The most of a resource that a machine of today can use up in a second.
_GROWTH_PER_SECOND = {Resource.STORAGE: 4 << 30, Resource.INODES: 400_000, Resource.PIDS: 50_000}
_LEAST_DISK_SECONDS = 0.02


def disk_polling_seconds(threshold: Threshold, available: int, capacity: int) -> float:
    """The time until disk, inodes or processes are measured again."""
    headroom = available - threshold_amount(threshold.value, capacity)
    used_up_seconds = headroom / _GROWTH_PER_SECOND[resource_of(threshold.signal)] * _SAFETY
    return min(max(used_up_seconds, _LEAST_DISK_SECONDS), MOST_SECONDS)


# Reclaim before an eviction: whether it is worth while. Reclaim takes time, and pods that allocate meanwhile use the
# memory again. Where they would use all of it, reclaim only delays an eviction that is needed anyway.

_WORTH_SECONDS = 0.25  # the reclaimed memory must last for at least this long
# Over a shorter time one sees the steps in which the kernel counts, not the growth.
_LEAST_TREND_SECONDS = 0.02
_MOST_TREND_SECONDS = 0.5  # older figures say nothing about the growth of today


class Trend:
    """How fast an amount has grown in the last half second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # oldest first

    def note(self, now: float, amount_bytes: int) -> None:
        seen = self._seen
        seen.append((now, amount_bytes))
        while (
            len(seen) > 2
            and now - seen[1][0] >= _LEAST_TREND_SECONDS
            and now - seen[0][0] > _MOST_TREND_SECONDS
        ):
            seen.popleft()

    @property
    def bytes_per_second(self) -> float:
        """0 if the amount fell, or if too little is known."""
        if not self._seen:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return max(last - first, 0) / (now - began) if now - began >= _LEAST_TREND_SECONDS else 0.0


def is_reclaim_enough(reclaimable_bytes: int, short_bytes: int, growth_bytes_per_second: float) -> bool:
    """Whether the kernel can reclaim what is short now and what will be used in the next quarter of a second."""
    return reclaimable_bytes >= short_bytes + growth_bytes_per_second * _WORTH_SECONDS


# While an eviction is under way: whether pods above their request are frozen or throttled.

_TIGHT_SHARE = 2  # less than half of the reserve is left
# Of the reserve: a pod above its request by less can do no harm before the next measurement.
_GROWN_SHARE = 64


def is_tight(left_bytes: int, reserve_bytes: int) -> bool:
    """Whether so little of the reserve is left that pods are frozen. `left_bytes` does not count memory that is still
    to be freed; `reserve_bytes` is the threshold."""
    return left_bytes < reserve_bytes // _TIGHT_SHARE


def is_loose(left_bytes: int, reserve_bytes: int) -> bool:
    """Whether enough of the reserve is left that frozen pods may continue. More than "not tight", so that pods are not
    frozen again at once."""
    return left_bytes >= reserve_bytes * 3 // 4


def must_be_held(usage_bytes: int, request_bytes: int, reserve_bytes: int) -> bool:
    """Whether the pod is one of those that are frozen or throttled. A pod within its request never is."""
    return usage_bytes - request_bytes > reserve_bytes // _GROWN_SHARE
