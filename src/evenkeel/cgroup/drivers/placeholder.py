"""The process that holds a container's place in its scope until the first of the container's own is there.

The shell that starts it leaves at once, so its parent is the machine's first process, which takes note of its end; or
whoever takes in orphans before that, as the agent does (`PR_SET_CHILD_SUBREAPER`). Then its end is to be taken note of
here, or it would be counted in the kernel's table, and in its scope, for as long as the agent lives.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from evenkeel.cgroup.driver import CgroupError

PLACEHOLDER = "evenkeel.placeholder"  # the cgroup it is in, below the scope's

_SLEEP = "sleep infinity </dev/null >/dev/null 2>&1 & echo $!"
_ours: set[int] = set()  # children of this process, of which nobody has taken note


def sleeping_process(path: str) -> int:
    take_note_of_ended()
    try:
        done = subprocess.run(  # noqa: S603 no word of it comes from outside
            ["/bin/sh", "-c", _SLEEP],
            capture_output=True,
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            text=True,
        )
        pid = int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CgroupError(
            f"cannot make cgroup {path}: a scope needs a process, and /bin/sh could not start sleep: {error}",
            path=path,
        ) from None
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        _ours.add(pid)
    return pid


def take_note(killed: Iterable[int]) -> None:
    """Of those that were killed. Returns when they are gone."""
    for pid in _ours.intersection(killed):
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        _ours.discard(pid)


def take_note_of_ended() -> None:
    """Of those that systemd has ended, with a scope in which nothing had begun."""
    for pid in tuple(_ours):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue  # it is there
        _ours.discard(pid)
