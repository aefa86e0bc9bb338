"""What became of a pod: phases, conditions and container states, in Kubernetes' own words."""

from typing import NamedTuple

from evenkeel.api.resources import NO_RESOURCES, ResourceList, ResourceRequirements


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
    """`memory_qos_class` and `cpu_qos_class` are ours: the class per resource (A8)."""

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
        """The fields that are told empty, too: Kubernetes' own clients do not read a status without them."""
        return ("image", "image_id")


class PodStatus(NamedTuple):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    start_time: str | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: ResourceList = NO_RESOURCES
    resources: ResourceRequirements | None = None
