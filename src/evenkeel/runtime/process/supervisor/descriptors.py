"""Descriptors that are closed unless they are kept: whatever goes wrong halfway leaves none open."""

import os
from typing import Self


class Descriptors:
    """Closes what was opened, but for what is kept."""

    def __init__(self) -> None:
        self._opened: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def add(self, descriptor: int) -> int:
        self._opened.add(descriptor)
        return descriptor

    def keep(self, descriptor: int) -> int:
        self._opened.discard(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self.add(read), self.add(write)

    def fifo(self, path: str) -> int:
        """The end of a FIFO for reading, without waiting."""
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        return self.add(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
