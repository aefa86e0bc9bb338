"""The node as decisions see it: its size, its configuration, and what follows from the two, computed once."""

from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.profile import Profile
from evenkeel.api.resources import CPU, MEMORY, ResourceList
from evenkeel.policy import cpu
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


class KubeletSettings(NamedTuple):
    """What of the node and its configuration kubelet's own rules read (profile `kubernetes`)."""

    capacity_bytes: int
    allocatable_bytes: int
    memory_qos: bool = True
    reservation_policy: str = "None"
    throttling_factor: float | None = None
    enforce_cpu_limits: bool = True
    cpu_period_us: int = cpu.DEFAULT_PERIOD_US
    swap_bytes: int = 0
    swap_behavior: str = ""
    has_swap_controller: bool = False
    single_process_oom_kill: bool | None = None


class NodeView(NamedTuple):
    config: KubeletConfiguration
    profile: Profile
    capacity: NodeCapacity
    allocatable: ResourceList
    pods_limits: CgroupLimits
    reserved_limits: ReservedLimits
    reserved_millicpu: int
    kubelet: KubeletSettings

    @property
    def allocatable_bytes(self) -> int:
        return self.allocatable[MEMORY].value

    @property
    def memory_qos(self) -> bool:
        """C4: the gate; whether the kernel can do it is another question (C5)."""
        return self.kubelet.memory_qos


def node_view(capacity: NodeCapacity, config: KubeletConfiguration) -> NodeView:
    full = defaulted(config)
    reserved = reserved_of(full)
    allocatable = node_allocatable(capacity, full)
    return NodeView(
        config=full,
        profile=full.rulebook,
        capacity=capacity,
        allocatable=allocatable,
        pods_limits=pods_cgroup_limits(capacity, full),
        reserved_limits=reserved_cgroup_limits(full),
        reserved_millicpu=reserved.kube.get(CPU, ZERO).milli + reserved.system.get(CPU, ZERO).milli,
        kubelet=KubeletSettings(
            capacity_bytes=capacity.memory_bytes,
            allocatable_bytes=allocatable[MEMORY].value,
            memory_qos=full.feature("MemoryQoS"),
            reservation_policy=full.memory_reservation_policy,
            throttling_factor=full.memory_throttling_factor,
            enforce_cpu_limits=full.cpu_cfs_quota,
            cpu_period_us=int(full.cpu_cfs_quota_period) // 1000,
            swap_bytes=capacity.swap_bytes,
            swap_behavior=full.memory_swap.swap_behavior,
            has_swap_controller=True,
            single_process_oom_kill=not full.oom_group_kill,
        ),
    )
