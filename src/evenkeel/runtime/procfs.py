"""Reads processes and mounts from /proc.

A PID alone does not identify a process, because PIDs are used again. A PID with its start time does.
"""

import os
import re
import select
from collections.abc import Sequence

from evenkeel.errors import raise_shortage
from evenkeel.named_tuples import NamedTuple

# Fields 4, 6, 10, 12, 14, 15, 20 and 22.
_PARENT, _SESSION, _MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM, _THREADS = 1, 3, 7, 9, 11, 12, 17
_START_TIME = 19


class Process(NamedTuple):
    """A process, distinct from a later one with the same PID."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


class Stat(NamedTuple):
    start_ticks: int
    has_ended: bool  # a zombie with no other thread: its first thread may end before the others
    parent: int
    cpu_ticks: int
    threads: int
    minor_faults: int
    major_faults: int
    session: int


def process_at(pid: int) -> Process | None:
    """Returns the process that has this PID now; None if there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else Process(pid, ticks)


def start_ticks(pid: int) -> int | None:
    """Returns the start time of the process; None if it does not exist. A zombie has one too. Raises OSError as
    `read_stat` does."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def read_stat(pid: int) -> Stat | None:
    """Reads /proc/PID/stat; None if there is no such process. Raises OSError if no descriptor is left to look: a
    process that cannot be looked at has not ended."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise_shortage(error)
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError as error:
        raise_shortage(error)
        return None
    finally:
        os.close(descriptor)
    # From the third field on. The name in brackets before it may contain any bytes.
    fields = text.rpartition(b") ")[2].split()
    if len(fields) <= _START_TIME:
        return None
    return Stat(
        int(fields[_START_TIME]),
        fields[0] in (b"Z", b"X") and int(fields[_THREADS]) <= 1,
        int(fields[_PARENT]),
        int(fields[_USER]) + int(fields[_SYSTEM]),
        int(fields[_THREADS]),
        int(fields[_MINOR_FAULTS]),
        int(fields[_MAJOR_FAULTS]),
        int(fields[_SESSION]),
    )


def is_alive(pid: int, started: int) -> bool:
    """Returns whether the process with this PID and start time exists and has not ended. A zombie has ended."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == started and not stat.has_ended


_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mounted(NamedTuple):
    device: str  # major:minor; the same for all mounts of a filesystem
    root: str  # the mounted part of the filesystem
    point: str
    kind: str


def read_mounts() -> tuple[Mounted, ...]:
    return parse_mounts(mount_lines())


def mount_lines() -> bytes:
    """The mounts as the kernel lists them."""
    with open("/proc/self/mountinfo", "rb") as file:
        return file.read()


def mounts_outside(directory: str, lines: bytes) -> bytes:
    """The lines of mounts that are not below the directory. If the kernel writes characters of its path as digits, all
    lines. Does not parse them, which takes ten times as long."""
    below = os.fsencode(directory) + b"/"
    points = ((line, line.split(b" ", 5)[4:5]) for line in lines.splitlines())
    return b"\n".join(line for line, point in points if not (point and point[0].startswith(below)))


def parse_mounts(text: bytes) -> tuple[Mounted, ...]:
    """Parses mountinfo, in the kernel's order. Of two mounts at one point, the later one is visible."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(b" - ")
        fields = before.split(b" ")
        if dash and len(fields) >= 6:
            # The user that mounts a FUSE filesystem chooses its kind: it may be any bytes.
            kind, device = (os.fsdecode(text) for text in (after.split(b" ")[0], fields[2]))
            mounts.append(Mounted(device, _unescaped(fields[3]), _unescaped(fields[4]), kind))
    return tuple(mounts)


def is_below(path: str, directory: str) -> bool:
    """Returns whether `path` is `directory` or in it. Both are absolute and have no dots."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def other_ways(directory: str, mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Returns paths outside `directory` that show it or a part of it.

    Its filesystem may be mounted at other places too.
    """
    home = max(
        # Of two mounts, the later one.
        (mount for mount in reversed(mounts) if is_below(directory, mount.point)),
        key=lambda mount: len(mount.point),
        default=None,
    )
    if home is None:
        return ()
    inside = _joined(home.root, os.path.relpath(directory, home.point))  # its path inside the filesystem
    ways = []
    for mount in mounts:
        if mount.device != home.device or is_below(mount.point, directory):
            continue
        if is_below(inside, mount.root):
            ways.append(_joined(mount.point, os.path.relpath(inside, mount.root)))
        elif is_below(mount.root, inside):
            ways.append(mount.point)
    return tuple(dict.fromkeys(way for way in ways if not is_below(way, directory)))


def _joined(directory: str, path: str) -> str:
    return os.path.normpath(os.path.join(directory, path))


def _unescaped(text: bytes) -> str:
    """Decodes a path. The kernel writes blanks and similar characters as three octal digits."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text))


class MountWatch:
    """Detects changes of mounts in the mount namespace of this process."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLPRI)

    def have_changed(self) -> bool:
        """Returns whether mounts have changed since the last call."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
