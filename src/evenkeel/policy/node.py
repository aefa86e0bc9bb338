"""The node as decisions see it: its size, its configuration, and what follows from the two, computed once."""

from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.profile import Profile
from evenkeel.api.resources import CPU, MEMORY, ResourceList
from evenkeel.policy.allocatable import (
    CgroupLimits,
    NodeCapacity,
    ReservedLimits,
    node_allocatable,
    pods_cgroup_limits,
    reserved_cgroup_limits,
)
from evenkeel.policy.reserved import reserved_of
from evenkeel.quantity import ZERO


class NodeView(NamedTuple):
    config: KubeletConfiguration
    profile: Profile
    capacity: NodeCapacity
    allocatable: ResourceList
    pods_limits: CgroupLimits
    reserved_limits: ReservedLimits
    reserved_millicpu: int

    @property
    def allocatable_bytes(self) -> int:
        return self.allocatable[MEMORY].value

    @property
    def memory_qos(self) -> bool:
        """C4: the gate; whether the kernel can do it is another question (C5)."""
        return self.config.feature("MemoryQoS")


def node_view(capacity: NodeCapacity, config: KubeletConfiguration) -> NodeView:
    full = defaulted(config)
    reserved = reserved_of(full)
    return NodeView(
        config=full,
        profile=full.rulebook,
        capacity=capacity,
        allocatable=node_allocatable(capacity, full),
        pods_limits=pods_cgroup_limits(capacity, full),
        reserved_limits=reserved_cgroup_limits(full),
        reserved_millicpu=reserved.kube.get(CPU, ZERO).milli + reserved.system.get(CPU, ZERO).milli,
    )
