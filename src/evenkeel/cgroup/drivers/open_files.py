"""Cgroup files that are read again and again, kept open: reading through a descriptor costs a tenth of opening.

The kernel answers ENODEV through the descriptors of a cgroup that has been removed; they are then closed, and the
cgroup that is at the path now, if there is one, is opened.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from evenkeel.cgroup.drivers.cgroupfs import GONE
from evenkeel.cgroup.drivers.kernel_refusals import refusal

ABSENT = -1  # in place of a descriptor: the cgroup is there and has no such file


class OpenFiles:
    """Files by cgroup. `open_file` opens one; where it finds none, `exists` says whether the cgroup is there.

    `generation` counts the closings: as long as it stays, every descriptor that was handed out is still good.
    """

    def __init__(self, open_file: Callable[[str, str], int], exists: Callable[[str, str], bool]) -> None:
        self.generation = 0
        self._open_file = open_file
        self._exists = exists
        self._kept: dict[str, dict[str, int]] = {}
        self._lines: dict[str, list[tuple[int, int]]] = {}
        self._lacking: set[str] = set()  # cgroups with absent files
        self._in_use = ""

    def descriptors(self, path: str, files: Sequence[str], *, look_again: bool) -> list[int] | None:
        """One for each file; None if there is no such cgroup. With `look_again`, for files that were absent too."""
        kept = self._kept.get(path)
        if kept is None:
            kept = self._kept[path] = {}
        self._in_use = path
        found = []
        for file in files:
            descriptor = kept.get(file)
            if descriptor is None or (look_again and descriptor == ABSENT):
                descriptor = self._opened(path, file)
                if descriptor is None:
                    self.forget(path)
                    return None
                kept[file] = descriptor
            found.append(descriptor)
        return found

    def contents(self, path: str, files: Sequence[str], most_bytes: int) -> list[bytes] | None:
        """What each file holds, nothing where there is none; None if there is no such cgroup."""
        pread = os.pread
        for _ in range(2):
            descriptors = self.descriptors(path, files, look_again=False)
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
        """As `contents`, for files that are always the same, each with its size at most: how they are lined up is kept
        too."""
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
        descriptors = self.descriptors(path, tuple(files), look_again=False) if contents is not None else None
        if descriptors is not None:
            self._lines[path] = list(zip(descriptors, files.values(), strict=True))
        return contents

    def keeps(self, path: str) -> bool:
        return path in self._kept

    def forget(self, path: str) -> None:
        self._lines.pop(path, None)
        for descriptor in self._kept.pop(path, {}).values():
            if descriptor >= 0:
                self.generation += 1
                os.close(descriptor)
        self._lacking.discard(path)

    def forget_others(self, root: str, paths: AbstractSet[str]) -> None:
        """Closes the files of cgroups below `root`, but for those at `paths`."""
        below = root.rstrip("/") + "/"
        for path in self._kept.keys() - paths:
            if path.startswith(below):
                self.forget(path)

    def forget_absences(self) -> None:
        """Controllers have been handed on: files that were not there may be now."""
        for path in self._lacking:
            kept = self._kept.get(path, {})
            self._lines.pop(path, None)
            for file in [file for file, descriptor in kept.items() if descriptor == ABSENT]:
                del kept[file]
        self._lacking.clear()

    def make_room(self) -> None:
        """Closes everything but what is being read."""
        for path in self._kept.keys() - {self._in_use}:
            self.forget(path)

    def close(self) -> None:
        for path in list(self._kept):
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
