"""Keeps the agent working while the machine is short of memory and CPU.

The agent's memory is locked, its watch threads have real-time priority, and garbage collection is rare. `small_command`
is for a helper process that starts fast and needs little memory.
"""

import ctypes
import gc
import os
import sys
import threading

import evenkeel
from evenkeel.cgroup.drivers.mounts import parse_mountinfo
from evenkeel.errors import reason

_SOON = -15  # a nice value
_BEFORE_OTHERS, _BEFORE_ALL = 1, 2  # real-time priorities, above all ordinary threads
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
# Number of new objects before Python collects garbage. A collection stops all threads. Most objects are freed without
# one.
_GC_THRESHOLD = 10_000
_GC_THRESHOLD_IN_HASTE = 100_000


def lock_memory() -> str:
    """Locks all present and future pages of this process, so that it never waits for its own memory under pressure.
    Returns a sentence if that is not allowed, else ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return ""
    why = os.strerror(ctypes.get_errno()).lower()
    return f"the agent's memory is not locked, so it may have to wait for its own pages under pressure: {why}"


def collect_garbage_rarely() -> None:
    """Makes garbage collection rare, because it stops all threads. Objects that exist now are excluded from it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def name_thread(name: str) -> None:
    """Sets the name of the calling thread for `top -H`. The kernel keeps 15 characters."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        pass  # the thread works without a name


def run_before_others() -> str:
    """Lets the calling thread run before all ordinary threads. Processes that it starts do not inherit this. Returns a
    sentence if that is not allowed, else ""."""
    own = threading.get_native_id()
    why = _let_be_first(own, _BEFORE_ALL)
    if why:
        try:
            os.setpriority(os.PRIO_PROCESS, own, -20)
        except OSError:
            return f"the watch over memory waits for its turn like any process: {why}"
    return ""


class Haste:
    """Between `hurry` and `calm`, all threads of this process run before those of other processes. The calling thread
    runs before the other threads of this process. Only the thread that holds the GIL runs. If it waited for a CPU, all
    other threads would wait too. Garbage collection is rare during this time. For use by one thread."""

    def __init__(self) -> None:
        self._hurried: set[int] = set()
        self.is_on = False

    def hurry(self) -> None:
        self.is_on = True
        gc.set_threshold(_GC_THRESHOLD_IN_HASTE)
        own = threading.get_native_id()
        for thread in map(int, os.listdir("/proc/self/task")):
            if thread != own and thread not in self._hurried and not _set_first(thread, _BEFORE_OTHERS):
                self._hurried.add(thread)

    def calm(self) -> None:
        self.is_on = False
        gc.set_threshold(_GC_THRESHOLD)
        for thread in self._hurried:
            try:
                os.sched_setscheduler(thread, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            except OSError:
                continue  # the thread has ended
        self._hurried.clear()


def _let_be_first(thread: int, priority: int) -> str:
    why = _set_first(thread, priority)
    return _set_first(thread, priority) if why and _leave_cpu_cgroup(thread) else why


def _set_first(thread: int, priority: int) -> str:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        return reason(error)
    return ""


def _leave_cpu_cgroup(thread: int) -> bool:
    """Moves a thread to the root cgroup of the v1 cpu hierarchy. Some kernels allow no real-time thread in a v1 cpu
    cgroup without a real-time budget. A new cgroup has none, but the root cgroup has one. A single thread can be moved
    there."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            cpu = parse_mountinfo(file.read()).v1.get("cpu")
        if cpu is None:
            return False
        with open(f"{cpu}/tasks", "w", encoding="ascii") as file:
            file.write(str(thread))
    except OSError:
        return False
    return True


def run_soon() -> str:
    """Lets the calling thread run soon, because a real-time thread may wait for a lock that it holds. Processes that it
    starts do not inherit this. Returns a sentence if that is not allowed, else ""."""
    own = threading.get_native_id()
    _let_be_first(own, _BEFORE_OTHERS)  # moves the thread to a cgroup in which `Haste` can raise its priority
    try:
        os.sched_setscheduler(own, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, own, _SOON)
    except OSError as error:
        return f"the agent waits for its turn like any process: {reason(error)}"
    return ""


_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import entry; entry()"


def small_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `entry` of a module of this package. It runs without `site` and without the environment: it
    needs neither, and starts in half the time."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(evenkeel.__file__)))
    return [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module), package, *arguments]
