"""Nodes: their capacity, what of it pods may request, and their conditions."""

from evenkeel.api.pod import ObjectMeta
from evenkeel.api.resources import NO_RESOURCES, ResourceList
from evenkeel.named_tuples import NamedTuple


class Taint(NamedTuple):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(NamedTuple):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeCondition(NamedTuple):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeStatus(NamedTuple):
    capacity: ResourceList = NO_RESOURCES
    allocatable: ResourceList = NO_RESOURCES
    conditions: tuple[NodeCondition, ...] = ()


class Node(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
