"""Kills processes so that their memory is free soon.

A killed process frees its memory only when it is scheduled. With `process_mrelease` the caller does that work at once.
"""

import ctypes
import os
import signal
from collections.abc import Collection, Iterable

_SYS_PROCESS_MRELEASE = 448  # the same on every architecture
_READ_BYTES = 1 << 16
_MOST = 64  # processes of one pod; if a pod has more, each of them has little memory


class Dying:
    """Processes that are about to be killed. Each has a pidfd, so no other process with its number can be killed."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors: list[int] = []
        self._pids: list[int] = []
        for pid in pids:
            if len(self._descriptors) == _MOST:
                break
            try:
                self._descriptors.append(os.pidfd_open(pid))
            except OSError:
                continue  # the process is gone, or there are no more descriptors
            self._pids.append(pid)

    def kill(self, there: Collection[int]) -> bool:
        """Kills the processes whose number is in `there`. Returns whether these are all of `there`.

        `there` must be read after the pidfds were opened. Then a new process with an old number is not killed. Unlike
        cgroup.kill, this takes no lock of the cgroup tree, so it does not wait for other work on cgroups.
        """
        for descriptor, pid in zip(self._descriptors, self._pids, strict=True):
            if pid in there:
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                except OSError:
                    continue  # the process is gone
        return bool(there) and set(self._pids).issuperset(there)

    def hurry(self) -> None:
        """Lets the killed processes run before all others and without their CPU limit. Otherwise a process that is
        limited to a hundredth of a CPU would take a hundred times as long to free its memory."""
        for pid in self._pids:
            try:
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
