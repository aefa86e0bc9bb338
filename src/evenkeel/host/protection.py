"""Keeps the agent and its processes working while the machine is short of memory and CPU.

Their memory is locked, and the watch over memory has real-time priority. `small_command` is for a process that starts
fast and needs little memory.
"""

import ctypes
import os
import sys
import threading

import evenkeel
from evenkeel.cgroup.drivers.mounts import parse_mountinfo
from evenkeel.errors import reason
from evenkeel.host.allocator import LOCKING, give_back_memory

_LOWEST_SCORE = -999
_BEFORE_OTHERS = 2  # a real-time priority, above all ordinary threads


def lock_memory(what: str) -> str:
    """Locks all present and future pages of this process, so that it never waits for its own memory under pressure.
    `what` is the memory of this process in words. Returns a sentence if that is not allowed, else ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    give_back_memory()  # what the imports have left would be locked too
    if libc.mlockall(LOCKING) == 0:
        return ""
    why = os.strerror(ctypes.get_errno()).lower()
    return f"{what} is not locked, so it may have to wait for its own pages under pressure: {why}"


def name_process(name: str) -> None:
    """Sets the name of this process for `top`. The kernel keeps 15 characters."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        pass  # the process works without a name


def take_lowest_oom_score() -> None:
    """Lets the kernel's OOM killer choose any other process first, if that is allowed."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_LOWEST_SCORE))
    except OSError:
        pass  # the score of the process that started this one remains


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
    why = _let_be_first(own, _BEFORE_OTHERS)
    if why:
        try:
            os.setpriority(os.PRIO_PROCESS, own, -20)
        except OSError:
            return f"the watch over memory waits for its turn like any process: {why}"
    return ""


def _let_be_first(thread: int, priority: int) -> str:
    why = _set_first(thread, priority)
    return _set_first(thread, priority) if why and _leave_cpu_cgroup(thread) else why


def _set_first(thread: int, priority: int) -> str:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        return reason(error)
    return ""


def has_realtime_budgets() -> bool:
    """Whether this kernel allows no real-time thread in a v1 cpu cgroup without a real-time budget. A new cgroup has
    none."""
    cpu = _cpu_hierarchy()
    return cpu is not None and os.path.exists(f"{cpu}/cpu.rt_runtime_us")


def _leave_cpu_cgroup(thread: int) -> bool:
    """Moves a thread to the root cgroup of the v1 cpu hierarchy, which has a real-time budget. A single thread can be
    moved there."""
    cpu = _cpu_hierarchy()
    if cpu is None:
        return False
    try:
        with open(f"{cpu}/tasks", "w", encoding="ascii") as file:
            file.write(str(thread))
    except OSError:
        return False
    return True


def _cpu_hierarchy() -> str | None:
    """Where the cpu controller of cgroup v1 is mounted. None if it is not."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return parse_mountinfo(file.read()).v1.get("cpu")
    except OSError:
        return None


_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import entry; entry()"


def small_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `entry` of a module of this package. It runs without `site` and without the environment: it
    needs neither, and starts in half the time."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(evenkeel.__file__)))
    return [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module), package, *arguments]
