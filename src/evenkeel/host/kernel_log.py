"""The kernel's log, line by line as it is written, and the OOM records in it (E6).

/dev/kmsg gives every reader the whole log; nothing is taken from others. /proc/kmsg would be: what we read there, no
one else would see.
"""

import errno
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.host.event_types import NODE, Event, LogGap, OomKill, SubscriptionEnded
from evenkeel.host.files import read_text
from evenkeel.host.oom_record import OomParser, OomRecord

DEVICE = "/dev/kmsg"

_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MOST_BYTES = 8192  # a record is never longer
_MOST_LINES_AT_ONCE = 500  # so that a flood does not keep others from their turn


class LogLine(NamedTuple):
    sequence: int
    boot_seconds: float
    is_kernels: bool  # and not something that a process wrote into the log
    text: str


def parse_log_record(record: bytes) -> LogLine | None:
    """One record of /dev/kmsg: `6,339,5140900,-;text`. Before `;` there may be more fields; lines after the first are
    key and value of a device and do not concern us. What cannot be printed is escaped."""
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        return None
    text = rest.partition(b"\n")[0]
    if b"\\" in text:
        text = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text)
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    # The part above the lowest three bits says who wrote: 0 is the kernel, and processes cannot give themselves that.
    return LogLine(sequence, microseconds / 1e6, priority < 8, text.decode(errors="replace"))


class KernelLog:
    """New lines of the log, as events. From now on, or where `after_sequence` is given from the line after that."""

    path = NODE

    def __init__(self, after_sequence: int | None = None, device: str = DEVICE, proc: str = "/proc") -> None:
        """Raises OSError where the log must not be read."""
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
                if (
                    error.errno == errno.EPIPE
                ):  # overwritten; the next read goes on with the oldest that is left
                    continue
                yield SubscriptionEnded(NODE, self._device, (error.strerror or str(error)).lower())
                return
            line = parse_log_record(record) if record else None
            if line is not None:
                yield from self._events(line)
            elif not record:
                return

    def _read(self) -> bytes:
        return os.read(self._descriptor, _MOST_BYTES)

    def _events(self, line: LogLine) -> Iterator[Event]:
        if self._last is not None and line.sequence > self._last + 1:
            yield LogGap(line.sequence - self._last - 1)
        self._last = max(line.sequence, self._last or 0)
        if not line.is_kernels:
            return
        for text in line.text.splitlines():
            found = self._parser.feed(text, line.sequence, line.boot_seconds)
            if found is not None and line.sequence >= self._skip_to:
                yield OomKill(self._with_cgroup(found))

    def _with_cgroup(self, record: OomRecord) -> OomRecord:
        """Where the kernel kept the cgroup to itself, its process may still be there to ask."""
        if record.cgroup and not record.group:
            return record
        return record._replace(cgroup=memory_cgroup(record.pid, self._proc) or record.cgroup)


def memory_cgroup(pid: int, proc: str = "/proc") -> str:
    """The cgroup that the memory of process `pid` counts in; "" if it is gone, or in none of its own."""
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
