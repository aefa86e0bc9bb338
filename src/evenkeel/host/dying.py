"""Killing processes so that their memory is free soon.

A killed process frees its memory only when it is scheduled. `process_mrelease` lets the caller do that work at once.
"""

import ctypes
import os
import signal
from collections.abc import Collection, Iterable

from evenkeel.host.gil_held_io import contents

_SYS_PROCESS_MRELEASE = 448  # the same on every architecture
_MOST = 64  # processes of one pod; where there are more, each of them has little memory


class Dying:
    """Processes that are about to be killed, each behind a pidfd: its number cannot become that of another process."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors: list[int] = []
        self._pids: list[int] = []
        for pid in pids:
            if len(self._descriptors) == _MOST:
                break
            try:
                self._descriptors.append(os.pidfd_open(pid))
            except OSError:
                continue  # gone already, or there are no more descriptors
            self._pids.append(pid)

    def kill(self, there: Collection[int]) -> bool:
        """Kills those whose number is in `there`; returns whether these are all of `there`.

        `there` must be read after the pidfds were opened: then a new process with an old number is not killed.
        Unlike cgroup.kill this takes no lock of the cgroup tree, so it does not wait for other work on cgroups.
        """
        for descriptor, pid in zip(self._descriptors, self._pids, strict=True):
            if pid in there:
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                except OSError:
                    continue  # gone
        return bool(there) and set(self._pids).issuperset(there)

    def hurry(self) -> None:
        """Lets the killed processes run before all others and without their CPU limit. A process that is limited to a
        hundredth of a CPU would else take a hundred times as long to free its memory."""
        for pid in self._pids:
            try:
                os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            except OSError:
                continue  # gone, or not allowed

    def release(self) -> int:
        """Frees the memory of the killed processes; returns of how many. For a process that was not killed the kernel
        refuses, and nothing happens."""
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


def pids_of(directory: str) -> list[int]:
    """The processes in the cgroup at `directory`; none if it is gone."""
    try:
        return [pid for pid in map(int, contents(f"{directory}/cgroup.procs").split()) if pid > 0]
    except OSError:
        return []
