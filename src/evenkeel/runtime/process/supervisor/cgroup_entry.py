"""Moves a child of the supervisor into its cgroup without a wait.

All threads of a process move at once. So a process that is moved through `cgroup.procs` first waits for every
processor (an RCU grace period of several milliseconds, more than all the rest of a bare start). All other changes of
cgroups wait behind it. There are two ways around that. With cgroup v2 a child can be created in its cgroup. With v1 a
thread may move itself alone, through `tasks`; a child that was just forked has only one thread.
"""

import errno
import os
import signal

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

# The files of a cgroup to which 0 is written: of v2 and of v1.
OF_PROCESSES, OF_THREADS = "cgroup.procs", "tasks"


def clone_into(files: tuple[str, ...], namespaces: int = 0) -> tuple[int, tuple[str, ...]]:
    """Forks a child into new namespaces. If it raises OSError, there is no child.

    No signal has a handler in the child. Returns the child's number (0 in the child), and those of `files` (one per
    hierarchy) through which the child still has to enter.
    """
    unified = next((path for path in files if os.path.basename(path) == OF_PROCESSES), "")
    if unified:
        left = tuple(path for path in files if path != unified)
        try:
            directory = os.open(os.path.dirname(unified), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return syscalls.clone_clean(namespaces, directory), left
            finally:
                os.close(directory)
        except OSError:
            # The kernel is old; or the cgroup has reached its limit of processes, which applies only to new
            # processes. Any other problem with the cgroup shows when it is entered.
            pass
    try:
        return syscalls.clone_clean(namespaces), files
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise
    # The kernel is old, or a filter around us does not know clone3.
    pid = syscalls.clone(namespaces) if namespaces else os.fork()
    if pid == 0:
        _clear_handlers()
    return pid, files


def _clear_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def enter(files: tuple[str, ...], cgroup: str) -> None:
    """Enters the cgroup. `cgroup` is its name in the error message."""
    for path in files:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EvenkeelError(
                f"the container cannot enter its cgroup {cgroup}: {path}: {reason(error)}",
                hint="it was removed meanwhile, or this user may not write there",
            ) from None
