"""Events of the kernel, as values: what `event_stream` yields and its sources report.

A count in an event is what the kernel's own counter gained since the last event of the same kind and cgroup. If the
kernel notifies twice of one thing, the second event counts 0. The sum of all events is the counter.
"""

import errno

from evenkeel.host.inotify import watch_refusal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text

NODE = ""  # the path of events that concern the whole machine
CGROUP_REMOVED = "the cgroup was removed"

MEMCG = "memcg"  # constraint of an OOM kill: the limit of a cgroup
NODE_WIDE = "none"  # constraint of an OOM kill: the memory of the machine
# The kernel has two more, "cpuset" and "memory_policy": the memory of some NUMA nodes.


class OomRecord(NamedTuple):
    """One process that the kernel killed, as its log has it (E6). None and "" stand for what the log left out."""

    process: str  # its name, at most 15 characters
    pid: int
    cgroup: str = ""  # of the process
    constraint: str = ""
    limit_cgroup: str = ""  # the cgroup whose limit was reached; "" for the machine
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    total_vm_bytes: int | None = None
    anon_rss_bytes: int | None = None
    file_rss_bytes: int | None = None
    shmem_rss_bytes: int | None = None
    oom_score_adj: int | None = None
    uid: int | None = None
    group: str = ""  # the cgroup that was killed as a whole (memory.oom.group), if the process was part of it
    sequence: int = 0  # number of the line since boot: a record that is read twice has the same number
    boot_seconds: float = 0.0  # since boot

    @property
    def sentence(self) -> str:
        killed = f"the kernel killed {self.process} (process {self.pid})"
        where = f"{killed} in {self.cgroup}" if self.cgroup else killed
        if self.limit_cgroup and self.limit_bytes is not None and self.usage_bytes is not None:
            figures = f"{bytes_text(self.usage_bytes)} of {bytes_text(self.limit_bytes)} in use"
            return f"{where}: {self.limit_cgroup} reached its memory limit, {figures}"
        if self.constraint == MEMCG:
            return f"{where}: {self.limit_cgroup or 'a cgroup'} reached its memory limit"
        return f"{where}: the machine was out of memory"


class MemoryThreshold(NamedTuple):
    """Usage crossed a threshold (cgroup v1). `usage_bytes` says in which direction."""

    path: str
    threshold_bytes: int
    usage_bytes: int


class OomNotified(NamedTuple):
    """Reclaim could not keep a cgroup below a limit, its own or one above it (cgroup v1).

    The kernel notifies every cgroup below that limit, and before it kills. The kill itself is counted in `oom_kills` of
    a later event, of the cgroup that held the process.
    """

    path: str
    notifications: int
    oom_kills: int
    under_oom: bool = False  # its processes wait, because the OOM killer is disabled for the cgroup


class MemoryEvents(NamedTuple):
    """The increase of the counters in `memory.events` (cgroup v2). It counts for the cgroup and everything below it."""

    path: str
    low: int = 0
    high: int = 0
    max: int = 0
    oom: int = 0
    oom_kill: int = 0
    oom_group_kill: int = 0


class OomKill(NamedTuple):
    """The log of the kernel says that it killed a process (E6)."""

    record: OomRecord


class LogGap(NamedTuple):
    """Lines of the kernel's log were overwritten before they were read. OOM records may be among them."""

    lines: int


class SubscriptionEnded(NamedTuple):
    """No more events of `what` for `path`: the cgroup was removed, or the kernel refused."""

    path: str
    what: str
    why: str


Event = MemoryThreshold | OomNotified | MemoryEvents | OomKill | LogGap | SubscriptionEnded

_REFUSALS = {
    errno.ENOENT: "the cgroup is not there, or its kernel has no such file",
    errno.ENODEV: CGROUP_REMOVED,
    errno.EOPNOTSUPP: "the kernel was started without it: add psi=1 to its command line",
}


def subscription_refusal(error: OSError) -> str:
    """Why a file of a cgroup cannot be watched, and what helps where that is known."""
    return _REFUSALS.get(error.errno or 0) or watch_refusal(error)
