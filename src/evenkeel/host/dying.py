"""Processes on their way out, and their memory before them.

A killed process gives its memory back when it gets to run; `process_mrelease` has the caller do that work beside it.
"""

import ctypes
import os
import signal
from collections.abc import Collection, Iterable

from evenkeel.host.gil_held_io import contents

_SYS_PROCESS_MRELEASE = 448  # the same on every architecture
_MOST = 64  # processes of one pod: of more than that, each has little


class Dying:
    """Processes that are about to be killed, held so that no other can be met under their numbers."""

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
        """Kills those of them that are `there`: numbers looked up after they were taken hold of, so that who has taken
        over the number of one that had just ended is not met. Whether that is all who are there.

        Unlike a cgroup's own kill it waits for nobody who is making, removing or entering cgroups meanwhile."""
        for descriptor, pid in zip(self._descriptors, self._pids, strict=True):
            if pid in there:
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                except OSError:
                    continue  # gone
        return bool(there) and set(self._pids).issuperset(there)

    def hurry(self) -> None:
        """They were killed: lets them end before others run, and whatever share of the processor they were limited to.
        Else a process that may use a hundredth of one takes a hundred times as long to give its memory back."""
        for pid in self._pids:
            try:
                os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            except OSError:
                continue  # gone, or not allowed

    def release(self) -> int:
        """Gives back the memory of those that were killed, and tells how many did. Of one that was not the kernel
        refuses it, and nothing happens."""
        libc = ctypes.CDLL(None, use_errno=True)  # which lets other threads run meanwhile
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
    """The processes in the cgroup at `directory`, none if it is gone."""
    try:
        return [pid for pid in map(int, contents(f"{directory}/cgroup.procs").split()) if pid > 0]
    except OSError:
        return []
