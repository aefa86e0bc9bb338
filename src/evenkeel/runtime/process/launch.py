"""Turns the agent's request into a `Plan`: everything a child needs to become the container. Pure."""

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import Pod
from evenkeel.cgroup.drivers.v1 import UNIFIED
from evenkeel.cgroup.tree import Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import security, syscalls, volumes
from evenkeel.runtime.environment import (
    arguments,
    environment,
    groups,
    hostname,
    identity,
    merges_groups,
    sub_paths,
)
from evenkeel.runtime.host_paths import NO_PLACES, HostPlace
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.log_relay import LogLimits
from evenkeel.runtime.network_files import ETC, own_files
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.image_config import NO_CONFIG, ImageConfig
from evenkeel.runtime.process.process_refusals import Powers, users_refusal
from evenkeel.runtime.process.seccomp import Filter
from evenkeel.runtime.process.supervisor import rootfs
from evenkeel.runtime.process.supervisor.cgroup_entry import OF_PROCESSES, OF_THREADS
from evenkeel.runtime.process.supervisor.kernel_filesystems import CGROUPS, MASKED, PROC_SETTINGS
from evenkeel.runtime.process.supervisor.rootfs import FilesystemSpec, Mount
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.procfs import Mounted, is_below, other_ways
from evenkeel.runtime.start_errors import StartFailed, WrongConfig

_TERMINATION_MESSAGE_PATH = "/dev/termination-log"  # the default of Kubernetes
# Kernel interfaces. Root can change the machine through them wherever they are mounted.
_KERNEL_FILESYSTEMS = frozenset(
    ("cgroup", "cgroup2", "sysfs", "proc", "securityfs", "debugfs", "tracefs", "configfs", "bpf", "efivarfs", "pstore")
)  # fmt: skip


# Kernel interfaces that are hidden from a container, wherever they are mounted.
_HIDDEN_FILESYSTEMS = frozenset(("securityfs", "debugfs", "tracefs", "configfs", "bpf", "efivarfs", "pstore"))


class Surroundings(NamedTuple):
    """Places on the host that must be hidden or protected from containers."""

    hidden: tuple[str, ...] = ()  # other paths to the state directory, and kernel filesystems
    read_only: tuple[str, ...] = ()  # cgroups and the like, mounted outside /sys
    proc_settings: tuple[str, ...] = PROC_SETTINGS
    masked: tuple[str, ...] = ()
    cgroup_mounts: tuple[str, ...] = ()
    cgroup_links: tuple[tuple[str, str], ...] = ()  # the symlinks beside them, such as cpu -> cpu,cpuacct


class OwnUsers(NamedTuple):
    """The user namespace of a pod with hostUsers: false."""

    namespace: str  # its path
    first: int  # the user and the group of the host that are root in it


def surroundings(paths: StatePaths, mounts: Sequence[Mounted]) -> Surroundings:
    """Looks for them among the mounts of the host. Mounts below the state directory do not matter: it is hidden as a
    whole."""
    of_the_kernel = (mount.point for mount in mounts if mount.kind in _HIDDEN_FILESYSTEMS)
    hidden = tuple(path for path in (*other_ways(paths.root, mounts), *of_the_kernel) if _is_directory(path))
    return Surroundings(
        hidden=hidden,
        read_only=kernel_mounts(paths.root, mounts),
        proc_settings=tuple(name for name in PROC_SETTINGS if os.path.exists(f"/proc/{name}")),
        masked=tuple(path for path in MASKED if os.path.exists(path)),
        cgroup_mounts=tuple(mount.point for mount in mounts if mount.kind in ("cgroup", "cgroup2")),
        cgroup_links=_links_in(CGROUPS),
    )


def _links_in(directory: str) -> tuple[tuple[str, str], ...]:
    try:
        links = [entry for entry in os.scandir(directory) if entry.is_symlink()]
    except OSError:  # it is not mounted
        return ()
    return tuple((entry.name, os.readlink(entry.path)) for entry in links)


