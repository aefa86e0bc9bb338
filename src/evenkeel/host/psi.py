"""Pressure stall information (PSI): how long tasks wait for CPU, memory and I/O, and triggers on that time.

Without CAP_SYS_RESOURCE the kernel accepts only triggers whose window is a multiple of 2 s; older kernels accept none.
`TaskWaits` measures the wait for CPU where cgroup v1 has no pressure files.
"""

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum

from evenkeel.named_tuples import NamedTuple


class Resource(StrEnum):
    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"


class Kind(StrEnum):
    SOME = "some"  # at least one task waited
    FULL = "full"  # all tasks that could have run waited


class Trigger(NamedTuple):
    """Fires when tasks waited `stall_us` within any `window_us`."""

    resource: Resource
    kind: Kind
    stall_us: int
    window_us: int

    @property
    def text(self) -> str:
        """The text for the file of the kernel."""
        return f"{self.kind} {self.stall_us} {self.window_us}"


class Stalls(NamedTuple):
    """One line of a pressure file: percent of the last 10, 60 and 300 s, and the sum since the beginning."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


class PressureFigures(NamedTuple):
    some: Stalls = Stalls()
    full: Stalls = Stalls()  # kernels before 5.13 have none for the CPU of the machine


def parse_pressure(text: str) -> PressureFigures:
    """Parses a pressure file. Lines and fields of later kernels are ignored."""
    found = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        pairs = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        with suppress(KeyError, ValueError):
            found[kind] = Stalls(
                float(pairs["avg10"]), float(pairs["avg60"]), float(pairs["avg300"]), int(pairs["total"])
            )
    return PressureFigures(found.get(Kind.SOME, Stalls()), found.get(Kind.FULL, Stalls()))


def node_file(resource: Resource, proc: str = "/proc") -> str:
    return f"{proc}/pressure/{resource}"


def cgroup_file(directory: str, resource: Resource) -> str:
    return f"{directory}/{resource}.pressure"


_UNPRIVILEGED_WINDOW_US = 2_000_000
_LONGEST_WINDOW_US = 10_000_000


def without_privilege(trigger: Trigger) -> Trigger:
    """The nearest trigger that needs no CAP_SYS_RESOURCE: a multiple of 2 s, with the same share of it stalled."""
    steps = -(-trigger.window_us // _UNPRIVILEGED_WINDOW_US)
    window = min(max(steps, 1) * _UNPRIVILEGED_WINDOW_US, _LONGEST_WINDOW_US)
    stall = trigger.stall_us * window // trigger.window_us
    return trigger._replace(stall_us=min(max(stall, 1), window), window_us=window)


class ArmedTrigger:
    """A trigger that the kernel has accepted. `fileno` becomes readable when it fires.

    The kernel signals POLLPRI, which asyncio cannot wait for, and polling the file clears the signal. So each trigger
    has an epoll of its own. That this epoll becomes readable *is* the event: polled again, it may report nothing.
    """

    def __init__(self, file: str, asked: Trigger) -> None:
        """Raises OSError if the kernel accepts neither the trigger nor one with a longer window."""
        self.note = ""
        self.trigger = asked
        self._descriptor = os.open(file, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._write(asked)
            self._epoll = select.epoll()
            self._epoll.register(self._descriptor, select.EPOLLPRI)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _write(self, asked: Trigger) -> None:
        try:
            os.write(self._descriptor, asked.text.encode() + b"\0")
        except OSError as error:
            self.trigger = without_privilege(asked)
            if self.trigger == asked:
                raise
            os.write(self._descriptor, self.trigger.text.encode() + b"\0")
            self.note = (
                f"the kernel refused a pressure window of {asked.window_us / 1e6:g} s ({error.strerror}): without"
                f" CAP_SYS_RESOURCE it must be a multiple of 2 s, so it is {self.trigger.window_us / 1e6:g} s"
            )

    def fileno(self) -> int:
        return self._epoll.fileno()

    def is_gone(self) -> bool:
        """After it fired: whether the cause was the removal of the cgroup."""
        flags: Iterator[int] = (flags for _, flags in self._epoll.poll(0))
        return any(flag & select.EPOLLERR for flag in flags)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._descriptor)


_MOST_TASKS = 512  # of one cgroup; only these are summed up


def waited_some_us(directory: str) -> int | None:
    """cgroup v2: how long tasks have waited for CPU since the cgroup was made; None if the kernel does not count."""
    text = read_if_there(cgroup_file(directory, Resource.CPU))
    return parse_pressure(text.decode("ascii", "replace")).some.total_us if text else None


class TaskWaits:
    """cgroup v1: how long tasks have waited for CPU, added up over samples of one or more cgroups."""

    def __init__(self) -> None:
        self.waited_us = 0
        self._seen_ns: dict[int, int] = {}  # by task

    def sample(self, directories: tuple[str, ...]) -> None:
        tasks = [
            int(task) for one in directories for task in read_if_there(f"{one}/tasks").split()[:_MOST_TASKS]
        ]
        now: dict[int, int] = {}
        for task in tasks:
            words = read_if_there(
                f"/proc/{task}/schedstat"
            ).split()  # time on a CPU, time waiting for a CPU, timeslices
            if len(words) == 3:
                now[task] = int(words[1])
        # A smaller number than before belongs to another task with the same PID.
        added = sum(max(waited - self._seen_ns.get(task, 0), 0) for task, waited in now.items())
        if self._seen_ns:
            self.waited_us += added // 1000
        self._seen_ns = now


def read_if_there(path: str) -> bytes:
    """The content of a small kernel file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
