"""Reads and writes the files of cgroups, for the drivers.

The directory of a cgroup is opened component by component from the mount point, never through a symbolic link, so no
path leads out. Directories stay open, because walking a path takes longer than reading most files. For a removed cgroup
the kernel answers ENOENT or ENODEV. Its directory is then closed and opened again: there may be a new cgroup at the
same path.
"""

import errno
import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import lru_cache

from evenkeel.api.scalars import is_within
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.kernel_refusals import refusal
from evenkeel.named_tuples import NamedTuple

_LONGEST_COMPONENT = 255
_LONGEST_PATH = 4000  # the kernel takes 4096 bytes, the mount point included


class Bounds(NamedTuple):
    """The cgroups that a driver may touch. `root` is ours with everything below it. The cgroups above it and the
    `reserved` ones of daemons are made and set, and never removed. `readable` ones are only read."""

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
    """A file is given by its name alone, never by a path."""
    if not file or file in (".", "..") or "/" in file or "\0" in file:
        raise CgroupError(f'"{file[:80]!r}" is not a file of cgroup {path}', path=path, file=file)


@lru_cache(maxsize=4096)  # the same few paths are checked in every pass
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


GONE = (errno.ENOENT, errno.ENODEV)

_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cgroupfs:
    """The hierarchy that is mounted at `mount`. Paths are those of the plan, checked by `Bounds`. `make_room` closes
    files when there are too many open ones."""

    def __init__(self, mount: str, make_room: Callable[[], None] = lambda: None) -> None:
        self.mount = mount.rstrip("/") or "/"
        self.closings = 0  # while this does not change, all descriptors of directories are valid
        self._directories: dict[str, int] = {}
        self._make_room = make_room

    def directory(self, path: str) -> str:
        """The directory of the cgroup, for callers that watch its files."""
        return f"{self.mount}{path}".rstrip("/") or "/"

    def exists(self, path: str) -> bool:
        try:
            self._enter_anew(path)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise refusal(error, "look into", path) from None
        return True

    def make(self, path: str) -> bool:
        """Makes the cgroup in an existing one; False if it exists already. Raises OSError."""
        parent, _, name = path.rpartition("/")
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=self._enter(parent))
            except FileNotFoundError:
                self._let_go(parent)
                os.mkdir(name, 0o755, dir_fd=self._enter(parent))
        except FileExistsError:
            return False
        return True

    def remove(self, path: str) -> None:
        """Removes an empty cgroup; it may be gone already. Raises OSError."""
        parent, _, name = path.rpartition("/")
        self.forget(path)
        try:
            try:
                os.rmdir(name, dir_fd=self._enter(parent))
            except FileNotFoundError:
                self._let_go(parent)
                os.rmdir(name, dir_fd=self._enter(parent))
        except FileNotFoundError:
            pass

    def children(self, path: str) -> tuple[str, ...]:
        """The names of the cgroups in a cgroup; none if it is gone."""
        try:
            descriptor = os.open(".", _LIST, dir_fd=self._enter_anew(path))
            try:
                with os.scandir(descriptor) as entries:
                    return tuple(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in GONE:
                return ()
            raise refusal(error, "list", path) from None

    def entered(self, path: str) -> int:
        """A descriptor of the cgroup's directory, valid until `closings` changes; −1 if there is no such cgroup."""
        try:
            return self._enter(path)
        except OSError as error:
            if error.errno in GONE:
                return -1
            raise refusal(error, "look into", path) from None

    def open(self, path: str, file: str) -> int:
        """A descriptor to read the file with, for the caller to close. Raises OSError."""
        check_file(path, file)
        return self._open(path, file, _READ)

    def read(self, path: str, file: str) -> bytes:
        """The whole file. Raises OSError."""
        descriptor = self.open(path, file)
        try:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write(self, path: str, file: str, value: str) -> None:
        """Raises OSError: the driver knows what an absent file means."""
        check_file(path, file)
        descriptor = self._open(path, file, _WRITE)
        try:
            os.write(descriptor, value.encode() or b"\n")  # an empty write would not reach the kernel
        finally:
            os.close(descriptor)

    def forget(self, path: str) -> None:
        """Closes the cgroup's directory."""
        if path in self._directories:
            self.closings += 1
            os.close(self._directories.pop(path))

    def forget_others(self, root: str, paths: AbstractSet[str]) -> None:
        """Closes the directories below `root`, except those of the cgroups at `paths`."""
        below = root.rstrip("/") + "/"
        for path in self._directories.keys() - paths:
            if path.startswith(below):
                self.forget(path)

    def close(self) -> None:
        for path in list(self._directories):
            self.forget(path)

    def _open(self, path: str, file: str, flags: int) -> int:
        try:
            return self._opened(file, flags, self._enter(path))
        except FileNotFoundError:
            # Either there is no such file, or the open directory is that of a removed cgroup.
            return self._opened(file, flags, self._enter_anew(path))

    def _enter(self, path: str) -> int:
        """The descriptor of the cgroup's directory, opened from the nearest open directory above."""
        path = path if path != "/" else ""
        known = self._directories.get(path)
        if known is not None:
            return known
        names: list[str] = []
        above = path
        while above and above not in self._directories:
            above, _, name = above.rpartition("/")
            names.append(name)
        if above not in self._directories:
            self._directories[""] = self._opened(self.mount, _ENTER & ~os.O_NOFOLLOW, None)
        for name in reversed(names):
            entered = self._opened(name, _ENTER, self._directories[above])
            above = f"{above}/{name}"
            self._directories[above] = entered
        return self._directories[path]

    def _enter_anew(self, path: str) -> int:
        """As `_enter`, and certainly the cgroup that is at this path now: every existing cgroup has this file."""
        try:
            descriptor = self._enter(path)
            os.stat("cgroup.procs", dir_fd=descriptor)
        except FileNotFoundError:
            if self._is_absent(path):
                raise
            self._let_go(path)
            descriptor = self._enter(path)
        return descriptor

    def _is_absent(self, path: str) -> bool:
        """Whether a cgroup that could not be entered does not exist: what is open of those above it exists."""
        if path in self._directories:
            return False
        above = path.rpartition("/")[0]
        while above not in self._directories:
            above = above.rpartition("/")[0]
        try:
            os.stat("cgroup.procs", dir_fd=self._directories[above])
        except FileNotFoundError:
            return False
        return True

    def _let_go(self, path: str) -> None:
        """Closes the directories of the cgroup and of those above it: they may be removed ones."""
        while path:
            self.forget(path)
            path = path.rpartition("/")[0]

    def _opened(self, name: str, flags: int, parent: int | None) -> int:
        try:
            return os.open(name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        if not _raise_limit():
            self._make_room()
        return os.open(name, flags, dir_fd=parent)


def _raise_limit() -> bool:
    """Raises the limit on open files of this process to its maximum; False if it is there already."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
