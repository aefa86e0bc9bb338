"""Processes forked ahead of time, each to become a container: what can be done beforehand costs a start nothing."""

import os
from typing import NamedTuple, Self

from evenkeel.runtime.process import spawn, syscalls
from evenkeel.runtime.process.attempts import start_ticks
from evenkeel.runtime.process.loop import Loop, Timer

_READY = 2
_REFILL_SECONDS = 0.005


class Spare(NamedTuple):
    pid: int
    ticks: int
    orders: int
    report: int
    namespaces: int


class Spares:
    """`namespaces` are those that spares are cloned into."""

    def __init__(self, loop: Loop, namespaces: int) -> None:
        self._loop = loop
        self._namespaces = namespaces
        self._owner = (os.geteuid(), os.getegid())
        self._ready: list[Spare] = []
        self._refill: Timer | None = None

    def take(self) -> Spare:
        """Raises OSError where none can be made."""
        return self._ready.pop() if self._ready else self._forked()

    def fill_later(self) -> None:
        """When nothing has been started for a moment: those just begun have better use for the processor."""
        if self._refill is not None:
            self._refill.cancel()
        self._refill = self._loop.after(_REFILL_SECONDS, self.fill)

    def fill(self) -> None:
        try:
            while len(self._ready) < _READY:
                self._ready.append(self._forked())
        except OSError:
            pass  # whoever needs one will hear

    def child_ended(self, pid: int) -> bool:
        """One that was killed before it became anything."""
        for spare in self._ready:
            if spare.pid == pid:
                self._ready.remove(spare)
                os.close(spare.orders)
                os.close(spare.report)
                self.fill_later()
                return True
        return False

    def _forked(self) -> Spare:
        with Descriptors() as opened:
            orders_end, orders = opened.pipe()
            report, report_end = opened.pipe()
            pid = syscalls.clone(self._namespaces) if self._namespaces else os.fork()
            if pid == 0:
                spawn.be_spare(orders_end, report_end, self._namespaces, self._owner)
            os.set_blocking(report, False)
            return Spare(
                pid, start_ticks(pid) or 0, opened.keep(orders), opened.keep(report), self._namespaces
            )


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
