"""The sum over the containers of a pod.

Containers run at the same time, init containers one after the other, and a sidecar runs from its turn on. So for each
resource a pod needs the larger of two amounts: that of all containers and sidecars, and the largest amount during its
start (an init container and the sidecars before it).
"""

from collections.abc import Callable

from evenkeel.api.container import Container
from evenkeel.api.pod import PodSpec
from evenkeel.api.resources import ResourceList
from evenkeel.quantity import Quantity

Totals = dict[str, Quantity]


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


def add_to(total: Totals, more: ResourceList) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def raise_to(total: Totals, other: ResourceList) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount
