"""Converts a pod into CRI messages: the sandbox, the container and its resources.

Sandboxes and containers carry labels. After a restart of the agent or of the runtime, they are found by these labels.
The module does no I/O.
"""

import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from evenkeel.api.container import (
    BIDIRECTIONAL,
    HOST_TO_CONTAINER,
    AppArmorProfile,
    Container,
    SeccompProfile,
    SELinuxOptions,
)
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Naming, Setting, Version
from evenkeel.runtime import security, volumes
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.environment import declared, expanded, groups, hostname, identity
from evenkeel.runtime.id_ranges import LENGTH
from evenkeel.runtime.interface import Attempt, Launch
from evenkeel.runtime.paths import StatePaths

_NO_LIMIT = -1
_V1_FIELDS = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_period_us": "cpu_period",
    "cpu.cfs_quota_us": "cpu_quota",
    "memory.limit_in_bytes": "memory_limit_in_bytes",
    "memory.memsw.limit_in_bytes": "memory_swap_limit_in_bytes",
}


STATE = "io.evenkeel.state"  # the state directory of the agent that made the container
ATTEMPT = "io.evenkeel.attempt"
MESSAGE_POLICY = "io.evenkeel.termination-message-policy"  # an annotation
UID = "io.kubernetes.pod.uid"  # kubelet's labels, which crictl shows
_NAME, _NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
CONTAINER = "io.kubernetes.container.name"
_MESSAGE_PATH = "/dev/termination-log"  # the default of Kubernetes
# Path in the container: name of the copy in the attempt's directory.
NETWORK_FILES = {"/etc/hosts": "hosts", "/etc/resolv.conf": "resolv.conf", "/etc/hostname": "hostname"}
# The default masked and protected paths of container runtimes. Our list replaces theirs, so it must contain these paths
# too.
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware",
)  # fmt: skip
_PROPAGATIONS = {
    HOST_TO_CONTAINER: pb.MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
    BIDIRECTIONAL: pb.MountPropagation.PROPAGATION_BIDIRECTIONAL,
}
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def attempt_of(labels: Mapping[str, str]) -> Attempt | None:
    """Returns the attempt of the container; None if its labels do not name one."""
    uid, name, number = labels.get(UID), labels.get(CONTAINER), labels.get(ATTEMPT, "")
    if not uid or not name or not (number.isascii() and number.isdecimal()):
        return None
    return Attempt(uid, name, int(number))


def sandbox_config(
    launch: Launch,
    paths: StatePaths,
    naming: Naming,
    number: int,
    *,
    has_own_network: bool = False,
    first_id: int | None = None,
) -> pb.PodSandboxConfig:
    """Describes the sandbox of a pod. With the host's network, no runtime sets a host name. `first_id` is the first of
    the pod's own users, if it has some."""
    assert launch.planned is not None
    pod, metadata = launch.pod, launch.pod.metadata
    parent = launch.planned.pod.path
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(
            name=metadata.name, uid=metadata.uid, namespace=metadata.namespace or "default", attempt=number
        ),
        hostname=hostname(pod) if has_own_network else "",
        port_mappings=_port_mappings(pod) if has_own_network else (),
        log_directory=paths.pod_logs(metadata.namespace, metadata.name, metadata.uid),
        labels=_labels(pod, paths),
        linux=pb.LinuxPodSandboxConfig(
            # With systemd, runtimes expect the name of the slice and find its path themselves.
            cgroup_parent=posixpath.basename(parent) if naming == Naming.SYSTEMD else parent,
            security_context=pb.LinuxSandboxSecurityContext(
                namespace_options=_namespaces(pod, has_own_network=has_own_network, first_id=first_id),
                selinux_options=_se_linux(security.se_linux_options(pod)),
                # A runtime takes privileged containers only in a privileged sandbox.
                privileged=any(
                    security.privileges(pod, one).is_privileged for one in pod.spec.every_container
                ),
            ),
            # Without a network of the pod's own, the runtime refuses sysctls of the network.
            sysctls=security.sysctls(pod),
            # D4: the settings of the infrastructure. The runtime may ignore them: the agent writes them.
            overhead=resources(launch.planned.version, launch.planned.infrastructure.settings),
        ),
    )


