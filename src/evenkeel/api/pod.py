"""Pods: their specification and their status, and what their containers request together."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from evenkeel.api.container import (
    AppArmorProfile,
    Container,
    ContainerPort,
    EphemeralContainer,
    SeccompProfile,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from evenkeel.api.node_affinity import Affinity
from evenkeel.api.resources import NO_RESOURCES, ResourceList, ResourceRequirements, Totals, add_to, raise_to
from evenkeel.api.scalars import Int32
from evenkeel.api.volume_types import Volume
from evenkeel.named_tuples import NamedTuple


class PodCondition(NamedTuple):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None
    observed_generation: int = 0


class ContainerStateWaiting(NamedTuple):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(NamedTuple):
    started_at: str | None = None


class ContainerStateTerminated(NamedTuple):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = ""


class ContainerState(NamedTuple):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(NamedTuple):
    """`memory_qos_class` and `cpu_qos_class` are not in Kubernetes: the class of each resource (A8)."""

    name: str = ""
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = ""
    container_id: str = ""
    started: bool | None = None
    allocated_resources: ResourceList = NO_RESOURCES
    resources: ResourceRequirements | None = None
    memory_qos_class: str = ""
    cpu_qos_class: str = ""

    @property
    def always_there(self) -> tuple[str, ...]:
        """The fields that are written even if they are empty: clients of Kubernetes do not accept a status without
        them."""
        return ("image", "image_id")


class HostIP(NamedTuple):
    ip: str = ""


class PodIP(NamedTuple):
    ip: str = ""


class PodStatus(NamedTuple):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    host_ip: str = ""
    host_ips: tuple[HostIP, ...] = ()
    pod_ip: str = ""
    pod_ips: tuple[PodIP, ...] = ()
    start_time: str | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: ResourceList = NO_RESOURCES
    resources: ResourceRequirements | None = None

    @property
    def every_container_status(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all containers, init containers first."""
        return (*self.init_container_statuses, *self.container_statuses, *self.ephemeral_container_statuses)

    def with_addresses(self, host: str, own: tuple[str, ...] | None) -> "PodStatus":
        """`own` are the addresses of the pod's own network, as far as they are known; None: it uses the host's."""
        found = (host,) if own is None else own
        return self._replace(
            host_ip=host,
            host_ips=(HostIP(host),),
            pod_ip=next(iter(found), ""),
            pod_ips=tuple(map(PodIP, found)),
        )


NO_LABELS: Mapping[str, str] = MappingProxyType({})


class OwnerReference(NamedTuple):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(NamedTuple):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = NO_LABELS
    annotations: Mapping[str, str] = NO_LABELS
    owner_references: tuple[OwnerReference, ...] = ()
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


# Kubernetes' two built-in priority classes; both mark a pod as critical.
SYSTEM_CLUSTER_CRITICAL = "system-cluster-critical"
SYSTEM_NODE_CRITICAL = "system-node-critical"
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
CRITICAL_PRIORITIES = {
    SYSTEM_CLUSTER_CRITICAL: SYSTEM_CRITICAL_PRIORITY,
    SYSTEM_NODE_CRITICAL: SYSTEM_CRITICAL_PRIORITY + 1000,
}


class Sysctl(NamedTuple):
    name: str = ""
    value: str = ""


class PodSecurityContext(NamedTuple):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    # No file that a container has made gets another group. So both policies have the same effect.
    fs_group_change_policy: str | None = None
    sysctls: tuple[Sysctl, ...] = ()
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None


class HostAlias(NamedTuple):
    ip: str = ""
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(NamedTuple):
    name: str = ""
    value: str | None = None


class PodDNSConfig(NamedTuple):
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()


class LocalObjectReference(NamedTuple):
    name: str = ""


