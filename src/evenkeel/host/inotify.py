"""inotify, of which the standard library has nothing: watches on files and directories, and what happened to them."""

import errno
import os
import struct
from collections.abc import Iterator
from ctypes import CDLL, get_errno
from typing import NamedTuple

from evenkeel.errors import reason

MODIFIED = 0x2
ATTRIBUTES = 0x4
WRITTEN = 0x8  # closed by one who had it open for writing
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATED = 0x100
DELETED = 0x200  # an entry of a watched directory
SELF_DELETED = 0x400
SELF_MOVED = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000  # the watch itself is gone

_ONLY_DIRECTORY = 0x0100_0000
_HEADER = struct.Struct("iIII")


class Happened(NamedTuple):
    watch: int
    mask: int
    name: str


class Inotify:
    def __init__(self) -> None:
        """Raises OSError, as where the user has too many of them."""
        self._libc = CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")

    def fileno(self) -> int:
        return self._descriptor

    def watch_file(self, path: str) -> int:
        """Tells when the file's contents changed."""
        return self._add(path, MODIFIED)

    def watch_directory(self, path: str) -> int:
        """Tells when an entry was removed."""
        return self._add(path, DELETED | _ONLY_DIRECTORY)

    def watch_entries(self, path: str) -> int:
        """Tells when an entry of the directory came, went or was written, and when the directory itself goes."""
        entries = CREATED | WRITTEN | MOVED_FROM | MOVED_TO | DELETED | ATTRIBUTES
        return self._add(path, entries | SELF_DELETED | SELF_MOVED | _ONLY_DIRECTORY)

    def unwatch(self, watch: int) -> None:
        # One that the kernel has removed already is fine.
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> Iterator[Happened]:
        """What happened so far; nothing if nothing did."""
        try:
            buffer = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(buffer):
            watch, mask, _, length = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size + length
            name = buffer[offset - length : offset].rstrip(b"\0")
            yield Happened(watch, mask, os.fsdecode(name))

    def close(self) -> None:
        os.close(self._descriptor)

    def _add(self, path: str, mask: int) -> int:
        return self._checked(self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask), path)

    @staticmethod
    def _checked(result: int, path: str) -> int:
        if result < 0:
            code = get_errno()
            raise OSError(code, os.strerror(code), path)
        return result


_REFUSALS = {
    errno.ENOSPC: "there are too many watches: raise them with sysctl -w fs.inotify.max_user_watches=65536",
    errno.EMFILE: "there are too many open files or inotify instances: raise them with ulimit -n and"
    " sysctl -w fs.inotify.max_user_instances=512",
}


def watch_refusal(error: OSError) -> str:
    """Why a watch could not be set, and the setting to change where one helps."""
    return _REFUSALS.get(error.errno or 0) or reason(error)