def container_config(
    launch: Launch,
    paths: StatePaths,
    has: Callable[[str], bool] = lambda _: True,
    bound: Collection[int] = (),
    hidden: Sequence[str] = (),
    profiles: str = "",
    first_id: int | None = None,
    target_id: str = "",
) -> pb.ContainerConfig:
    """Describes a container, with the host's network. `has` returns whether this kernel has a file of the plan.

    `bound` are the indices of mounts that the agent has mounted already (`paths.sub_path`). `hidden` are paths in the
    container that lead to the state directory. `profiles` is the directory of seccomp profiles. `first_id` is the first
    of the pod's own users, if it has some. `target_id` is the container whose process namespace it enters.
    """
    assert launch.planned is not None
    pod, container, attempt = launch.pod, launch.container, launch.attempt
    known = declared(pod, container, launch.data)
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container.name, attempt=attempt.number),
        image=pb.ImageSpec(image=container.image),
        command=[expanded(word, known) for word in container.command],
        args=[expanded(word, known) for word in container.args],
        working_dir=container.working_dir,
        envs=[
            pb.KeyValue(key=key, value=value) for key, value in {"HOSTNAME": hostname(pod), **known}.items()
        ],
        mounts=_mounts(pod, container, attempt, paths, bound, first_id),
        labels={**_labels(pod, paths), CONTAINER: container.name, ATTEMPT: str(attempt.number)},
        annotations={MESSAGE_POLICY: container.termination_message_policy},
        log_path=f"{container.name}/{attempt.number}.log",
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=pb.LinuxContainerConfig(
            resources=resources(
                launch.planned.version,
                launch.planned.container.settings,
                launch.oom_score_adj,
                has,
            ),
            security_context=_security(launch, hidden, profiles, first_id),
        ),
    )
    if target_id:
        options = config.linux.security_context.namespace_options
        options.pid, options.target_id = pb.NamespaceMode.TARGET, target_id
    return config


def resources(
    version: Version,
    settings: Iterable[Setting],
    oom_score_adj: int | None = None,
    is_there: Callable[[str], bool] = lambda _: True,
) -> pb.LinuxContainerResources:
    """Converts settings. `is_there` returns whether this kernel has a file; the runtime would fail on a missing one."""
    found = pb.LinuxContainerResources(oom_score_adj=oom_score_adj or 0)
    for file, value, _, _ in settings:
        if not is_there(file):
            continue
        if file == "cpuset.cpus":
            found.cpuset_cpus = value  # empty: the CPUs of the cgroup above
        elif file.startswith("hugetlb.") and ".rsvd." not in file:
            _add_hugepages(found, file, value)
        elif version == Version.V1:
            if file in _V1_FIELDS:
                setattr(found, _V1_FIELDS[file], int(value))
        elif file == "cpu.max":
            quota, period = value.split()
            found.cpu_quota, found.cpu_period = _number(quota), int(period)
        elif file == "memory.max":
            found.memory_limit_in_bytes = _number(value)
            found.unified[file] = value
        else:
            found.unified[file] = value
    return found


def _add_hugepages(found: pb.LinuxContainerResources, file: str, value: str) -> None:
    if _number(value) != _NO_LIMIT:
        found.hugepage_limits.add(page_size=file.split(".")[1], limit=int(value))


def _number(value: str) -> int:
    return _NO_LIMIT if value == "max" else int(value)


def _labels(pod: Pod, paths: StatePaths) -> dict[str, str]:
    metadata = pod.metadata
    return {
        STATE: paths.root,
        UID: metadata.uid,
        _NAME: metadata.name,
        _NAMESPACE: metadata.namespace or "default",
    }


def _namespaces(
    pod: Pod, *, has_own_network: bool = False, first_id: int | None = None
) -> pb.NamespaceOption:
    of_pod, of_node, spec = pb.NamespaceMode.POD, pb.NamespaceMode.NODE, pod.spec
    pid = of_pod if spec.share_process_namespace else pb.NamespaceMode.CONTAINER
    return pb.NamespaceOption(
        network=of_pod if has_own_network else of_node,
        pid=of_node if spec.host_pid else pid,
        ipc=of_node if spec.host_ipc else of_pod,
        userns_options=None
        if first_id is None
        else pb.UserNamespace(mode=of_pod, uids=_own_users(first_id), gids=_own_users(first_id)),
    )


def _own_users(first_id: int) -> list[pb.IDMapping]:
    return [pb.IDMapping(host_id=first_id, container_id=0, length=LENGTH)]


def _port_mappings(pod: Pod) -> list[pb.PortMapping]:
    return [
        pb.PortMapping(
            protocol=port.protocol or "TCP",
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )
        for port in pod.spec.host_ports
    ]


