"""Quality of service: one class for a pod, and one class for each resource of a container (A7).

The class of the pod decides its branch of the cgroup tree. The classes of its containers are finer: a Burstable pod can
have a container whose memory is Guaranteed. Both classes follow from requests and limits after defaulting.
"""

from collections.abc import Iterable
from enum import StrEnum

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import CRITICAL_PRIORITIES, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL, Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceRequirements
from evenkeel.quantity import ZERO


class QoSClass(StrEnum):
    """The names of Kubernetes. Each is equal to the plain string."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


def pod_class(pod: Pod, profile: Profile) -> QoSClass:
    """The class of the pod. Only cpu and memory count; a zero counts as absent."""
    at_pod_level = pod.spec.resources
    if profile == Profile.KUBERNETES and at_pod_level is not None and at_pod_level.sets_pod_level:
        # Pod-level resources decide alone, whatever the containers have.
        return _class_of((at_pod_level,))
    return _class_of(container.resources for container in pod.spec.sized_containers)


def container_class(container: Container, resource: str) -> QoSClass:
    """The class of one resource of a container (A7). A limit with a request of 0 guarantees nothing."""
    request = container.resources.requests.get(resource, ZERO)
    if request <= ZERO:
        return QoSClass.BEST_EFFORT
    if request == container.resources.limits.get(resource):
        return QoSClass.GUARANTEED
    return QoSClass.BURSTABLE


def _class_of(every: Iterable[ResourceRequirements]) -> QoSClass:
    # Sums in nanos, because plain numbers are fast and every plan computes this for every pod.
    cpu_requests = cpu_limits = memory_requests = memory_limits = 0
    all_limited = True
    for resources in every:
        requests, limits = resources.requests, resources.limits
        cpu_requests += max(requests.get(CPU, ZERO).nanos, 0)
        memory_requests += max(requests.get(MEMORY, ZERO).nanos, 0)
        cpu_limit = max(limits.get(CPU, ZERO).nanos, 0)
        memory_limit = max(limits.get(MEMORY, ZERO).nanos, 0)
        cpu_limits += cpu_limit
        memory_limits += memory_limit
        if not cpu_limit or not memory_limit:
            all_limited = False
    if not (cpu_requests or memory_requests or cpu_limits or memory_limits):
        return QoSClass.BEST_EFFORT
    # Sums are compared, as in Kubernetes. In a valid pod no request exceeds its limit, so equal sums mean that every
    # request equals its limit.
    if all_limited and cpu_requests == cpu_limits and memory_requests == memory_limits:
        return QoSClass.GUARANTEED
    return QoSClass.BURSTABLE


def is_critical(pod: Pod, profile: Profile) -> bool:
    """Whether the pod is critical. To Kubernetes every pod from the node's files is. On a machine where all pods come
    from files no pod could then be evicted, so in the documents profile only the priority counts."""
    if (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY:
        return True
    if profile is Profile.DOCUMENTS:
        return pod.spec.priority is None and pod.spec.priority_class_name in CRITICAL_PRIORITIES
    annotations = pod.metadata.annotations
    source = annotations.get("kubernetes.io/config.source", "api")
    return source != "api" or "kubernetes.io/config.mirror" in annotations


def is_node_critical(pod: Pod, profile: Profile) -> bool:
    return is_critical(pod, profile) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL
