"""What a node has, what is kept back, and what of it pods may use (B1, B7, B8, B12).

    allocatable = capacity − kube-reserved − system-reserved − hard eviction threshold

is what admission and scheduling count with. The pods' cgroup is given the threshold back: pods must be
evicted when they touch it, and not meet the kernel's OOM killer there. The formulas are the same in both
profiles. Amounts only: which cgroup file they end up in is decided elsewhere.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.config import (
    KUBE_RESERVED,
    KUBE_RESERVED_COMPRESSIBLE,
    PODS_ENFORCED,
    SYSTEM_RESERVED,
    SYSTEM_RESERVED_COMPRESSIBLE,
    KubeletConfiguration,
    defaulted,
)
from evenkeel.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    NO_RESOURCES,
    PID,
    PODS,
    ResourceList,
    is_hugepages,
)
from evenkeel.errors import Problem
from evenkeel.policy import kernel_amounts
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds, threshold_quantity
from evenkeel.policy.reserved import reserved_of
from evenkeel.quantity import ZERO, BinarySI, Quantity

_NO_PAGES: Mapping[int, int] = MappingProxyType({})
DEFAULT_PIDS = 4_194_304  # what a 64-bit Linux can number


class NodeCapacity(NamedTuple):
    """A machine's size. Without `ephemeral_storage_bytes` storage is neither counted nor reported."""

    millicpu: int
    memory_bytes: int
    ephemeral_storage_bytes: int | None = None
    hugepages: Mapping[int, int] = _NO_PAGES  # page size in bytes → number of pages
    pids: int = DEFAULT_PIDS
    swap_bytes: int = 0


class CgroupLimits(NamedTuple):
    """What one of the top cgroups may use; None is "leave it as it is"."""

    millicpu: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    hugepage_bytes: Mapping[int, int] = _NO_PAGES  # page size → bytes

    @property
    def cpu_shares(self) -> int | None:
        return None if self.millicpu is None else kernel_amounts.shares(self.millicpu)


class ReservedLimits(NamedTuple):
    """The limits on the two cgroups of daemons, each None where it is not enforced or nothing is reserved."""

    kube: CgroupLimits | None
    system: CgroupLimits | None


