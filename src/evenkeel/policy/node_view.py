"""The node as decisions see it: its capacity, its configuration, and what follows from both, computed once.

A capacity can also be written as text (`--node 32Gi,8cpu`), so that decisions can be tried out on any machine.
"""

import re
from collections.abc import Mapping

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.node import Node
from evenkeel.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    ResourceList,
    is_hugepages,
)
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy import amounts
from evenkeel.policy.allocatable import (
    DEFAULT_PIDS,
    CgroupLimits,
    NodeCapacity,
    ReservedLimits,
    memory_less_reserved,
    node_allocatable,
    pods_cgroup_limits,
    reserved_cgroup_limits,
    reserved_of,
)
from evenkeel.quantity import ZERO, Quantity


class KubeletSettings(NamedTuple):
    """The settings that kubelet's rules read from the node and its configuration (profile `kubernetes`)."""

    capacity_bytes: int
    allocatable_bytes: int  # capacity less what is reserved: the eviction threshold counts for admission only
    memory_qos: bool = True
    reservation_policy: str = "None"
    throttling_factor: float | None = None
    enforce_cpu_limits: bool = True
    cpu_period_us: int = amounts.DEFAULT_PERIOD_US
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
        """C4: the feature gate. Whether the kernel supports it is checked elsewhere (C5)."""
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
            allocatable_bytes=memory_less_reserved(capacity, full),
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


# A written capacity, and what it has for resources that the text leaves out.
_TYPICAL = {CPU: Quantity("4"), MEMORY: Quantity("16Gi"), EPHEMERAL_STORAGE: Quantity("100Gi")}

PIDS = "pids"
_LARGEST = 2**63 - 1
_BARE_CPU = re.compile(r"([0-9.]+m?)\s*(?:c|cpus?|cores?)", re.ASCII | re.IGNORECASE).fullmatch
_EXAMPLE = "write 32Gi,8cpu or memory=32Gi,cpu=8,ephemeral-storage=100Gi"


def parse_node(text: str, flag: str = "--node") -> NodeCapacity:
    """The capacity that `text` describes. Resources that it leaves out are those of a typical machine."""
    try:
        return _capacity({**_TYPICAL, **_amounts(text)})
    except EvenkeelError as error:
        raise EvenkeelError(f"{flag}: {error}") from None


def capacity_of(node: Node) -> NodeCapacity:
    """The capacity that a Node object states in `status.capacity`. Without storage there, storage is not counted."""
    stated = {
        name: amount for name, amount in node.status.capacity.items() if name in _KNOWN or is_hugepages(name)
    }
    try:
        return _capacity(stated)
    except EvenkeelError as error:
        raise EvenkeelError(f"status.capacity of the node {node.metadata.name}: {error}") from None


_KNOWN = (CPU, MEMORY, EPHEMERAL_STORAGE, PIDS)


def _amounts(text: str) -> dict[str, Quantity]:
    amounts: dict[str, Quantity] = {}
    for part in text.split(","):
        name, amount = _part(part.strip())
        if name in amounts:
            raise EvenkeelError(f"{name} stands twice: name it once")
        amounts[name] = amount
    return amounts


def _part(part: str) -> tuple[str, Quantity]:
    name, equals, text = (word.strip() for word in part.partition("="))
    if equals:
        if name in _KNOWN or is_hugepages(name):
            return name, Quantity.parse(text)
        from evenkeel.api.known_fields import closest

        meant = closest(name, _KNOWN)
        mend = f"did you mean {meant}?" if meant else f"there are {', '.join(_KNOWN)} and hugepages-2Mi"
        raise EvenkeelError(f'"{name[:40]}" is nothing a node has here; {mend}')
    if bare := _BARE_CPU(part):
        return CPU, Quantity.parse(bare[1])
    if not part or part.isdigit():
        raise EvenkeelError(f'"{part[:40]}" does not say what it is an amount of: {_EXAMPLE}')
    try:
        return MEMORY, Quantity.parse(part)
    except EvenkeelError as error:
        raise EvenkeelError(f"{error}; {_EXAMPLE}") from None


def _capacity(amounts: Mapping[str, Quantity]) -> NodeCapacity:
    for name in (CPU, MEMORY):
        if name not in amounts:
            raise EvenkeelError(f"{name} is missing: write cpu and memory, such as 8 and 32Gi")
    for name, amount in amounts.items():
        least = 1 if name in (CPU, MEMORY, PIDS) else 0
        if amount.sign < least or amount.milli > _LARGEST:
            wanted = "more than nothing" if least else "not negative"
            raise EvenkeelError(f"{name} must be {wanted} and fit a machine, which {amount} is not")
    pages = dict(_pages(name, amount) for name, amount in amounts.items() if is_hugepages(name))
    if sum(size * count for size, count in pages.items()) > amounts[MEMORY].value:
        raise EvenkeelError(f"huge pages take up more than the memory of {amounts[MEMORY]}: {_EXAMPLE}")
    storage = amounts.get(EPHEMERAL_STORAGE)
    pids = amounts.get(PIDS)
    return NodeCapacity(
        millicpu=amounts[CPU].milli,
        memory_bytes=amounts[MEMORY].value,
        ephemeral_storage_bytes=None if storage is None else storage.value,
        hugepages=pages,
        pids=DEFAULT_PIDS if pids is None else pids.value,
    )


def _pages(name: str, amount: Quantity) -> tuple[int, int]:
    size = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX)).value
    if size < 4096 or size & (size - 1):
        raise EvenkeelError(f"{name} names no size of huge pages: write hugepages-2Mi or hugepages-1Gi")
    if amount.value % size:
        raise EvenkeelError(f"{name} must be a whole number of pages, which {amount} is not")
    return size, amount.value // size
