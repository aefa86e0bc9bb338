"""The interface of all cgroup drivers, their error, and the statistics that they read.

Paths are those of the plan, from the root of the hierarchy: `/evenkeel/kubepods/burstable/pod…`. A driver never leaves
the root that it was given, whatever a path says.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from evenkeel.cgroup.tree import Cgroup, Naming, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:  # the process of the memory watch does not need it
    from evenkeel.cgroup.diff import Observed


class CgroupError(EvenkeelError):
    """A cgroup or one of its files could not be made, read, written or removed. `reason` is the name of the kernel's
    errno, such as EBUSY; empty if the error is not from the kernel."""

    def __init__(self, message: str, *, path: str, file: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.file = file
        self.reason = reason


class Statistics(NamedTuple):
    """The figures of one cgroup, read together. None where the kernel does not have them."""

    memory_usage_bytes: int
    memory_working_set_bytes: int  # usage without file cache that has not been used lately, as kubelet counts
    memory_droppable_bytes: int  # file cache that the kernel can free at once (E3)
    memory_rss_bytes: int
    cpu_usage_us: int
    cpu_throttled_us: int
    pids: int
    page_faults: int = 0
    major_page_faults: int = 0
    oom_kills: int = 0
    swap_bytes: int | None = None


class Driver(Protocol):
    @property
    def version(self) -> Version: ...

    @property
    def naming(self) -> Naming: ...

    def lacking(self, file: str) -> CgroupError | None:
        """Why no cgroup of this machine can have `file`; None if it can, or if that is not known yet."""
        ...

    def observe(self, tree: Tree) -> "Observed":
        """Reads the kernel's values of the files that the tree sets, for each of its cgroups that exists. Also lists
        every other cgroup below the pods' root, down to the level of containers: these should not exist."""
        ...

    def observe_only(self, cgroups: Sequence[Cgroup]) -> "Observed":
        """Reads only these cgroups: the files that each of them sets, if it exists."""
        ...

    def create(self, path: str) -> None:
        """Makes the cgroup with the controllers that it needs. It may exist already."""
        ...

    def write(self, path: str, file: str, value: str) -> None: ...

    def remove(self, path: str) -> None:
        """Kills all processes in the cgroup and below it, and removes all of these cgroups. It may be gone already."""
        ...

    def processes(self, path: str) -> tuple[int, ...]:
        """Every process in the cgroup and below it."""
        ...

    def add_process(self, path: str, pid: int) -> None: ...

    def kill(self, path: str) -> None:
        """Kills every process in the cgroup and below it, also those that fork meanwhile. Returns when only zombies are
        left."""
        ...

    def send_kill(self, path: str) -> None:
        """Sends SIGKILL to every process in the cgroup and below it, and returns at once. A process that forks may
        escape: `kill` must follow."""
        ...

    def freeze(self, path: str, *, frozen: bool) -> None: ...

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        """Freezes or thaws the cgroup with all below it, and returns at once. The cgroup may be gone already."""
        ...

    def allow_reading(self, path: str) -> None:
        """Adds a cgroup that is not ours to those that may be read, with all below it."""
        ...

    def thaw_write(self, path: str) -> tuple[str, str]:
        """The file and the value to write to it, for another process that has to thaw the cgroup."""
        ...

    def statistics(self, path: str) -> Statistics: ...

    def contents(self, path: str, files: Sequence[str]) -> Sequence[bytes]:
        """The content of each file; empty if the kernel does not have it. The files stay open, for figures that are
        read often. Raises CgroupError if there is no such cgroup."""
        ...

    def files(self, path: str) -> Mapping[str, str]:
        """The directory of the cgroup for each controller, for callers that read or watch its files themselves: name of
        the controller → directory. On v2 it is always the same."""
        ...

    def close(self) -> None:
        """Closes all files. The cgroups and their processes stay."""
        ...
