"""The plan of a container's start, as the agent writes it and the supervisor reads it."""

import os
import signal
from typing import Any

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import read_json
from evenkeel.runtime.process import supervisor_protocol

# A cgroup namespace is added later, when the process is in its cgroup.
NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWNS

DEFAULT_CAPABILITIES = syscalls.mask(*syscalls.DEFAULT_CAPABILITIES)


class Plan(NamedTuple):
    """Everything a start needs, as in the attempt's file `launch`. Paths are paths on the host unless noted."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # without HOME, the user's home is looked up
    cgroup: str  # the path in the cgroup plan
    # The files through which a child enters the cgroup (`cgroup_entry`), one per hierarchy.
    procs: tuple[str, ...]
    log: str
    log_limits: tuple[int, ...]  # logs.LogLimits
    filesystem: dict[str, Any]  # rootfs.FilesystemSpec
    working_directory: str = ""  # a path in the container
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    hostname: str = ""
    oom_score_adj: int = 0
    message_policy: str = ""
    capabilities: int = DEFAULT_CAPABILITIES  # a bit mask
    is_filtered: bool = True  # securityContext.seccompProfile is RuntimeDefault
    network: str = ""  # the network namespace of the pod; "" is the host's
    may_gain_privileges: bool = False  # securityContext.allowPrivilegeEscalation
    image_user: str = ""  # the image's user, as NAME or NUMBER with or without :GROUP; `uid` comes before it
    has_image_groups: bool = False  # the user's groups in the image's /etc/group are added to `groups`
    must_not_be_root: bool = False  # securityContext.runAsNonRoot
    stop_signal: int = signal.SIGTERM  # the signal that asks the container to end
    sysctls: tuple[tuple[str, str], ...] = ()  # settings of the pod's namespaces, by name with dots
    shared_namespaces: int = 0  # those of `NAMESPACES` that are the host's or the pod's
    # shareProcessNamespace: the cgroup of the process that holds the pod's namespace (`pid_namespaces`), and its score.
    holder_cgroup: str = ""
    holder_procs: tuple[str, ...] = ()
    holder_score: int = 0
    target: str = ""  # the container of the pod whose process namespace it enters
    own_filter: str = ""  # the compiled profile of seccompProfile Localhost, in base 64
    app_armor_profile: str = ""  # the name of a loaded profile
    private: str = ""  # the path of a file in memory that has the fields `PRIVATE`
    stdin: bool = False
    stdin_once: bool = False
    terminal: bool = False
    user_namespace: str = ""  # hostUsers: false: the pod's namespace; "" is the host's
    first_id: int = 0  # the user and the group of the host that are root in it

    @property
    def other_namespaces(self) -> int:
        """Those of `NAMESPACES` that it does not get for itself."""
        return self.shared_namespaces | (syscalls.CLONE_NEWPID if self.target else 0)

    def host_user(self, uid: int | None) -> int | None:
        """The container's user as the host has it. In a user namespace the default is its root."""
        return self.first_id + (uid or 0) if self.user_namespace else uid


PRIVATE = ("argv", "env")  # fields that may have values of Secrets


def read_plan(directory: str) -> Plan:
    """Reads the plan of an attempt. Raises KeyError, TypeError or ValueError if there is none."""
    value = read_json(directory, supervisor_protocol.LAUNCH) or {}
    if private := value.get("private"):
        value |= read_json(*os.path.split(private)) or {}
    return plan_from(value)


def plan_from(value: dict[str, Any]) -> Plan:
    """Reads a plan. Raises KeyError, TypeError or ValueError if the value is not a plan."""
    # A plan of an older version may lack fields that have a default.
    fields: dict[str, Any] = {
        name: value[name] for name in Plan._fields if name in value or name not in Plan._field_defaults
    }
    for name in ("argv", "procs", "log_limits", "groups", "holder_procs"):
        fields[name] = tuple(fields.get(name, ()))
    for name in ("env", "sysctls"):
        fields[name] = tuple((str(key), str(text)) for key, text in fields.get(name, ()))
    return Plan(**fields)
