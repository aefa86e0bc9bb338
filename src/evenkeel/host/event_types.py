"""What the kernel tells, as values: the types of the one stream of events (`event_stream`).

Counts are what was added since the last event of the same kind and cgroup, read from the kernel's own counters: when
the kernel tells twice of one thing, the second event counts nothing. Summed up they are the counter.
"""

from typing import NamedTuple

from evenkeel.host.oom_record import OomRecord
from evenkeel.host.psi import Trigger

NODE = ""  # the path of events that concern the whole machine


class MemoryThreshold(NamedTuple):
    """Usage crossed a threshold, upwards or downwards (cgroup v1); `usage_bytes` says on which side it is now."""

    path: str
    threshold_bytes: int
    usage_bytes: int


class OomNotified(NamedTuple):
    """A limit at or above the cgroup was hit and could not be met by reclaim (cgroup v1). The kernel notifies before
    it kills, and every cgroup below that limit: `oom_kills` of this cgroup's own processes come with a later event."""

    path: str
    notifications: int
    oom_kills: int
    under_oom: bool = False  # processes stand still, because the OOM killer is disabled for the cgroup


class MemoryEvents(NamedTuple):
    """What was added to `memory.events` (cgroup v2), which counts for the cgroup and everything below it."""

    path: str
    low: int = 0
    high: int = 0
    max: int = 0
    oom: int = 0
    oom_kill: int = 0
    oom_group_kill: int = 0


class Pressure(NamedTuple):
    """Tasks waited for a resource for longer than the trigger allows. The kernel tells at most once a window."""

    path: str
    trigger: Trigger


class OomKill(NamedTuple):
    """The kernel's log says that it killed a process (E6)."""

    record: OomRecord


class LogGap(NamedTuple):
    """So many lines of the kernel's log were overwritten before they were read: OOM records may be among them."""

    lines: int


class SubscriptionEnded(NamedTuple):
    """Nothing more will come of `what` for `path`: the cgroup is gone, or the kernel refuses."""

    path: str
    what: str
    why: str


Event = MemoryThreshold | OomNotified | MemoryEvents | Pressure | OomKill | LogGap | SubscriptionEnded
