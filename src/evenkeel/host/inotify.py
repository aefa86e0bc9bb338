"""inotify, which the standard library does not have: watches on files and directories, and their events."""

import errno
import os
import struct
from collections.abc import Iterator
from ctypes import CDLL, get_errno

from evenkeel.errors import reason
from evenkeel.named_tuples import NamedTuple

MODIFIED = 0x2
ATTRIBUTES = 0x4
WRITTEN = 0x8  # closed after it was open for writing
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATED = 0x100
DELETED = 0x200  # an entry of a watched directory
SELF_DELETED = 0x400
SELF_MOVED = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000  # the watch was removed

_ONLY_DIRECTORY = 0x0100_0000
_HEADER = struct.Struct("iIII")


class FileEvent(NamedTuple):
    watch: int
    mask: int
    name: str


class Inotify:
    def __init__(self) -> None:
        """Raises OSError, for example if the user has too many instances."""
        self._libc = CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")

    def fileno(self) -> int:
        return self._descriptor

    def watch_file(self, path: str) -> int:
        """Reports changes of the content of the file."""
        return self._add(path, MODIFIED)

    def watch_directory(self, path: str) -> int:
        """Reports entries that are removed from the directory."""
        return self._add(path, DELETED | _ONLY_DIRECTORY)

    def watch_entries(self, path: str) -> int:
        """Reports entries that are created, removed or written, and the removal of the directory itself."""
        entries = CREATED | WRITTEN | MOVED_FROM | MOVED_TO | DELETED | ATTRIBUTES
        return self._add(path, entries | SELF_DELETED | SELF_MOVED | _ONLY_DIRECTORY)

    def unwatch(self, watch: int) -> None:
        # An error means that the kernel has removed the watch already.
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> Iterator[FileEvent]:
        """The events so far; none if there are none."""
        try:
            buffer = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(buffer):
            watch, mask, _, length = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size + length
            name = buffer[offset - length : offset].rstrip(b"\0")
            yield FileEvent(watch, mask, os.fsdecode(name))

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
