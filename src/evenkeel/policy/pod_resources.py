"""Pod resources: the requests and limits of a pod as a whole, from containers, overhead and pod-level resources.

`api.pod` sums the containers. Pod-level resources, if the profile has them, replace that sum. Overhead is added
(D4).
"""

from collections.abc import Mapping

from evenkeel.api.container import Container
from evenkeel.api.pod import ContainerStatus, Pod, aggregate
from evenkeel.api.resources import NO_RESOURCES, ResourceList, Totals, add_to, is_pod_level, raise_to
from evenkeel.quantity import ZERO, Quantity

RESIZE_PENDING, RESIZE_IN_PROGRESS = "PodResizePending", "PodResizeInProgress"  # conditions
RESIZE_ERROR = "Error"  # the reason of the second, if the kernel cannot do it now


def pod_requests(
    pod: Pod,
    *,
    with_containers: bool = True,
    with_pod_level: bool = True,
    with_overhead: bool = True,
    if_missing: ResourceList = NO_RESOURCES,
    from_status: bool = False,
    from_pod_status: bool = True,
) -> Totals:
    """The requests of the pod, for admission, scheduling and cgroup weights.

    `if_missing` replaces requests that a container does not have. With `from_status` a pod under resize counts the
    largest of the desired, allocated and actual amounts: for each container and, with `from_pod_status`, for the pod.
    """
    from_pod_status = from_pod_status and from_status
    requests = (
        container_requests(
            pod, if_missing=if_missing, from_status=from_status, from_pod_status=from_pod_status
        )
        if with_containers
        else {}
    )
    if with_pod_level and has_pod_level_requests(pod):
        assert pod.spec.resources is not None
        effective = pod.spec.resources.requests
        if from_pod_status and (
            pod.status.resources is not None or _is_stated(pod.status.allocated_resources)
        ):
            in_force = pod.status.resources.requests if pod.status.resources is not None else NO_RESOURCES
            effective = _largest(
                NO_RESOURCES if is_resize_infeasible(pod) else effective,
                _minus(in_force, pod.spec.overhead),
                _minus(pod.status.allocated_resources, pod.spec.overhead),
            )
        _replace(requests, effective)
    if with_overhead:
        add_to(requests, pod.spec.overhead)
    return requests


def pod_limits(
    pod: Pod,
    *,
    with_pod_level: bool = True,
    with_overhead: bool = True,
    from_status: bool = False,
    from_pod_status: bool = True,
) -> Totals:
    """The limits of the pod. A resource that no container limits is absent."""
    from_pod_status = from_pod_status and from_status
    limits = container_limits(pod, from_status=from_status, from_pod_status=from_pod_status)
    if with_pod_level and has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        effective = pod.spec.resources.limits
        if from_pod_status and pod.status.resources is not None:
            effective = _largest(
                NO_RESOURCES if is_resize_infeasible(pod) else effective,
                _minus(pod.status.resources.limits, pod.spec.overhead),
            )
        _replace(limits, effective)
    if with_overhead:
        for name, amount in pod.spec.overhead.items():
            if limits.get(name):  # overhead raises a limit and never creates one
                limits[name] += amount
    return limits


def container_requests(
    pod: Pod,
    *,
    if_missing: ResourceList = NO_RESOURCES,
    from_status: bool = False,
    from_pod_status: bool = True,
) -> Totals:
    """The requests of all containers, without pod-level resources and overhead."""
    asked = aggregate(pod.spec, lambda container: _completed(container.resources.requests, if_missing))
    if not from_status:
        return asked
    infeasible = is_resize_infeasible(pod)
    in_force = pod.status.resources
    if (
        from_pod_status
        and _is_stated(pod.status.allocated_resources)
        and in_force is not None
        and _is_stated(in_force.requests)
    ):
        allocated: ResourceList = pod.status.allocated_resources
        actuated: ResourceList = in_force.requests
    else:
        statuses = _statuses(pod)

        def allocated_of(container: Container) -> ResourceList:
            status = statuses.get(container.name)
            if status is not None and _is_stated(status.allocated_resources):
                return status.allocated_resources
            return NO_RESOURCES if infeasible else container.resources.requests

        def actuated_of(container: Container) -> ResourceList:
            status = statuses.get(container.name)
            if status is not None and status.resources is not None and _is_stated(status.resources.requests):
                return status.resources.requests
            return allocated_of(container)

        allocated = aggregate(pod.spec, lambda container: _completed(allocated_of(container), if_missing))
        actuated = aggregate(pod.spec, lambda container: _completed(actuated_of(container), if_missing))
    return _largest(NO_RESOURCES if infeasible else asked, actuated, allocated)


def container_limits(pod: Pod, *, from_status: bool = False, from_pod_status: bool = True) -> Totals:
    """The limits of all containers, without pod-level resources and overhead."""
    asked = aggregate(pod.spec, lambda container: container.resources.limits)
    if not from_status:
        return asked
    infeasible = is_resize_infeasible(pod)
    if from_pod_status and pod.status.resources is not None and _is_stated(pod.status.resources.limits):
        actuated: ResourceList = pod.status.resources.limits
    else:
        statuses = _statuses(pod)

        def actuated_of(container: Container) -> ResourceList:
            status = statuses.get(container.name)
            if status is not None and status.resources is not None and _is_stated(status.resources.limits):
                return status.resources.limits
            return NO_RESOURCES if infeasible else container.resources.limits

        actuated = aggregate(pod.spec, actuated_of)
    return _largest(NO_RESOURCES if infeasible else asked, actuated)


def eviction_request(pod: Pod, resource: str, *, with_pod_level: bool = True) -> Quantity:
    """The request with which eviction compares usage, as in kubelet: pod-level resources count alone if there are any,
    and overhead counts only if there is a request."""
    stated_by_pod = with_pod_level and has_pod_level_resources(pod)
    request = pod_requests(
        pod, with_containers=not stated_by_pod, with_pod_level=with_pod_level, with_overhead=False
    ).get(resource, ZERO)
    return request + pod.spec.overhead.get(resource, ZERO) if request else request


def has_pod_level_resources(pod: Pod) -> bool:
    return pod.spec.resources is not None and pod.spec.resources.sets_pod_level


def has_pod_level_requests(pod: Pod) -> bool:
    return pod.spec.resources is not None and any(map(is_pod_level, pod.spec.resources.requests))


def is_resize_infeasible(pod: Pod) -> bool:
    """Whether a pending resize can never fit on the node. Then the desired amounts do not count."""
    for condition in pod.status.conditions:
        if condition.type == RESIZE_PENDING:
            return condition.reason == "Infeasible"
    return False


def _is_stated(resources: ResourceList) -> bool:
    """Whether the manifest or status has it, even as an empty mapping."""
    return resources is not NO_RESOURCES


def _statuses(pod: Pod) -> Mapping[str, ContainerStatus]:
    return {
        status.name: status
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }


def _completed(resources: ResourceList, if_missing: ResourceList) -> ResourceList:
    return {**if_missing, **resources} if if_missing else resources


def _replace(total: Totals, by: ResourceList) -> None:
    for name, amount in by.items():
        if is_pod_level(name):
            total[name] = amount


def _largest(first: ResourceList, *others: ResourceList) -> Totals:
    largest = dict(first)
    for other in others:
        raise_to(largest, other)
    return largest


def _minus(resources: ResourceList, overhead: ResourceList) -> Totals:
    return {name: max(amount - overhead.get(name, ZERO), ZERO) for name, amount in resources.items()}
