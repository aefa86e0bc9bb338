"""From what the agent asks for to the sandbox and the container of the container runtime's interface. Pure, but that
symbolic links of the host are followed.

Labels tell whose they are: after a restart, of either side, everything is found by them again.
"""

import os
import posixpath
from collections.abc import Callable, Iterable, Mapping

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import is_within
from evenkeel.cgroup.tree import Naming, Setting, Version
from evenkeel.runtime import volumes
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.environment import declared, expanded, groups, identity
from evenkeel.runtime.interface import Attempt, Launch
from evenkeel.runtime.paths import TERMINATION_LOG, StatePaths

_NO_LIMIT = -1
_V1_FIELDS = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_period_us": "cpu_period",
    "cpu.cfs_quota_us": "cpu_quota",
    "memory.limit_in_bytes": "memory_limit_in_bytes",
    "memory.memsw.limit_in_bytes": "memory_swap_limit_in_bytes",
}


def resources(
    version: Version,
    settings: Iterable[Setting],
    oom_score_adj: int | None = None,
    is_there: Callable[[str], bool] = lambda _: True,
) -> pb.LinuxContainerResources:
    """`is_there` says whether this kernel has a file at all: one that it lacks would be an error of the runtime's."""
    found = pb.LinuxContainerResources(oom_score_adj=oom_score_adj or 0)
    for file, value, _, _ in settings:
        if not is_there(file):
            continue
        if file == "cpuset.cpus":
            found.cpuset_cpus = value  # empty: those of the cgroup above
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


STATE = "io.evenkeel.state"  # the state directory of the agent that made it
ATTEMPT = "io.evenkeel.attempt"
MESSAGE_POLICY = "io.evenkeel.termination-message-policy"  # what to make of its end, an annotation
UID = "io.kubernetes.pod.uid"  # as kubelet labels its own: crictl and its like show them
_NAME, _NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
CONTAINER = "io.kubernetes.container.name"
_MESSAGE_PATH = "/dev/termination-log"  # Kubernetes' own, where the manifest has none
_LONGEST_HOSTNAME = 63
# What container runtimes hide, and protect, by themselves: windows into the kernel.
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
    "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def attempt_of(labels: Mapping[str, str]) -> Attempt | None:
    """Whose container it is; None if that cannot be told."""
    uid, name, number = labels.get(UID), labels.get(CONTAINER), labels.get(ATTEMPT, "")
    if not uid or not name or not (number.isascii() and number.isdecimal()):
        return None
    return Attempt(uid, name, int(number))


def sandbox_config(launch: Launch, paths: StatePaths, naming: Naming, number: int) -> pb.PodSandboxConfig:
    """Network, as that of processes, is the host's; with it goes the name of the host, which no runtime sets then."""
    assert launch.planned is not None
    pod, metadata = launch.pod, launch.pod.metadata
    parent = launch.planned.pod.path
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(
            name=metadata.name, uid=metadata.uid, namespace=metadata.namespace or "default", attempt=number
        ),
        log_directory=paths.pod_logs(metadata.namespace, metadata.name, metadata.uid),
        labels=_labels(pod, paths),
        linux=pb.LinuxPodSandboxConfig(
            # Runtimes want the slice's name, and know the way to it.
            cgroup_parent=posixpath.basename(parent) if naming == Naming.SYSTEMD else parent,
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=_namespaces()),
            # D4: it counts for the infrastructure; the runtime may note it, the agent writes it.
            overhead=resources(launch.planned.version, launch.planned.infrastructure.settings),
        ),
    )


def container_config(
    launch: Launch, paths: StatePaths, has: Callable[[str], bool] = lambda _: True
) -> pb.ContainerConfig:
    """`has` says whether this kernel has a file of the plan's."""
    assert launch.planned is not None
    pod, container, attempt = launch.pod, launch.container, launch.attempt
    known = declared(pod, container)
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container.name, attempt=attempt.number),
        image=pb.ImageSpec(image=container.image),
        command=[expanded(word, known) for word in container.command],
        args=[expanded(word, known) for word in container.args],
        working_dir=container.working_dir,
        envs=[
            pb.KeyValue(key=key, value=value) for key, value in {"HOSTNAME": hostname(pod), **known}.items()
        ],
        mounts=_mounts(pod, container, attempt, paths),
        labels={**_labels(pod, paths), CONTAINER: container.name, ATTEMPT: str(attempt.number)},
        annotations={MESSAGE_POLICY: container.termination_message_policy},
        log_path=f"{container.name}/{attempt.number}.log",
        linux=pb.LinuxContainerConfig(
            resources=resources(
                launch.planned.version,
                launch.planned.container.settings,
                launch.oom_score_adj,
                has,
            ),
            security_context=_security(pod, container, paths),
        ),
    )


def hostname(pod: Pod) -> str:
    return (pod.spec.hostname or pod.metadata.name)[:_LONGEST_HOSTNAME].rstrip("-.")


def _labels(pod: Pod, paths: StatePaths) -> dict[str, str]:
    metadata = pod.metadata
    return {
        STATE: paths.root,
        UID: metadata.uid,
        _NAME: metadata.name,
        _NAMESPACE: metadata.namespace or "default",
    }


def _namespaces() -> pb.NamespaceOption:
    return pb.NamespaceOption(
        network=pb.NamespaceMode.NODE, pid=pb.NamespaceMode.CONTAINER, ipc=pb.NamespaceMode.POD
    )


def _mounts(pod: Pod, container: Container, attempt: Attempt, paths: StatePaths) -> list[pb.Mount]:
    by_name = {volume.name: volume for volume in pod.spec.volumes}
    mounts = [
        pb.Mount(
            container_path=posixpath.normpath(f"/{mount.mount_path.lstrip('/')}"),
            host_path=volumes.source_path(pod, by_name[mount.name], paths),
            readonly=mount.read_only,
        )
        for mount in container.volume_mounts
    ]
    mounts.append(
        pb.Mount(
            container_path=container.termination_message_path or _MESSAGE_PATH,
            host_path=f"{paths.attempt(*attempt)}/{TERMINATION_LOG}",
        )
    )
    return mounts


def _ways_to_state(pod: Pod, container: Container, paths: StatePaths) -> list[str]:
    """Where a container would find the agent's state directory, which is no pod's, in a directory of the host's."""
    sources = {volume.name: volume.host_path.path for volume in pod.spec.volumes if volume.host_path}
    found = []
    for mount in container.volume_mounts:
        source = os.path.realpath(sources.get(mount.name, ""))
        if mount.name in sources and is_within(paths.root, source):
            below = posixpath.relpath(paths.root, source)
            found.append(posixpath.normpath(posixpath.join(f"/{mount.mount_path.lstrip('/')}", below)))
    return found


def _security(pod: Pod, container: Container, paths: StatePaths) -> pb.LinuxContainerSecurityContext:
    who = identity(pod, container)
    security = container.security_context
    hidden = _ways_to_state(pod, container, paths)
    context = pb.LinuxContainerSecurityContext(
        namespace_options=_namespaces(),
        readonly_rootfs=bool(security and security.read_only_root_filesystem),
        supplemental_groups=groups(pod),
        seccomp=pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault),
        # Without any the runtime has its own; with some, it has these alone.
        masked_paths=[*_MASKED, *hidden] if hidden else [],
        readonly_paths=_READ_ONLY if hidden else [],
    )
    if who.uid is not None:
        context.run_as_user.value = who.uid
        if who.gid is not None:
            context.run_as_group.value = who.gid
    return context
