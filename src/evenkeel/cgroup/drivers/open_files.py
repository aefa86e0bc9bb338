"""Cgroup files that stay open because they are read often: opening takes ten times as long as reading.

The kernel answers ENODEV through the descriptors of a removed cgroup. They are then closed, and if there is a new
cgroup at the path, its files are opened.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from evenkeel.cgroup.drivers.cgroupfs import GONE
from evenkeel.cgroup.drivers.kernel_refusals import refusal

ABSENT = -1  # in place of a descriptor: the cgroup exists and has no such file


class OpenFiles:
    """Open files by cgroup. `open_file` opens a file; if there is none, `exists` says whether the cgroup exists.

    `generation` counts closed files: while it does not change, every descriptor that was returned is valid.
    """

    def __init__(self, open_file: Callable[[str, str], int], exists: Callable[[str, str], bool]) -> None:
        self.generation = 0
        self._open_file = open_file
        self._exists = exists
        self._files: dict[str, dict[str, int]] = {}
        self._lines: dict[str, list[tuple[int, int]]] = {}
        self._lacking: set[str] = set()  # cgroups with absent files
        self._in_use = ""

    def descriptors(self, path: str, files: Sequence[str], *, retry_absent: bool) -> list[int] | None:
        """A descriptor for each file; None if there is no such cgroup. `retry_absent` opens files again that were
        absent."""
        opened = self._files.get(path)
        if opened is None:
            opened = self._files[path] = {}
        self._in_use = path
        found = []
        for file in files:
            descriptor = opened.get(file)
            if descriptor is None or (retry_absent and descriptor == ABSENT):
                descriptor = self._opened(path, file)
                if descriptor is None:
                    self.forget(path)
                    return None
                opened[file] = descriptor
            found.append(descriptor)
        return found

    def contents(self, path: str, files: Sequence[str], most_bytes: int) -> list[bytes] | None:
        """The content of each file, empty if there is none; None if there is no such cgroup."""
        pread = os.pread
        for _ in range(2):
            descriptors = self.descriptors(path, files, retry_absent=False)
            if descriptors is None:
                break
            try:
                return [pread(fd, most_bytes, 0) if fd >= 0 else b"" for fd in descriptors]
            except OSError as error:
                if error.errno not in GONE:
                    raise refusal(error, "read", path) from None
            self.forget(path)
        return None

    def figures(self, path: str, files: Mapping[str, int]) -> list[bytes] | None:
        """As `contents`, for a set of files that is always the same, each with its greatest size. The list of
        descriptors is cached too."""
        line = self._lines.get(path)
        if line is not None:
            pread = os.pread
            try:
                return [pread(fd, most_bytes, 0) if fd >= 0 else b"" for fd, most_bytes in line]
            except OSError as error:
                if error.errno not in GONE:
                    raise refusal(error, "read", path) from None
            self.forget(path)
        contents = self.contents(path, tuple(files), max(files.values()))
        descriptors = (
            self.descriptors(path, tuple(files), retry_absent=False) if contents is not None else None
        )
        if descriptors is not None:
            self._lines[path] = list(zip(descriptors, files.values(), strict=True))
        return contents

    def has_open(self, path: str) -> bool:
        return path in self._files

    def forget(self, path: str) -> None:
        self._lines.pop(path, None)
        for descriptor in self._files.pop(path, {}).values():
            if descriptor >= 0:
                self.generation += 1
                os.close(descriptor)
        self._lacking.discard(path)

    def forget_others(self, root: str, paths: AbstractSet[str]) -> None:
        """Closes the files of cgroups below `root`, except those at `paths`."""
        below = root.rstrip("/") + "/"
        for path in self._files.keys() - paths:
            if path.startswith(below):
                self.forget(path)

    def forget_absences(self) -> None:
        """Controllers were enabled: files that were absent may exist now."""
        for path in self._lacking:
            opened = self._files.get(path, {})
            self._lines.pop(path, None)
            for file in [file for file, descriptor in opened.items() if descriptor == ABSENT]:
                del opened[file]
        self._lacking.clear()

    def make_room(self) -> None:
        """Closes all files except those that are being read."""
        for path in self._files.keys() - {self._in_use}:
            self.forget(path)

    def close(self) -> None:
        for path in list(self._files):
            self.forget(path)

    def _opened(self, path: str, file: str) -> int | None:
        try:
            return self._open_file(path, file)
        except FileNotFoundError:
            if not self._exists(path, file):
                return None
            self._lacking.add(path)
            return ABSENT
        except OSError as error:
            if error.errno in GONE:
                return None
            raise refusal(error, "read", path, file) from None
