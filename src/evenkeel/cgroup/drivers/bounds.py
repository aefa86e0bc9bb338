"""How far a driver may go: names are checked here before they become paths."""

from functools import lru_cache
from typing import NamedTuple

from evenkeel.api.cgroup_path import is_within
from evenkeel.cgroup.driver import CgroupError

_LONGEST_COMPONENT = 255
_LONGEST_PATH = 4000  # the kernel takes 4096 bytes, the mount point included


class Bounds(NamedTuple):
    """`root` is ours with everything below it. The cgroups above it and the `reserved` ones of daemons are made and
    set, never removed. `readable` ones are only looked at."""

    root: str
    reserved: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()

    def to_read(self, path: str) -> None:
        _check_path(path)
        if not self._is_set(path) and not any(is_within(path, other) for other in self.readable):
            raise self._outside(path)

    def to_set(self, path: str) -> None:
        _check_path(path)
        if path == "/" or not self._is_set(path):
            raise self._outside(path)

    def to_remove(self, path: str) -> None:
        _check_path(path)
        if path == "/" or not is_within(path, self.root):
            raise self._outside(path)

    def _is_set(self, path: str) -> bool:
        return (
            is_within(path, self.root)
            or is_within(self.root, path)
            or any(is_within(path, other) for other in self.reserved)
        )

    def _outside(self, path: str) -> CgroupError:
        return CgroupError(f"cgroup {path} is not ours: everything of ours is in {self.root}", path=path)


def check_file(path: str, file: str) -> None:
    """Files are named by their one name, never by a path."""
    if not file or file in (".", "..") or "/" in file or "\0" in file:
        raise CgroupError(f'"{file[:80]!r}" is not a file of cgroup {path}', path=path, file=file)


@lru_cache(maxsize=4096)  # the same few paths are asked for again and again
def _check_path(path: str) -> None:
    if not path.startswith("/") or "\0" in path or not _is_text(path):
        raise CgroupError(f"{path[:80]!r} is not a cgroup: write it as /evenkeel/kubepods", path=path)
    if path == "/":
        return
    for component in path[1:].split("/"):
        if component in ("", ".", "..") or len(component.encode()) > _LONGEST_COMPONENT:
            raise CgroupError(
                f"{path[:80]!r} is not a cgroup: {component[:40]!r} cannot be a part of its path", path=path
            )
    if len(path.encode()) > _LONGEST_PATH:
        raise CgroupError(f"cgroup {path[:80]!r}… is longer than a path can be", path=path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can hold it
        return False
    return True
