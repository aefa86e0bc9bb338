"""The log of the kernel, line by line as it is written, and the OOM records in it (E6).

/dev/kmsg gives every reader the whole log. /proc/kmsg would take each line away from all other readers.

The text of an OOM kill has changed over the years. Kernels before 5.0 name the cgroups in a sentence ("Task in …
killed as a result of limit of …"), later ones in one line ("oom-kill:constraint=…"). When OOMs follow each other fast,
the kernel prints only the line "Killed process …", without cgroup and figures. The record then has none either: it
never takes those of the kill before.

Other lines of the kernel contain text that containers choose: the name of a process that crashed, and of the file that
it ran. Such text must not pass for a record. So a record begins with the kernel's own words, and a line is never
divided."""

import errno
import os
import re
from collections.abc import Iterator

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.event_types import (
    MEMCG,
    NODE,
    NODE_WIDE,
    Event,
    LogGap,
    OomKill,
    OomRecord,
    SubscriptionEnded,
)
from evenkeel.host.files import read_text
from evenkeel.named_tuples import NamedTuple

DEVICE = "/dev/kmsg"

# Escaped bytes that can be printed are unescaped. A control character stays escaped: a line end in the name of a
# process or file would begin a line that the kernel never wrote.
_ESCAPED = re.compile(rb"\\x([2-689a-f][0-9a-f]|7[0-9a-e])")
_MOST_DIGITS = 20  # of a number of the kernel: it has 64 bits
_MOST_BYTES = 8192  # a record is never longer
_MOST_LINES_AT_ONCE = 500  # a flood of lines must not stop the rest of the event loop


class KernelLog:
    """New lines of the log, as events: from now on, or from the line after `after_sequence` if that is given."""

    path = NODE

    def __init__(self, after_sequence: int | None = None, device: str = DEVICE, proc: str = "/proc") -> None:
        """Raises OSError if this process may not read the log."""
        self._descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._parser = OomParser()
        self._proc = proc
        self._device = device
        self._last = after_sequence
        self._skip_to = 0 if after_sequence is None else after_sequence + 1
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END if after_sequence is None else os.SEEK_SET)
        except BaseException:
            os.close(self._descriptor)
            raise

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def ready(self) -> Iterator[Event]:
        for _ in range(_MOST_LINES_AT_ONCE):
            try:
                record = self._read()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten: the next read returns the oldest line that is left
                yield SubscriptionEnded(NODE, self._device, reason(error))
                return
            line = parse_log_record(record) if record else None
            if line is not None:
                yield from self._events(line)
            elif not record:
                return

    def _read(self) -> bytes:
        return os.read(self._descriptor, _MOST_BYTES)

    def _events(self, line: "LogLine") -> Iterator[Event]:
        if self._last is not None and line.sequence > self._last + 1:
            yield LogGap(line.sequence - self._last - 1)
        self._last = max(line.sequence, self._last or 0)
        if not line.is_from_kernel:
            return
        found = self._parser.feed(line.text, line.sequence, line.boot_seconds)
        if found is not None and line.sequence >= self._skip_to:
            yield OomKill(self._with_cgroup(found))

    def _with_cgroup(self, record: OomRecord) -> OomRecord:
        """Where the log does not name the cgroup, /proc may, as long as the process exists."""
        if record.cgroup and not record.group:
            return record
        return record._replace(cgroup=memory_cgroup(record.pid, self._proc) or record.cgroup)


def memory_cgroup(pid: int, proc: str = "/proc") -> str:
    """The cgroup to which the memory of process `pid` is charged; "" if the process is gone, or in the root cgroup."""
    try:
        text = read_text(f"{proc}/{pid}/cgroup")
    except EvenkeelError:
        return ""
    unified = ""
    for line in text.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        path = path.removesuffix(" (deleted)").rstrip("/")
        if "memory" in controllers.split(","):
            return path
        if not controllers:
            unified = path
    return unified


class LogLine(NamedTuple):
    sequence: int
    boot_seconds: float
    is_from_kernel: bool  # False: a process wrote it into the log
    text: str


def parse_log_record(record: bytes) -> LogLine | None:
    """One record of /dev/kmsg: `6,339,5140900,-;text`, or None if it is none.

    There may be more fields before `;`. The lines after the first are keys and values of a device, and are left out.
    Control characters stay escaped.
    """
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    numbers = fields[:3]
    if not semicolon or len(numbers) < 3:
        return None
    if not all(number.isdigit() and len(number) <= _MOST_DIGITS for number in numbers):
        return None
    text = rest.partition(b"\n")[0]
    if b"\\" in text:
        text = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text)
    priority, sequence, microseconds = map(int, numbers)
    # The bits above the lowest three are the facility: 0 is the kernel, and no process can claim it.
    return LogLine(sequence, microseconds / 1e6, priority < 8, text.decode(errors="replace"))


# An OOM writes about a hundred lines; only these are parsed.
_OF_INTEREST = re.compile(r"oom-kill|Tasks? in |memory: usage |Kill(?:ed)? process ")
_VICTIM = re.compile(r"oom-kill:constraint=CONSTRAINT_(\w+),.*?(?:,oom_memcg=(.*?)|,global_oom)?"
                     r",task_memcg=(.*?),task=.*,pid=(\d+),uid=(\d+)$")  # fmt: skip
_VICTIM_BEFORE_5 = re.compile(r"Task in (.*) killed as a result of limit of (.*)$")
_KILL_BEFORE_5 = re.compile(r"(Memory cgroup out|Out) of memory.*: Kill process \d+ ")
_USAGE = re.compile(r"memory: usage (\d+)kB, limit (\d+)kB")
_GROUP = re.compile(r"Tasks in (.*) are going to be killed due to memory\.oom\.group set")
_KILLED = re.compile(r"(?:((?:Memory cgroup out|Out) of memory[^:\[]*): )?"
                     r"Killed process (\d+) \((.*)\),? total-vm:(.*)$")  # fmt: skip
_FIGURE = re.compile(r"([a-z-]+):(\d+)kB")
_SCORE = re.compile(r"oom_score_adj:(-?\d+)")
_UID = re.compile(r"UID:(\d+)")

# The kernel kills the processes of a group in quick succession; a kill much later belongs to another OOM.
_GROUP_SECONDS = 1.0


class _Victim(NamedTuple):
    """The facts about the victim in the lines before "Killed process …"."""

    constraint: str
    limit_cgroup: str
    cgroup: str
    pid: int | None = None
    uid: int | None = None


class OomParser:
    """Takes the lines of the log in order and returns a record for each kill. All other lines are ignored."""

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
                return None  # the first victim of a group is listed once more among its group
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
        """The next process of a cgroup that is killed as a whole: it has the same cause as the first one."""
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
