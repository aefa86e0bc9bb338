"""Pressure stall information: how long tasks wait for cpu, memory and io, and triggers that tell when it is too long.

Without CAP_SYS_RESOURCE the kernel takes only triggers whose window is a multiple of 2 s, and older kernels none.
"""

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple


class Resource(StrEnum):
    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"


class Kind(StrEnum):
    SOME = "some"  # at least one task waited
    FULL = "full"  # all tasks that could have run waited


class Trigger(NamedTuple):
    """Tell when tasks waited `stall_us` within any `window_us`."""

    resource: Resource
    kind: Kind
    stall_us: int
    window_us: int

    @property
    def text(self) -> str:
        """As it is written into the kernel's file."""
        return f"{self.kind} {self.stall_us} {self.window_us}"


class Stalls(NamedTuple):
    """One line of a pressure file: percent of the last 10, 60 and 300 s, and the sum of all time."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


class PressureFigures(NamedTuple):
    some: Stalls = Stalls()
    full: Stalls = Stalls()  # the machine's own cpu file has none on kernels before 5.13


def parse_pressure(text: str) -> PressureFigures:
    """The text of a pressure file. Lines and words that a later kernel may add are passed over."""
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
    """A trigger the kernel has taken. `fileno` is readable when it has fired.

    The kernel tells by POLLPRI, which asyncio does not wait for; and asking whether it has fired takes the answer away.
    So each trigger has an epoll of its own, and that this one became readable *is* the event: asked again it may have
    nothing to tell.
    """

    def __init__(self, file: str, asked: Trigger) -> None:
        """Raises OSError where the kernel does not take it, in any form."""
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
        """To be asked after it fired: whether that was the cgroup's end."""
        flags: Iterator[int] = (flags for _, flags in self._epoll.poll(0))
        return any(flag & select.EPOLLERR for flag in flags)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._descriptor)


_MOST_TASKS = 512  # of one cgroup: of more than that, the sum is of these


def waited_some_us(directory: str) -> int | None:
    """cgroup v2: since it was made, as far as that is counted; None if it is not."""
    text = _read(cgroup_file(directory, Resource.CPU))
    return parse_pressure(text.decode("ascii", "replace")).some.total_us if text else None


class TaskWaits:
    """cgroup v1: adds up over looks at the tasks of one or more directories."""

    def __init__(self) -> None:
        self.waited_us = 0
        self._seen_ns: dict[int, int] = {}  # by task

    def look(self, directories: tuple[str, ...]) -> None:
        tasks = [int(task) for one in directories for task in _read(f"{one}/tasks").split()[:_MOST_TASKS]]
        now: dict[int, int] = {}
        for task in tasks:
            words = _read(f"/proc/{task}/schedstat").split()  # time on a CPU, time waiting for one, turns
            if len(words) == 3:
                now[task] = int(words[1])
        # A number that is smaller than before is another task's.
        added = sum(max(waited - self._seen_ns.get(task, 0), 0) for task, waited in now.items())
        if self._seen_ns:
            self.waited_us += added // 1000
        self._seen_ns = now


def _read(path: str) -> bytes:
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
