"""What keeps a thread of ours at work while the machine thrashes: memory that stays, and its turn before others."""

import ctypes
import gc
import os
import sys
import threading

import evenkeel
from evenkeel.cgroup.drivers.mounts import parse_mountinfo

_SOON = -15  # a nice value
_BEFORE_OTHERS, _BEFORE_ALL = 1, 2  # priorities among those that run before ordinary threads
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
# How many objects may be made before Python looks for garbage among them, when no thread of ours can run. Most garbage
# is gone without that; what is not is small beside the rest, as long as these are few.
_YOUNG = 10_000
_YOUNG_IN_HASTE = 100_000


def lock_memory() -> str:
    """Keeps every page that this process has used, or will use, in memory: none is waited for under pressure. A
    sentence where that is not allowed, else nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return ""
    why = os.strerror(ctypes.get_errno()).lower()
    return f"the agent's memory is not locked, so it may have to wait for its own pages under pressure: {why}"


def tidy_rarely() -> None:
    """Nobody can run while Python looks for garbage: it is to look rarely, and not at what is there now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


def name_thread(name: str) -> None:
    """What `top -H` calls the calling thread; the kernel takes fifteen letters."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        pass  # it works without a name


def run_before_others() -> str:
    """Gives the calling thread its turn before all ordinary ones, but not to processes that it starts. A sentence
    where that is not allowed, else nothing."""
    own = threading.get_native_id()
    why = _let_be_first(own, _BEFORE_ALL)
    if why:
        try:
            os.setpriority(os.PRIO_PROCESS, own, -20)
        except OSError:
            return f"the watch over memory waits for its turn like any process: {why}"
    return ""


class Haste:
    """While `hurry` holds, all threads of this process run before those of others, and the calling one before them:
    in Python only one of them runs at a time, and if that one waits for its turn behind other people's work, so do all
    the others. And garbage is left where it is, unless there is much. Of one thread."""

    def __init__(self) -> None:
        self._hurried: set[int] = set()
        self.is_on = False

    def hurry(self) -> None:
        self.is_on = True
        gc.set_threshold(_YOUNG_IN_HASTE)
        own = threading.get_native_id()
        for thread in map(int, os.listdir("/proc/self/task")):
            if thread != own and thread not in self._hurried and not _set_first(thread, _BEFORE_OTHERS):
                self._hurried.add(thread)

    def calm(self) -> None:
        self.is_on = False
        gc.set_threshold(_YOUNG)
        for thread in self._hurried:
            try:
                os.sched_setscheduler(thread, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            except OSError:
                continue  # it has ended
        self._hurried.clear()


def _let_be_first(thread: int, priority: int) -> str:
    why = _set_first(thread, priority)
    return _set_first(thread, priority) if why and _leave_cpu_cgroup(thread) else why


def _set_first(thread: int, priority: int) -> str:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _leave_cpu_cgroup(thread: int) -> bool:
    """Some kernels let nobody run before others in a cgroup of v1's cpu controller that was given no time for it, as a
    new one never is. A thread alone can go back to the top, where there is some."""
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
    """Lets the calling thread, which may hold what the one before others waits for, run soon; but none of the processes
    that it starts. A sentence where that is not allowed, else nothing."""
    own = threading.get_native_id()
    _let_be_first(own, _BEFORE_OTHERS)  # so that it can be, when it has to hurry
    try:
        os.sched_setscheduler(own, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, own, _SOON)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return f"the agent waits for its turn like any process: {why}"
    return ""


_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import entry; entry()"


def small_command(module: str, *arguments: str) -> list[str]:
    """Runs `entry` of a module of this package. Without `site` and the environment: it starts in half the time, and
    needs nothing of either."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(evenkeel.__file__)))
    return [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module), package, *arguments]
