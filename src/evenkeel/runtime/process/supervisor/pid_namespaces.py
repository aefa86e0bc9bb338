"""The process namespaces that all containers of a pod share (shareProcessNamespace), and that of a container which an
ephemeral container enters.

A process namespace ends with its first process. If that were a container's, its end would end the others. So the
supervisor makes a process for it, the holder. It is in the cgroup of the pod's infrastructure. It lives from the start
of the pod's first container to the end of its last one, and beyond the supervisor. Its only work is to be the parent
of processes whose parents have ended.

The containers see the holder. So nothing of the supervisor is left in it: it has no descriptors, no capabilities and
another user, and it is not dumpable.
"""

import ctypes
import errno
import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NoReturn

from evenkeel.errors import EvenkeelError
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import StatePaths, read_json, write_json
from evenkeel.runtime.process.supervisor import cgroup_entry, spawn
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.process.supervisor_protocol import ProcessFile, process_from, send_signal
from evenkeel.runtime.procfs import is_alive, start_ticks

_HOLDER = "holder"  # in the pod's directory
_NOBODY = 65534
# In /proc/self/stat, after the name: where the arguments are in memory.
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
_NAME = b"pause"  # the name that container runtimes give to it


class PidNamespaces:
    """The namespaces of pods, by UID. They are found again after a restart of the supervisor."""

    def __init__(self, paths: StatePaths, origin: spawn.Origin) -> None:
        self._paths = paths
        self._origin = origin
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._holders: dict[str, ProcessFile] = {}

    def entered(self, uid: str, plan: Plan) -> AbstractContextManager[None]:
        """Children that are forked in this context are in the pod's namespace. They must not leave the context. Raises
        OSError."""
        return self.entered_of(self._holder(uid) or self._made(uid, plan))

    @contextmanager
    def entered_of(self, process: ProcessFile) -> Iterator[None]:
        """The same with the namespace of a process."""
        namespace = os.open(f"/proc/{process.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not is_alive(process.pid, process.ticks):  # now: its number may have been another's before
                raise ProcessLookupError(errno.ESRCH, "the container to enter has ended")
            syscalls.setns(namespace, syscalls.CLONE_NEWPID)
        finally:
            os.close(namespace)
        try:
            yield
        finally:
            # It is the namespace of children that changes, never that of this process.
            syscalls.setns(self._own, syscalls.CLONE_NEWPID)

    def end(self, uid: str) -> None:
        """Ends the namespace of a pod whose last container has ended, with all processes that are left in it."""
        holder = self._holder(uid)
        if holder is not None:
            send_signal(holder, signal.SIGKILL)
        self._holders.pop(uid, None)
        with suppress(OSError):
            os.unlink(f"{self._paths.pod(uid)}/{_HOLDER}")

    def _holder(self, uid: str) -> ProcessFile | None:
        """Returns the pod's holder; None if none is alive."""
        holder = self._holders.get(uid) or process_from(read_json(self._paths.pod(uid), _HOLDER) or {})
        # Its cgroup is not compared: it may not be there yet.
        if holder is None or not is_alive(holder.pid, holder.ticks):
            return None
        self._holders[uid] = holder
        return holder

    def _made(self, uid: str, plan: Plan) -> ProcessFile:
        orders_end, orders = os.pipe2(os.O_CLOEXEC)
        try:
            pid, entrances = cgroup_entry.clone_into(plan.holder_procs, syscalls.CLONE_NEWPID)
            if pid == 0:
                _hold(plan, entrances, self._origin, orders_end)
            # Not recorded yet. If it gets no order (also because the supervisor is killed now), it ends.
            ticks = start_ticks(pid) or 0
            holder = ProcessFile(
                pid, ticks, plan.holder_cgroup, plan.holder_procs, time.time(), has_pid_namespace=True
            )
            write_json(self._paths.pod(uid), _HOLDER, holder._asdict())
            os.write(orders, b"go")
        finally:
            os.close(orders)
            os.close(orders_end)
        self._holders[uid] = holder
        return holder


def _hold(plan: Plan, entrances: tuple[str, ...], origin: spawn.Origin, orders: int) -> NoReturn:
    """Runs the holder. Never returns, never raises."""
    try:
        gc.disable()
        os.setsid()
        spawn.keep_only(orders)
        cgroup_entry.enter(entrances, plan.holder_cgroup)
        spawn.take_oom_score(plan.holder_score)
        if not os.read(orders, 1):
            os._exit(1)
        _take_name()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets ended children at once
        spawn.limit_programs(0)
        syscalls.set_no_new_privileges()
        with suppress(EvenkeelError):
            instructions = origin.filter(0)
            syscalls.install_filter(instructions.instructions, instructions.length)
        os.setgroups(())
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        syscalls.limit_capabilities(0)
        syscalls.set_dumpable(is_dumpable=False)
        syscalls.close_from(0)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _take_name() -> None:
    """Replaces the supervisor's name and arguments, which every process in the namespace can read."""
    with open("/proc/self/comm", "wb") as file:
        file.write(_NAME)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, _NAME, min(len(_NAME), end - start - 1))
