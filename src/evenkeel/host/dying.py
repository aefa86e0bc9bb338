"""Kills processes so that their memory is free soon.

A killed process frees its memory only when it is scheduled. With `process_mrelease` the caller does that work at once,
if the process has not begun to end yet.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable

_SYS_PROCESS_MRELEASE = 448  # the same on every architecture
_READ_BYTES = 1 << 16
_MOST = 64  # processes of one pod; if a pod has more, each of them has little memory


class Dying:
    """Processes that are about to be killed: those of a pod. Each has a pidfd, so no other process with its number can
    be killed. `processes` returns the numbers of the pod's processes. It is called twice: a process that it returns
    after its pidfd was opened is no other one with an old number."""

    def __init__(self, processes: Callable[[], Collection[int]]) -> None:
        self._processes = processes
        self._descriptors: list[int] = []
        self._pids: list[int] = []
        self.is_closed = False
        opened = _opened(processes())
        there = processes() if opened else ()
        for pid, descriptor in opened:
            if pid in there:
                self._pids.append(pid)
                self._descriptors.append(descriptor)
            else:
                os.close(descriptor)

    def kill(self) -> None:
        """Unlike cgroup.kill, this takes no lock of the cgroup tree, so it does not wait for other work on cgroups."""
        for descriptor in self._descriptors:
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except OSError:
                continue  # the process is gone

    def are_all(self) -> bool:
        """Whether the pod has no other process than these."""
        return bool(self._pids) and set(self._pids).issuperset(self._processes())

    def hurry(self) -> None:
        """Lets the killed processes run before all others and without their CPU limit. Otherwise a process that is
        limited to a hundredth of a CPU would take a hundred times as long to free its memory. A kernel with real-time
        budgets does not allow this in the cgroup of a pod (`protection.has_realtime_budgets`)."""
        for pid, descriptor in zip(self._pids, self._descriptors, strict=False):
            try:
                signal.pidfd_send_signal(descriptor, 0)  # else the number may be another process's by now
                os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            except OSError:
                continue  # the process is gone, or this is not allowed

    def release(self) -> int:
        """Frees the memory of the killed processes. Returns the number of processes for which this worked. For a
        process that was not killed, the kernel refuses, and nothing happens."""
        libc = ctypes.CDLL(None, use_errno=True)  # CDLL releases the GIL: other threads run meanwhile
        released = 0
        for descriptor in self._descriptors:
            number, flags = ctypes.c_long(_SYS_PROCESS_MRELEASE), ctypes.c_uint(0)
            released += libc.syscall(number, ctypes.c_int(descriptor), flags) == 0
        return released

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self.is_closed = True


def _opened(pids: Iterable[int]) -> list[tuple[int, int]]:
    """The numbers of these processes, with their pidfds."""
    opened: list[tuple[int, int]] = []
    for pid in pids:
        if len(opened) == _MOST:
            break
        try:
            opened.append((pid, os.pidfd_open(pid)))
        except OSError:
            continue  # the process is gone, or there are no more descriptors
    return opened


def pids_of(directory: str) -> list[int]:
    """The processes in the cgroup at `directory`. Empty if the cgroup is gone."""
    try:
        descriptor = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    text = b""
    try:
        while part := os.read(descriptor, _READ_BYTES):
            text += part
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [pid for pid in map(int, text.split()) if pid > 0]
