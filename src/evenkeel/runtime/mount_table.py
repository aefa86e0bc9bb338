"""What is mounted where, from the text of /proc/self/mountinfo."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mounted(NamedTuple):
    device: str  # major:minor; the same for all mounts of a filesystem
    root: str  # what of the filesystem is mounted
    point: str
    kind: str


def read_mounts() -> tuple[Mounted, ...]:
    with open("/proc/self/mountinfo", "rb") as file:
        return parse_mounts(file.read())


def parse_mounts(text: bytes) -> tuple[Mounted, ...]:
    """In the kernel's order: of two at one point the later one is seen."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(b" - ")
        fields = before.split(b" ")
        if dash and len(fields) >= 6:
            kind = after.split(b" ")[0].decode()
            mounts.append(Mounted(fields[2].decode(), _unescaped(fields[3]), _unescaped(fields[4]), kind))
    return tuple(mounts)


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or in it. Both absolute and without dots."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def other_ways(directory: str, mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Paths outside `directory` at which it, or a part of it, can be seen: its filesystem may be mounted elsewhere too.
    Pure."""
    home = max(
        (mount for mount in reversed(mounts) if is_below(directory, mount.point)),  # of two, the later
        key=lambda mount: len(mount.point),
        default=None,
    )
    if home is None:
        return ()
    inside = _joined(home.root, os.path.relpath(directory, home.point))  # its filesystem's own path
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
    """The kernel writes blanks and the like as three octal digits."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text))
