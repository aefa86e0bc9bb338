"""How a child of the supervisor gets into its cgroup, without waiting there.

All threads of a process move at once. So whoever is moved by `cgroup.procs` first waits until every processor has taken
note (an RCU grace period of several milliseconds, more than all the rest of a bare start), and everyone who changes
cgroups waits behind. Two ways lead past that. In the hierarchy of cgroup v2 a child can be born in its cgroup. In those
of v1 a thread may move itself alone, by `tasks`; a child that was just forked has but one.
"""

import os

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls

OF_PROCESSES, OF_THREADS = "cgroup.procs", "tasks"  # the files of a cgroup to write 0 to, of v2 and of v1


def clone_into(files: tuple[str, ...], namespaces: int = 0) -> tuple[int, tuple[str, ...]]:
    """Forks a child into new namespaces: its number, or 0 in the child; and those of `files`, one a hierarchy, that the
    child has still to enter by. Raises OSError, and then there is no child."""
    unified = next((path for path in files if os.path.basename(path) == OF_PROCESSES), "")
    if unified:
        left = tuple(path for path in files if path != unified)
        try:
            directory = os.open(os.path.dirname(unified), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return syscalls.clone_into(directory, namespaces), left
            finally:
                os.close(directory)
        except OSError:
            # An old kernel; or the cgroup has as many processes as it may, which counts for births only. What else is
            # wrong with it shows when it is entered.
            pass
    return syscalls.clone(namespaces) if namespaces else os.fork(), files


def enter(files: tuple[str, ...], cgroup: str) -> None:
    """Enters the cgroup, which `cgroup` names where that cannot be."""
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
