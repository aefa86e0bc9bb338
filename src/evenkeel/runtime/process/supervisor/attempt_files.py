"""Files of an attempt: its streams, its termination log, and the error if they could not be made."""

import errno
import os
import stat
from contextlib import suppress

from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor.event_loop import Descriptors


def open_termination_log(pid: int) -> int:
    """Opens the termination log of a container that another supervisor started; -1 if that fails.

    The container controls this path. It is opened only if it is a regular file inside the container.
    """
    with suppress(OSError), Descriptors() as opened:
        root = opened.add(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
        flags = os.O_RDONLY | os.O_NONBLOCK
        log = opened.add(syscalls.open_within(root, "dev/termination-log", flags, resolve))
        if stat.S_ISREG(os.fstat(log).st_mode):
            return opened.keep(log)
    return -1


def unlink_streams(directory: str) -> None:
    for name in (supervisor_protocol.PROCESS, supervisor_protocol.STDOUT, supervisor_protocol.STDERR):
        with suppress(OSError):
            os.unlink(f"{directory}/{name}")


def refused(error: OSError) -> dict[str, str]:
    hints = {
        errno.EAGAIN: "too many processes: raise the limit of the agent's own cgroup or user (pids.max, ulimit -u)",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n) and kill the supervisor",
        errno.ENOSPC: "the disk is full, or there are as many namespaces as /proc/sys/user/max_*_namespaces allows",
    }
    where = f"{error.filename}: " if error.filename else ""
    return {
        "error": f"the container's process cannot be made: {where}{reason(error)}",
        "hint": hints.get(error.errno or 0, ""),
    }
