"""The desired tree as values: cgroups with their settings, each setting with the rule it came from.

One structure, four uses: `explain` prints it, `diff` compares it with the kernel, the drivers write it, the journal
keeps it.
"""

from enum import StrEnum
from typing import NamedTuple


class Version(StrEnum):
    """Which files a cgroup has."""

    V1 = "v1"
    V2 = "v2"


class Naming(StrEnum):
    """How cgroups are called and made: by directory, or as systemd's slices and scopes."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


class Kind(StrEnum):
    ANCESTOR = "ancestor"  # between the hierarchy's root and the pods' root
    ROOT = "root"  # the pods' root
    BRANCH = "branch"  # Burstable or BestEffort
    POD = "pod"
    CONTAINER = "container"
    INFRASTRUCTURE = "infrastructure"
    RESERVED = "reserved"  # daemons; made by others unless we are told to


class Setting(NamedTuple):
    """One cgroup file (or `oom_score_adj`, of every process in it): the value to write and why."""

    file: str
    value: str
    rule: str
    reason: str


class Cgroup(NamedTuple):
    path: str  # from the hierarchy's root
    kind: Kind
    settings: tuple[Setting, ...]
    pod: str = ""  # namespace/name
    container: str = ""
    qos: str = ""  # of the pod; a container's own classes are in memory_qos and cpu_qos
    memory_qos: str = ""
    cpu_qos: str = ""
    oom_score_adj: Setting | None = None
    # A19: an OOM kill of one process is to take all; on v2 the kernel sees to it.
    is_killed_whole: bool = False
    # B5: a cgroup of daemons must be there, unless we are asked to make it (E7); those of containers are a container
    # runtime's to make, where there is one.
    is_ours_to_make: bool = True
    holds_only_ours: bool = True  # else a container runtime makes cgroups in it, and removes them

    def value(self, file: str) -> str | None:
        return next((setting.value for setting in self.settings if setting.file == file), None)


class Tree(NamedTuple):
    """Parents before children."""

    version: Version
    naming: Naming
    cgroups: tuple[Cgroup, ...]
