"""What the kernel writes into its log when it kills for want of memory, as a record (E6).

The text has changed over the years: kernels before 5.0 name the cgroups in a sentence ("Task in … killed as a result of
limit of …"), later ones in one line ("oom-kill:constraint=…"). When OOMs follow each other fast the kernel prints only
the line "Killed process …", without cgroup and figures: then the record has none either, rather than those of the kill
before.
"""

import re
from typing import NamedTuple

from evenkeel.policy.units import bytes_text

MEMCG = "memcg"  # a cgroup's limit
NODE_WIDE = "none"  # the machine's memory
# The others the kernel knows are "cpuset" and "memory_policy": the memory of some NUMA nodes.


class OomRecord(NamedTuple):
    """One process killed. None and "" are what the kernel did not say."""

    process: str  # its name, at most 15 characters
    pid: int
    cgroup: str = ""  # of the process
    constraint: str = ""
    limit_cgroup: str = ""  # whose limit was hit; "" for the machine's
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    total_vm_bytes: int | None = None
    anon_rss_bytes: int | None = None
    file_rss_bytes: int | None = None
    shmem_rss_bytes: int | None = None
    oom_score_adj: int | None = None
    uid: int | None = None
    group: str = ""  # the cgroup that was killed as a whole (memory.oom.group), if this was part of it
    sequence: int = 0  # the line's number in the log since boot: the same record read twice has the same
    boot_seconds: float = 0.0  # since boot

    @property
    def sentence(self) -> str:
        who = f"the kernel killed {self.process} (process {self.pid})"
        where = f"{who} in {self.cgroup}" if self.cgroup else who
        if self.limit_cgroup and self.limit_bytes is not None and self.usage_bytes is not None:
            figures = f"{bytes_text(self.usage_bytes)} of {bytes_text(self.limit_bytes)} in use"
            return f"{where}: {self.limit_cgroup} reached its memory limit, {figures}"
        if self.constraint == MEMCG:
            return f"{where}: {self.limit_cgroup or 'a cgroup'} reached its memory limit"
        return f"{where}: the machine was out of memory"


# An OOM is a hundred lines in the log, of which five are read.
_OF_INTEREST = re.compile(r"oom-kill|Tasks? in |memory: usage |Kill(?:ed)? process ")
_VICTIM = re.compile(r"oom-kill:constraint=CONSTRAINT_(\w+),.*?(?:,oom_memcg=(.*?)|,global_oom)?"
                     r",task_memcg=(.*?),task=.*,pid=(\d+),uid=(\d+)$")  # fmt: skip
_VICTIM_BEFORE_5 = re.compile(r"Task in (.*) killed as a result of limit of (.*)$")
_KILL_BEFORE_5 = re.compile(r"(Memory cgroup out|Out) of memory.*: Kill process \d+ ")
_USAGE = re.compile(r"memory: usage (\d+)kB, limit (\d+)kB")
_GROUP = re.compile(r"Tasks in (.*) are going to be killed due to memory\.oom\.group set")
_KILLED = re.compile(r"(?:(.*): )?Killed process (\d+) \((.*)\),? total-vm:(.*)$")
_FIGURE = re.compile(r"([a-z-]+):(\d+)kB")
_SCORE = re.compile(r"oom_score_adj:(-?\d+)")
_UID = re.compile(r"UID:(\d+)")

# The kernel kills a group's processes one right after the other; much later it was another OOM.
_GROUP_SECONDS = 1.0


class _Victim(NamedTuple):
    """What stands before "Killed process …" in the log."""

    constraint: str
    limit_cgroup: str
    cgroup: str
    pid: int | None = None
    uid: int | None = None


class OomParser:
    """Takes the log's lines one after the other and gives a record at each kill; other lines do not matter."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._usage: tuple[int, int] | None = None
        self._victim: _Victim | None = None
        self._before: OomRecord | None = None
        self._group = ""
        self._group_seconds = 0.0
        self._group_pids: set[int] = set()

    def feed(self, line: str, sequence: int = 0, boot_seconds: float = 0.0) -> OomRecord | None:
        if not _OF_INTEREST.search(line):
            return None
        if "invoked oom-killer" in line:
            self._start()
        elif found := _USAGE.match(line):
            self._usage = int(found[1]) * 1024, int(found[2]) * 1024
        elif found := _VICTIM.match(line):
            self._group = ""
            self._victim = _Victim(found[1].lower(), found[2] or "", found[3], int(found[4]), int(found[5]))
        elif found := _VICTIM_BEFORE_5.match(line):
            self._victim = _Victim(MEMCG, found[2], found[1])
        elif found := _KILL_BEFORE_5.match(line):
            constraint = NODE_WIDE if found[1] == "Out" else MEMCG
            self._victim = self._victim or _Victim(constraint, "", "")
        elif found := _GROUP.match(line):
            self._group, self._group_seconds = found[1], boot_seconds
            self._group_pids = {self._before.pid} if self._before else set()
        elif found := _KILLED.match(line):
            record = self._record(found, boot_seconds)
            self._victim = self._usage = None
            if record.group and record.pid in self._group_pids:
                return None  # the one whose kill brought the group down is named again among the group
            self._group_pids.add(record.pid)
            self._before = record._replace(sequence=sequence, boot_seconds=boot_seconds)
            return self._before
        return None

    def _record(self, found: re.Match[str], boot_seconds: float) -> OomRecord:
        figures = {name: int(number) * 1024 for name, number in _FIGURE.findall(f"total-vm:{found[4]}")}
        score, uid = _SCORE.search(found[4]), _UID.search(found[4])
        record = OomRecord(
            process=found[3],
            pid=int(found[2]),
            constraint=MEMCG if (found[1] or "").startswith("Memory cgroup") else "",
            total_vm_bytes=figures.get("total-vm"),
            anon_rss_bytes=figures.get("anon-rss"),
            file_rss_bytes=figures.get("file-rss"),
            shmem_rss_bytes=figures.get("shmem-rss"),
            oom_score_adj=int(score[1]) if score else None,
            uid=int(uid[1]) if uid else None,
        )
        if self._victim is not None and self._victim.pid in (None, record.pid):
            return self._with_victim(record, self._victim)
        if self._group and boot_seconds - self._group_seconds <= _GROUP_SECONDS:
            return self._with_group(record)
        return record if record.constraint or not found[1] else record._replace(constraint=NODE_WIDE)

    def _with_victim(self, record: OomRecord, victim: _Victim) -> OomRecord:
        usage, limit = self._usage or (None, None)
        return record._replace(
            cgroup=victim.cgroup,
            constraint=victim.constraint,
            limit_cgroup=victim.limit_cgroup,
            limit_bytes=limit if victim.constraint == MEMCG else None,
            usage_bytes=usage if victim.constraint == MEMCG else None,
            uid=victim.uid if record.uid is None else record.uid,
        )

    def _with_group(self, record: OomRecord) -> OomRecord:
        """One more of a cgroup that is killed as a whole: the reason is that of the one before."""
        before = self._before
        record = record._replace(cgroup=self._group, group=self._group)
        if before is None:
            return record
        return record._replace(
            constraint=before.constraint,
            limit_cgroup=before.limit_cgroup,
            limit_bytes=before.limit_bytes,
            usage_bytes=before.usage_bytes,
        )
