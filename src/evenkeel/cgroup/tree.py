"""The desired tree as values: cgroups with their settings, each with the rule that it comes from.

`explain` prints it, `diff` compares it with the kernel, and the drivers write it.
"""

from enum import StrEnum

from evenkeel.named_tuples import NamedTuple


class Version(StrEnum):
    """The version of cgroups, which decides about the files."""

    V1 = "v1"
    V2 = "v2"


class Naming(StrEnum):
    """How cgroups are named and made: as directories, or as slices and scopes of systemd."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


class Kind(StrEnum):
    ANCESTOR = "ancestor"  # between the hierarchy's root and the pods' root
    ROOT = "root"  # the pods' root
    BRANCH = "branch"  # Burstable or BestEffort
    POD = "pod"
    CONTAINER = "container"
    INFRASTRUCTURE = "infrastructure"
    RESERVED = "reserved"  # of daemons; others make it, unless the node is configured otherwise


class Setting(NamedTuple):
    """One file of a cgroup (or `oom_score_adj` of each of its processes): the value to write, and why."""

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
    # A19: an OOM kill of one process kills the whole container; on v2 the kernel does that.
    is_killed_whole: bool = False
    # False for a reserved cgroup that must exist (B5, E7), and for those that a container runtime makes.
    is_ours_to_make: bool = True
    holds_only_ours: bool = True  # False: a container runtime makes and removes cgroups in it

    def value(self, file: str) -> str | None:
        return next((setting.value for setting in self.settings if setting.file == file), None)


class Tree(NamedTuple):
    """Parents before children."""

    version: Version
    naming: Naming
    cgroups: tuple[Cgroup, ...]
