"""Unpacks the entries of one tar file below a root directory, and nowhere else."""

import errno
import os
import stat
import tarfile
from contextlib import suppress

from evenkeel.runtime import syscalls
from evenkeel.runtime.tree_removal import remove_tree

_WITHIN = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_COPY_BYTES = 1 << 20
_LOOK_AGAIN_BYTES = 64 << 20
_LEAVE_FREE_BYTES = 256 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


class Bounds:
    """Limits on the unpacked size: a limit for all files together, and free space that must be left on the disk."""

    def __init__(self, max_bytes: int = 16 << 30, max_entries: int = 1_000_000) -> None:
        self._bytes_left = max_bytes
        self._entries_left = max_entries
        self._looked_at_bytes_left = max_bytes + _LOOK_AGAIN_BYTES

    def take_entry(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise ValueError("it has more entries than a root filesystem can need")

    def take_bytes(self, count: int, descriptor: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise ValueError("what is in it is too large")
        if self._looked_at_bytes_left - self._bytes_left >= _LOOK_AGAIN_BYTES:
            self._looked_at_bytes_left = self._bytes_left
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < _LEAVE_FREE_BYTES:
                raise OSError(errno.ENOSPC, "the disk is nearly full")


class Unpacking:
    """Unpacks one tar file. With `is_layer` it may remove files of earlier layers."""

    def __init__(self, root: int, bounds: Bounds, *, is_layer: bool) -> None:
        self._root = root
        self._bounds = bounds
        self._is_layer = is_layer
        self._is_root = os.geteuid() == 0
        self._made: set[str] = set()  # the paths made by this layer
        self._parent = -1
        self._parent_path: str | None = None
        # The times of directories. They are set at the end, because each new entry changes them.
        self._times: list[tuple[str, int]] = []

    def take(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        self._bounds.take_entry()
        path = _relative(member.name)
        if not path:
            if member.isdir():
                self._settle(self._root, member)
            return
        directory, name = os.path.split(path)
        parent = self._open_parent(directory)
        if self._is_layer:
            if name.startswith(_WHITEOUT):
                self._take_away(parent, directory, name)
                return
            self._note(path)
        self._make(member, tar, parent, name, path)

    def finish(self) -> None:
        self._forget_parent()
        for path, seconds in reversed(self._times):
            try:
                descriptor = syscalls.open_within(self._root, path, _DIRECTORY, _WITHIN)
            except OSError:
                continue  # another entry has replaced it since
            os.utime(descriptor, (seconds, seconds))
            os.close(descriptor)

    def _make(self, member: tarfile.TarInfo, tar: tarfile.TarFile, parent: int, name: str, path: str) -> None:
        if member.isdir():
            self._make_directory(member, parent, name, path)
        elif member.isreg():
            self._clear(parent, name)
            self._make_file(member, tar, parent, name)
        elif member.issym():
            self._clear(parent, name)
            os.symlink(member.linkname, name, dir_fd=parent)
            self._own(parent, name, member)
        elif member.islnk():
            self._link(member, parent, name)
        elif member.isfifo():
            self._clear(parent, name)
            os.mkfifo(name, member.mode & 0o777, dir_fd=parent)
            self._own(parent, name, member)
        # Devices and entries of unknown type are left out: a container has its own /dev.

    def _make_directory(self, member: tarfile.TarInfo, parent: int, name: str, path: str) -> None:
        mode = _mode_of(parent, name)
        if mode is None or not stat.S_ISDIR(mode):
            self._clear(parent, name)
            os.mkdir(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            self._settle(descriptor, member)
        finally:
            os.close(descriptor)
        self._times.append((path, _seconds(member)))

    def _make_file(self, member: tarfile.TarInfo, tar: tarfile.TarFile, parent: int, name: str) -> None:
        content = tar.extractfile(member)
        assert content is not None
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        with content, open(descriptor, "wb", buffering=0) as file:
            while part := content.read(_COPY_BYTES):
                self._bounds.take_bytes(len(part), descriptor)
                file.write(part)
            self._settle(descriptor, member)
            os.utime(descriptor, (_seconds(member), _seconds(member)))

    def _link(self, member: tarfile.TarInfo, parent: int, name: str) -> None:
        source_directory, source_name = os.path.split(_relative(member.linkname))
        source = syscalls.open_within(self._root, source_directory or ".", os.O_PATH, _WITHIN)
        try:
            if not source_name or (
                os.path.samestat(os.fstat(source), os.fstat(parent)) and source_name == name
            ):
                return
            self._clear(parent, name)
            os.link(source_name, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _settle(self, descriptor: int, member: tarfile.TarInfo) -> None:
        if self._is_root:
            os.fchown(descriptor, member.uid, member.gid)
        # A user other than root needs access to the directories to fill and to remove them.
        more = stat.S_IRWXU if member.isdir() and not self._is_root else 0
        os.fchmod(descriptor, stat.S_IMODE(member.mode) | more)

    def _own(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        if self._is_root:
            os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)

    def _open_parent(self, path: str) -> int:
        """Opens the parent directory. The last one stays open, because entries of one directory follow each other."""
        if path != self._parent_path:
            self._forget_parent()
            try:
                self._parent = syscalls.open_within(self._root, path or ".", _DIRECTORY, _WITHIN)
            except FileNotFoundError:
                self._parent = self._made_directory(path)
            self._parent_path = path
        return self._parent

    def _made_directory(self, path: str) -> int:
        """Makes a directory that the archive has no entry for, and those above it that are missing. A path may have
        thousands of them, and each takes as much as an entry. So there is no recursion, and each counts as one."""
        missing: list[str] = []
        parent = -1
        while parent < 0:
            path, name = os.path.split(path)
            missing.append(name)
            with suppress(FileNotFoundError):
                parent = syscalls.open_within(self._root, path or ".", _DIRECTORY, _WITHIN)
        try:
            while missing:
                self._bounds.take_entry()
                name = missing.pop()
                os.mkdir(name, dir_fd=parent)
                made = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                os.close(parent)
                parent = made
                os.fchmod(parent, 0o755)
        except BaseException:
            os.close(parent)
            raise
        return parent

    def _forget_parent(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
        self._parent, self._parent_path = -1, None

    def _clear(self, parent: int, name: str) -> None:
        """Removes an earlier entry that a new one replaces."""
        mode = _mode_of(parent, name)
        if mode is None:
            return
        if stat.S_ISDIR(mode):
            remove_tree(f"/proc/self/fd/{parent}/{name}")
        else:
            os.unlink(name, dir_fd=parent)

    def _note(self, path: str) -> None:
        while path and path not in self._made:
            self._made.add(path)
            path = os.path.dirname(path)

    def _take_away(self, parent: int, directory: str, name: str) -> None:
        if name == _OPAQUE:
            for other in os.listdir(parent):
                if os.path.join(directory, other) not in self._made:
                    self._clear(parent, other)
        elif not name.startswith(_WHITEOUT + _WHITEOUT):
            taken = name.removeprefix(_WHITEOUT)
            if taken in ("", ".", ".."):  # the directory itself, or the one above it, which may be ours
                raise ValueError(f"the whiteout {name} in it names no entry of its directory")
            self._clear(parent, taken)


def _relative(name: str) -> str:
    """Returns an entry's path below the root.

    Raises ValueError for a path with `..`: a sound archive has none."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{name[:200]!r} in it leads out of it")
    return "/".join(parts)


def _mode_of(parent: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _seconds(member: tarfile.TarInfo) -> int:
    return min(max(int(member.mtime), 0), (1 << 33) - 1)
