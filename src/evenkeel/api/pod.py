"""Pods: what is to run, and what became of it."""

from collections.abc import Iterator
from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.metadata import ObjectMeta
from evenkeel.api.resources import NO_RESOURCES, ResourceList, ResourceRequirements
from evenkeel.api.status import PodStatus
from evenkeel.quantity import Quantity

# Kubernetes' two built-in priority classes; both mark a pod as critical.
SYSTEM_CLUSTER_CRITICAL = "system-cluster-critical"
SYSTEM_NODE_CRITICAL = "system-node-critical"
IN_MEMORY = "Memory"  # the medium of an emptyDir
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
CRITICAL_PRIORITIES = {
    SYSTEM_CLUSTER_CRITICAL: SYSTEM_CRITICAL_PRIORITY,
    SYSTEM_NODE_CRITICAL: SYSTEM_CRITICAL_PRIORITY + 1000,
}


class EmptyDirVolumeSource(NamedTuple):
    medium: str = ""
    size_limit: Quantity | None = None


class HostPathVolumeSource(NamedTuple):
    path: str = ""
    type: str | None = None


class Volume(NamedTuple):
    name: str = ""
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None

    @property
    def is_in_memory(self) -> bool:
        return self.empty_dir is not None and self.empty_dir.medium == IN_MEMORY


class PodSecurityContext(NamedTuple):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    fs_group: int | None = None


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
    priority: int | None = None
    priority_class_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    volumes: tuple[Volume, ...] = ()
    security_context: PodSecurityContext | None = None
    tolerations: tuple[Toleration, ...] = ()
    hostname: str = ""
    node_name: str = ""  # the node it is on, or must go to

    @property
    def every_container(self) -> Iterator[Container]:
        """Init containers first, as they run."""
        yield from self.init_containers
        yield from self.containers

    @property
    def has_memory_volume(self) -> bool:
        """Whether some of the pod's memory comes back only when its volumes are emptied."""
        return any(volume.is_in_memory for volume in self.volumes)


class Pod(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`, by which people tell pods apart."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


class PodTemplateSpec(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
