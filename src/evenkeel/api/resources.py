"""Requests and limits, and the names that resources go by."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.quantity import Quantity, QuantityError

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
STORAGE = "storage"
PODS = "pods"
PID = "pid"
HUGEPAGES_PREFIX = "hugepages-"

ResourceList = Mapping[str, Quantity]

NO_RESOURCES: ResourceList = MappingProxyType({})


class ResourceRequirements(NamedTuple):
    """What is asked for (`requests`) and what may not be exceeded (`limits`)."""

    requests: ResourceList = NO_RESOURCES
    limits: ResourceList = NO_RESOURCES

    @property
    def sets_pod_level(self) -> bool:
        """As a pod's own: whether they set anything that a pod may have. The rest counts for nothing there."""
        return any(map(is_pod_level, self.requests)) or any(map(is_pod_level, self.limits))


NOTHING_REQUIRED = ResourceRequirements()


def is_hugepages(name: str) -> bool:
    return name.startswith(HUGEPAGES_PREFIX)


def hugepage_bytes(name: str) -> int:
    """The page size in the resource name `hugepages-2Mi`; 0 where it names none."""
    try:
        return Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX)).value
    except QuantityError:
        return 0


def is_pod_level(name: str) -> bool:
    """Whether Kubernetes lets a pod as a whole, and not only its containers, ask for the resource `name`."""
    return name in (CPU, MEMORY) or is_hugepages(name)