def node_allocatable(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """What pods may request together (B1, B2): never below zero, whatever is reserved."""
    kept_back = reservation(capacity, config)
    allocatable = {
        name: _at_least_zero(amount - kept_back.get(name, ZERO))
        for name, amount in node_capacity(capacity, config).items()
    }
    # Huge pages are taken out of memory when they are set up, used or not.
    for name, amount in allocatable.items():
        if is_hugepages(name):
            allocatable[MEMORY] = _at_least_zero(allocatable[MEMORY] - amount)
    return allocatable


def node_capacity(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """The capacity as the node's status reports it, with the number of pods."""
    full = defaulted(config)
    pods = full.max_pods
    if full.pods_per_core > 0:
        pods = min(full.pods_per_core * (capacity.millicpu // 1000), pods)
    return {**_resources(capacity, config), PODS: Quantity.of(pods)}


def reservation(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """Everything that is kept back from pods, resource by resource; what is zero is not named."""
    reserved = reserved_of(config)
    thresholds = _threshold_reservation(capacity, config)
    kept_back = {}
    for name in _resources(capacity, config):
        amount = ZERO + reserved.system.get(name, ZERO) + reserved.kube.get(name, ZERO)
        amount += thresholds.get(name, ZERO)
        if amount:
            kept_back[name] = amount
    return kept_back


def pods_cgroup_limits(capacity: NodeCapacity, config: KubeletConfiguration) -> CgroupLimits:
    """The limits on the pods' cgroup: allocatable and the eviction threshold together (B8).

    Where `pods` is not enforced they are the machine's own: the kernel's default cpu weight would be too
    little for all pods together.
    """
    resources = {**_resources(capacity, config), PID: Quantity.of(capacity.pids)}
    resources.pop(EPHEMERAL_STORAGE, None)
    if config.cgroups_per_qos and config.enforces(PODS_ENFORCED):
        reserved = reserved_of(config)
        resources = {
            name: _at_least_zero(amount - reserved.system.get(name, ZERO) - reserved.kube.get(name, ZERO))
            for name, amount in resources.items()
        }
    limits = _limits(resources)
    pages = {size: resources[_hugepages_name(size)].value for size in capacity.hugepages}
    return limits._replace(hugepage_bytes=pages)


def reserved_cgroup_limits(config: KubeletConfiguration) -> ReservedLimits:
    """The limits that enforceNodeAllocatable puts on the cgroups of daemons (B4)."""
    reserved = reserved_of(config)
    return ReservedLimits(
        kube=_enforced(config, reserved.kube, KUBE_RESERVED, KUBE_RESERVED_COMPRESSIBLE),
        system=_enforced(config, reserved.system, SYSTEM_RESERVED, SYSTEM_RESERVED_COMPRESSIBLE),
    )


def reservation_problems(capacity: NodeCapacity, config: KubeletConfiguration) -> Iterator[Problem]:
    """More is kept back than there is: nothing would be left for pods."""
    have = _resources(capacity, config)
    reserved = reserved_of(config)
    thresholds = _threshold_reservation(capacity, config)
    for name, amount in reservation(capacity, config).items():
        if amount > have[name]:
            parts = {
                "--kube-reserved": reserved.kube.get(name, ZERO),
                "--system-reserved": reserved.system.get(name, ZERO),
                "--eviction-hard": thresholds.get(name, ZERO),
            }
            sum_of = " + ".join(f"{flag} {part}" for flag, part in parts.items() if part)
            yield Problem(
                name,
                f"{sum_of} is more than the {have[name]} that the node has: reserve less",
                "FieldValueInvalid",
            )


def _resources(capacity: NodeCapacity, config: KubeletConfiguration) -> dict[str, Quantity]:
    found = {
        CPU: Quantity.of_milli(capacity.millicpu),
        MEMORY: Quantity.of(capacity.memory_bytes, BinarySI),
    }
    for size, pages in sorted(capacity.hugepages.items()):
        found[_hugepages_name(size)] = Quantity.of(size * pages, BinarySI)
    if capacity.ephemeral_storage_bytes is not None and config.local_storage_capacity_isolation:
        found[EPHEMERAL_STORAGE] = Quantity.of(capacity.ephemeral_storage_bytes, BinarySI)
    return found


def _hugepages_name(size: int) -> str:
    return f"{HUGEPAGES_PREFIX}{Quantity.of(size, BinarySI)}"


def _threshold_reservation(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    if config.experimental_node_allocatable_ignore_eviction_threshold:  # B7
        return NO_RESOURCES
    of_signal = {
        Signal.MEMORY_AVAILABLE: (MEMORY, capacity.memory_bytes),
        Signal.NODEFS_AVAILABLE: (EPHEMERAL_STORAGE, capacity.ephemeral_storage_bytes or 0),
    }
    found = {}
    for threshold in parse_thresholds(hard=defaulted(config).eviction_hard):
        if threshold.signal in of_signal:
            name, total = of_signal[threshold.signal]
            found[name] = threshold_quantity(threshold.value, total)
    return found


def _enforced(
    config: KubeletConfiguration, reserved: ResourceList, key: str, compressible_key: str
) -> CgroupLimits | None:
    if not reserved or not config.enforces(key, compressible_key):
        return None  # enforcing a reservation of nothing is a no-op, as document B has it
    if config.enforces(key):
        return _limits(reserved)
    return CgroupLimits(millicpu=_limits(reserved).millicpu)


def _limits(resources: ResourceList) -> CgroupLimits:
    return CgroupLimits(
        millicpu=resources[CPU].milli if CPU in resources else None,
        memory_bytes=resources[MEMORY].value if MEMORY in resources else None,
        pids=resources[PID].value if PID in resources else None,
    )


def _at_least_zero(amount: Quantity) -> Quantity:
    return amount if amount.sign >= 0 else Quantity.of(0, amount.format)