def _mounts(
    pod: Pod,
    container: Container,
    attempt: Attempt,
    paths: StatePaths,
    bound: Collection[int],
    first_id: int | None,
) -> list[pb.Mount]:
    """Lists the mounts: the volumes, the termination log, and copies of the host's network files.

    Without these copies, runtimes mount the host's own file (CRI-O: /etc/hosts), or copies in a directory of theirs.
    Writes of the container to that directory would count for no pod. Our copies are in the attempt's directory, which
    counts as the container's disk (`CriRuntime.directories`).
    """
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    security = container.security_context
    is_read_only = bool(security and security.read_only_root_filesystem)
    directory = paths.attempt(*attempt)
    mounts = [
        pb.Mount(
            container_path=posixpath.normpath(f"/{mount.mount_path.lstrip('/')}"),
            # A runtime would follow symlinks of a container, so the agent has mounted it elsewhere.
            host_path=paths.sub_path(*attempt, index)
            if index in bound
            else volumes.source_path(pod, by_name[mount.name], paths),
            readonly=mount.read_only or by_name[mount.name].is_read_only,
            propagation=_PROPAGATIONS.get(mount.mount_propagation, pb.MountPropagation.PROPAGATION_PRIVATE),
        )
        for index, mount in enumerate(container.volume_mounts)
    ]
    mounts.append(
        pb.Mount(
            container_path=container.termination_message_path or _MESSAGE_PATH,
            host_path=paths.termination_log(*attempt),
        )
    )
    chosen = {mount.container_path for mount in mounts}
    mounts += [
        pb.Mount(container_path=path, host_path=f"{directory}/{name}", readonly=is_read_only)
        for path, name in NETWORK_FILES.items()
        if path not in chosen
    ]
    if first_id is not None:
        of_host = {
            posixpath.normpath(f"/{mount.mount_path.lstrip('/')}")
            for mount in container.volume_mounts
            if by_name[mount.name].host_path is not None
        }
        for mount in mounts:
            # To the host's own files the pod's users are strangers, unlike under kubelet.
            if mount.container_path not in of_host:
                mount.uidMappings.extend(_own_users(first_id))
                mount.gidMappings.extend(_own_users(first_id))
    return mounts


def _security(
    launch: Launch, hidden: Sequence[str], profiles: str, first_id: int | None
) -> pb.LinuxContainerSecurityContext:
    pod, container = launch.pod, launch.container
    user = identity(pod, container)
    asked = container.security_context
    allowed = security.privileges(pod, container, may_trace=launch.may_trace)
    is_masked = not (allowed.is_privileged or allowed.is_unmasked)
    context = pb.LinuxContainerSecurityContext(
        namespace_options=_namespaces(pod, first_id=first_id),
        selinux_options=_se_linux(security.se_linux_options(pod, container)),
        privileged=allowed.is_privileged,
        # Without a filter, a set-user-ID program would be root with all system calls. Otherwise as in Kubernetes.
        no_new_privs=not allowed.is_privileged and (allowed.may_escalate is False or not allowed.is_filtered),
        readonly_rootfs=bool(asked and asked.read_only_root_filesystem),
        supplemental_groups=groups(pod),
        seccomp=_profile(allowed.seccomp, f"{profiles}/{allowed.seccomp.localhost_profile}"),
        # The same names as kubelet's. With an empty list, a runtime masks nothing.
        masked_paths=[*(_MASKED if is_masked else ()), *hidden],
        readonly_paths=_READ_ONLY if is_masked else (),
    )
    if not allowed.is_privileged:
        # All capabilities are given by name, because the default set differs between runtimes.
        context.capabilities.drop_capabilities.append("ALL")
        context.capabilities.add_capabilities.extend(sorted(allowed.capabilities))
    if allowed.app_armor is not None:
        context.apparmor.CopyFrom(_profile(allowed.app_armor, allowed.app_armor.localhost_profile or ""))
    if user.uid is not None:
        context.run_as_user.value = user.uid
        if user.gid is not None:
            context.run_as_group.value = user.gid
    return context


def _se_linux(asked: SELinuxOptions | None) -> pb.SELinuxOption | None:
    return None if asked is None else pb.SELinuxOption(**asked._asdict())


def _profile(profile: SeccompProfile | AppArmorProfile, named: str) -> pb.SecurityProfile:
    return pb.SecurityProfile(
        profile_type=profile.type, localhost_ref=named if profile.type == security.LOCALHOST else ""
    )
