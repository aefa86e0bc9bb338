"""Requests and limits, their totals, and the names of resources."""

from collections.abc import Mapping
from types import MappingProxyType

from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import Quantity, QuantityError

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
STORAGE = "storage"
PODS = "pods"
PID = "pid"
HUGEPAGES_PREFIX = "hugepages-"

ResourceList = Mapping[str, Quantity]
Totals = dict[str, Quantity]

NO_RESOURCES: ResourceList = MappingProxyType({})


class ResourceRequirements(NamedTuple):
    """`requests` are guaranteed amounts, `limits` are maximum amounts."""

    requests: ResourceList = NO_RESOURCES
    limits: ResourceList = NO_RESOURCES

    @property
    def sets_pod_level(self) -> bool:
        """Whether they contain a resource that a pod can have at pod level. Other resources have no effect there."""
        return any(map(is_pod_level, self.requests)) or any(map(is_pod_level, self.limits))


NOTHING_REQUIRED = ResourceRequirements()


def is_hugepages(name: str) -> bool:
    return name.startswith(HUGEPAGES_PREFIX)


def hugepage_bytes(name: str) -> int:
    """The page size in the resource name `hugepages-2Mi`; 0 if the name has none."""
    try:
        return Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX)).value
    except QuantityError:
        return 0


def is_pod_level(name: str) -> bool:
    """Whether Kubernetes allows the resource `name` at pod level."""
    return name in (CPU, MEMORY) or is_hugepages(name)


def add_to(total: Totals, more: ResourceList) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def raise_to(total: Totals, other: ResourceList) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount
