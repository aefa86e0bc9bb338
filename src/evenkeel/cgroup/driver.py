"""What every driver can do, and what goes wrong with cgroup files.

Paths are the plan's: from the hierarchy's root, `/evenkeel/kubepods/burstable/pod…`. A driver never goes outside the
root it was given, whatever a path says.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.tree import Cgroup, Naming, Tree, Version
from evenkeel.errors import EvenkeelError


class CgroupError(EvenkeelError):
    """A cgroup or one of its files could not be made, read, written or removed. `reason` is the kernel's errno name,
    such as EBUSY; empty where it was not the kernel that said no."""

    def __init__(self, message: str, *, path: str, file: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.file = file
        self.reason = reason


class Statistics(NamedTuple):
    """One cgroup's figures, read together. None where the kernel does not have them."""

    memory_usage_bytes: int
    memory_working_set_bytes: int  # usage without file cache that has not been used lately, as kubelet counts
    memory_droppable_bytes: int  # file cache that the kernel could give back (E3)
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
        """Why no cgroup of this machine can have `file`; None if one can, as far as is known."""
        ...

    def observe(self, tree: Tree) -> Observed:
        """What the kernel has: for every cgroup of `tree` that exists, the files the tree sets; and every other cgroup
        down to the level of containers below the pods' root of `tree`, so that what should not be there is seen."""
        ...

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Observed:
        """What the kernel has of these cgroups alone: for each that exists, the files it sets."""
        ...

    def create(self, path: str) -> None:
        """Makes the cgroup, with the controllers it needs. One that is already there is fine."""
        ...

    def write(self, path: str, file: str, value: str) -> None: ...

    def remove(self, path: str) -> None:
        """Kills what is left in the cgroup and below it, and removes both. One that is gone is fine."""
        ...

    def processes(self, path: str) -> tuple[int, ...]:
        """Every process in the cgroup and below it."""
        ...

    def add_process(self, path: str, pid: int) -> None: ...

    def kill(self, path: str) -> None:
        """Kills every process in the cgroup and below it, also those that fork meanwhile, and returns when none is
        left but zombies."""
        ...

    def send_kill(self, path: str) -> None:
        """Has every process in the cgroup and below it killed at once, and waits for none of them: for who cannot wait.
        `kill` is to follow where one might escape."""
        ...

    def freeze(self, path: str, *, frozen: bool) -> None: ...

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        """As `freeze`, of this cgroup with all below it, and waits for none of the processes: for who cannot wait. A
        cgroup that is gone is fine."""
        ...

    def look_at(self, path: str) -> None:
        """From now on a cgroup of others may be read, with all below it; nothing else may be done to it."""
        ...

    def thawing(self, path: str) -> tuple[str, str]:
        """Who thaws the cgroup in our place writes to this file that value."""
        ...

    def statistics(self, path: str) -> Statistics: ...

    def contents(self, path: str, files: Sequence[str]) -> Sequence[bytes]:
        """What each of these files of the cgroup holds, nothing where the kernel has none: for figures that are read
        again and again. Raises CgroupError if there is no such cgroup."""
        ...

    def files(self, path: str) -> Mapping[str, str]:
        """Where to find the cgroup's directory for each controller, for those who read or watch a file of it:
        controller name → directory (on v2 all the same)."""
        ...

    def close(self) -> None:
        """Closes what is kept open; cgroups and what runs in them stay."""
        ...