class Toleration(NamedTuple):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(NamedTuple):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList = NO_RESOURCES
    priority: Int32 | None = None
    priority_class_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    volumes: tuple[Volume, ...] = ()
    security_context: PodSecurityContext | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = NO_LABELS
    affinity: Affinity | None = None  # only what a node decides about
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    hostname: str = ""
    hostname_override: str | None = None  # the name that programs see; names of Services know `hostname` only
    subdomain: str = ""
    node_name: str = ""  # the node of the pod
    runtime_class_name: str | None = None
    host_network: bool | None = None  # None: the default of the runtime
    host_pid: bool = False
    host_ipc: bool = False
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    host_aliases: tuple[HostAlias, ...] = ()
    dns_policy: str = ""
    dns_config: PodDNSConfig | None = None
    service_account_name: str = ""  # only a value for variables
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()  # only those of a cluster's pods

    @property
    def every_container(self) -> Iterator[Container]:
        """All containers, init containers first and ephemeral ones last."""
        yield from self.init_containers
        yield from self.containers
        for one in self.ephemeral_containers:
            yield one.container

    @property
    def sized_containers(self) -> Iterator[Container]:
        """The containers that make up the pod's class and size: all but ephemeral ones. They exist as long as the
        pod."""
        yield from self.init_containers
        yield from self.containers

    @property
    def container_fields(self) -> Iterator[tuple[str, Container]]:
        """All containers, each with its field, such as `spec.containers[0]`."""
        for name, containers in (("initContainers", self.init_containers), ("containers", self.containers)):
            for index, container in enumerate(containers):
                yield f"spec.{name}[{index}]", container
        for index, one in enumerate(self.ephemeral_containers):
            yield f"spec.ephemeralContainers[{index}]", one.container

    def ephemeral(self, name: str) -> EphemeralContainer | None:
        """The ephemeral container of that name."""
        return next((one for one in self.ephemeral_containers if one.name == name), None)

    def process_target(self, name: str) -> str:
        """The container whose process namespace the container of that name enters; empty if it enters none. In a
        namespace of all containers it sees the other's processes anyway."""
        one = self.ephemeral(name)
        return (
            "" if one is None or self.host_pid or self.share_process_namespace else one.target_container_name
        )

    @property
    def host_ports(self) -> Iterator[ContainerPort]:
        """The ports of all containers that are opened on the host too."""
        return (port for container in self.every_container for port in container.ports if port.host_port)

    @property
    def has_own_users(self) -> bool:
        """Whether the pod asks for a user namespace."""
        return self.host_users is False

    @property
    def has_memory_volume(self) -> bool:
        """Whether some memory of the pod is freed only when its volumes are emptied."""
        return any(volume.is_in_memory for volume in self.volumes)


class Pod(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def with_ephemeral(self, *containers: EphemeralContainer) -> "Pod":
        """The pod with these ephemeral containers only."""
        if self.spec.ephemeral_containers == containers:
            return self
        return self._replace(spec=self.spec._replace(ephemeral_containers=containers))

    @property
    def key(self) -> str:
        """`namespace/name`, which identifies the pod to people."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


class PodTemplateSpec(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


def aggregate(spec: PodSpec, resources_of: Callable[[Container], ResourceList]) -> Totals:
    """The total of `resources_of` over the containers of the pod."""
    total: Totals = {}
    for container in spec.containers:
        add_to(total, resources_of(container))
    sidecars: Totals = {}
    starting: Totals = {}
    for container in spec.init_containers:
        resources = resources_of(container)
        if container.is_sidecar:
            add_to(total, resources)
            add_to(sidecars, resources)
            raise_to(starting, sidecars)
        else:
            together = dict(resources)
            add_to(together, sidecars)
            raise_to(starting, together)
    raise_to(total, starting)
    return total


def container_requests(spec: PodSpec) -> Totals:
    return aggregate(spec, lambda container: container.resources.requests)


def container_limits(spec: PodSpec) -> Totals:
    return aggregate(spec, lambda container: container.resources.limits)