def own_cgroups(procs: Sequence[str], cgroup_mounts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs the directories of a cgroup with the mount points at which the container is to see them. Pure."""
    found = {}
    below = [(place, place.rstrip("/") + "/") for place in cgroup_mounts]
    for path in procs:
        directory = os.path.dirname(path)
        places = [place for place, start in below if directory == place or directory.startswith(start)]
        if places and is_below(places[0], CGROUPS):
            found[max(places, key=len)] = directory
    return tuple((directory, place) for place, directory in found.items())


def filesystem_spec(
    pod: Pod,
    container: Container,
    attempt: int,
    paths: StatePaths,
    *,
    image_directory: str,  # of `images.Images.directory`; "" is the host
    around: Surroundings,
    procs: Sequence[str] = (),
    data: PodData = NO_DATA,
    places: Mapping[str, HostPlace] = NO_PLACES,
) -> FilesystemSpec:
    """Describes the container's filesystem. The volumes are where `volumes.prepare` puts them. `places` are those of
    hostPath volumes. Pure."""
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    parts = sub_paths(pod, container, data)
    mounts = tuple(
        Mount(
            source=places[mount.name].base
            if mount.name in places
            else volumes.source_path(pod, by_name[mount.name], paths),
            target=os.path.normpath(f"/{mount.mount_path.lstrip('/')}"),
            sub_path=parts.get(index, ""),
            is_read_only=mount.read_only or by_name[mount.name].is_read_only,
            is_ours=by_name[mount.name].host_path is None,
            has_data=by_name[mount.name].has_data,
            below=places[mount.name].below if mount.name in places else "",
        )
        for index, mount in enumerate(container.volume_mounts)
    )
    context = container.security_context
    is_read_only = bool(context and context.read_only_root_filesystem)
    # procMount: Unmasked, which only a pod with users of its own can have: the files that are hidden or read-only
    # otherwise belong to the host's root.
    is_unmasked = pod.spec.has_own_users and security.privileges(pod, container).is_unmasked
    taken = {mount.target for mount in mounts}
    attempt_directory = paths.attempt(pod.metadata.uid, container.name, attempt)
    mounts += tuple(
        # As under kubelet a container may write to them. On the host's root it writes to its volumes only.
        Mount(
            f"{attempt_directory}/{ETC}/{name}",
            f"/etc/{name}",
            is_read_only=is_read_only or not image_directory,
        )
        for name in own_files(pod)
        if f"/etc/{name}" not in taken
    )
    return FilesystemSpec(
        state_directory=paths.root,
        attempt_directory=attempt_directory,
        image=image_directory,
        mounts=mounts,
        is_read_only=is_read_only,
        termination_message_path=container.termination_message_path or _TERMINATION_MESSAGE_PATH,
        proc_settings=() if is_unmasked else around.proc_settings,
        masked=_outside_proc(around.masked) if is_unmasked else around.masked,
        hidden=around.hidden,
        read_only=around.read_only,
        cgroups=own_cgroups(procs, around.cgroup_mounts),
        cgroup_links=around.cgroup_links,
        has_host_ipc=pod.spec.host_ipc,
    )


def _outside_proc(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not is_below(path, "/proc"))


def kernel_mounts(directory: str, mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Lists the mount points of kernel interfaces outside /sys and /proc. Pure."""
    points = (mount.point for mount in mounts if mount.kind in _KERNEL_FILESYSTEMS)
    return tuple(
        dict.fromkeys(
            point
            for point in points
            if not any(is_below(point, known) for known in ("/sys", "/proc", directory))
        )
    )


def _is_directory(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:
        return False


_OF_TERMINAL = {"TERM": "xterm"}  # as container runtimes set it
_HOST_INTERFACES = (
    "/sys/class/net",
    "/sys/devices/virtual/net",
)  # of a pod with its own network they are not


def plan_of(
    launch: Launch,
    paths: StatePaths,
    powers: Powers,
    *,
    procs: tuple[str, ...],
    image_directory: str,
    around: Surroundings,
    limits: LogLimits,
    places: Mapping[str, HostPlace] = NO_PLACES,
    network: str = "",
    config: ImageConfig = NO_CONFIG,
    own_filter: Filter | None = None,
    holder_procs: tuple[str, ...] = (),
    users: OwnUsers | None = None,
) -> Plan:
    """Makes the plan of a start. `procs` are the `entrances` of the launch's cgroup. `network` is the path of the
    pod's own network namespace, if it has one. `config` is the image's. `own_filter` is the compiled profile of
    seccompProfile Localhost. `holder_procs` are the entrances of the pod's infrastructure, for a process namespace that
    its containers share. `users` are the pod's own, if it has some. Raises StartFailed."""
    pod, container, attempt = launch.pod, launch.container, launch.attempt
    wrong = users_refusal(pod, container, powers, config.user)
    if wrong:
        raise WrongConfig(wrong)
    argv = arguments(pod, container, launch.data, config.entrypoint, config.command)
    if not argv or not argv[0]:
        raise StartFailed(
            "command is missing, and the image has no program of its own: write the program and its arguments"
        )
    metadata = pod.metadata
    own_name = hostname(pod)
    who, allowed = identity(pod, container), security.privileges(pod, container)
    spec = filesystem_spec(
        pod,
        container,
        attempt.number,
        paths,
        image_directory=image_directory,
        around=around,
        procs=procs,
        data=launch.data,
        places=places,
    )
    if network:
        spec = spec._replace(masked=(*spec.masked, *_HOST_INTERFACES))
    variables = environment(pod, container, own_name, launch.data, config.env)
    return Plan(
        argv=argv,
        env=tuple(((_OF_TERMINAL if container.tty else {}) | variables).items()),
        cgroup=launch.cgroup,
        procs=procs,
        log=paths.log(metadata.namespace, metadata.name, attempt.uid, attempt.container, attempt.number),
        log_limits=tuple(limits),
        filesystem=rootfs.as_json(spec),
        working_directory=container.working_dir or config.working_directory,
        uid=who.uid,
        gid=who.gid,
        groups=groups(pod),
        hostname=own_name,
        oom_score_adj=launch.oom_score_adj or 0,  # never the supervisor's own score
        message_policy=container.termination_message_policy,
        capabilities=syscalls.mask(*(name.lower() for name in allowed.capabilities)),
        # A profile alone is for users that cannot become root. Root keeps the default filter beside it: without that
        # filter it could take its own limits away.
        is_filtered=allowed.is_filtered and (own_filter is None or security.may_be_root(pod, container)),
        network=network,
        may_gain_privileges=bool(allowed.may_escalate),
        image_user=config.user,
        has_image_groups=merges_groups(pod) and bool(image_directory),
        must_not_be_root=who.must_not_be_root,
        stop_signal=config.stop_signal,
        sysctls=tuple(security.sysctls(pod).items()),
        stdin=container.stdin,
        stdin_once=container.stdin and container.stdin_once,
        terminal=container.tty,
        shared_namespaces=_shared_namespaces(pod),
        target=pod.spec.process_target(container.name),
        **_holder(launch, holder_procs),
        own_filter="" if own_filter is None else base64.b64encode(own_filter.instructions).decode(),
        app_armor_profile=_app_armor_profile(allowed),
        user_namespace=users.namespace if users else "",
        first_id=users.first if users else 0,
    )


def _shared_namespaces(pod: Pod) -> int:
    spec = pod.spec
    pid = syscalls.CLONE_NEWPID if spec.host_pid or spec.share_process_namespace else 0
    return pid | (syscalls.CLONE_NEWIPC if spec.host_ipc else 0)


def _holder(launch: Launch, procs: tuple[str, ...]) -> dict[str, Any]:
    if not procs or launch.planned is None:
        return {}
    cgroup = launch.planned.infrastructure
    score = 0 if cgroup.oom_score_adj is None else int(cgroup.oom_score_adj.value)
    return {"holder_cgroup": cgroup.path, "holder_procs": procs, "holder_score": score}


def _app_armor_profile(allowed: security.Privileges) -> str:
    profile = allowed.app_armor
    return (
        profile.localhost_profile or "" if profile is not None and profile.type == security.LOCALHOST else ""
    )


def entrances(directories: Mapping[str, str], version: Version) -> tuple[str, ...]:
    """Lists the files through which a child enters a cgroup, one per hierarchy. `directories` come from the driver."""
    found = {}
    for controller, directory in directories.items():
        is_v1 = version == Version.V1 and controller != UNIFIED
        found[directory] = f"{directory}/{OF_THREADS if is_v1 else OF_PROCESSES}"
    return tuple(found.values())
