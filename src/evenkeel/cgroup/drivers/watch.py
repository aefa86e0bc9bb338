"""Whether cgroups were made or removed in some directories since it was last asked, told by the kernel (inotify).

Asking costs one system call, however many directories there are.
"""

import os
from collections.abc import Iterable

_INTERESTING = 0x40 | 0x80 | 0x100 | 0x200  # moved from and to, created, deleted
_ONLY_DIRECTORY = 0x0100_0000
_BUFFER_BYTES = 1 << 16


class DirectoryWatch:
    def __init__(self) -> None:
        self._descriptor = -1

    def watch(self, directories: Iterable[int]) -> bool:
        """Watches the directories behind these descriptors too; False if not all of them can be."""
        from ctypes import CDLL  # only those who run for long need it

        libc = CDLL(None)
        if self._descriptor < 0:
            self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            return False
        add, mask = libc.inotify_add_watch, _INTERESTING | _ONLY_DIRECTORY
        return all(
            directory >= 0 and add(self._descriptor, b"/proc/self/fd/%d" % directory, mask) >= 0
            for directory in directories
        )

    def is_quiet(self) -> bool:
        """Whether nothing has happened since this was last asked."""
        is_quiet = True
        try:
            while os.read(self._descriptor, _BUFFER_BYTES):
                is_quiet = False
        except BlockingIOError:
            pass
        return is_quiet

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
