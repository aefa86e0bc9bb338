"""OOM scores: which process the kernel's OOM killer should kill first (A12, E12)."""

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.policy.pod_resources import container_requests, has_pod_level_requests
from evenkeel.policy.qos import QoSClass, container_class, is_node_critical, pod_class
from evenkeel.quantity import ZERO

BEST_EFFORT_SCORE = 1000
INFRASTRUCTURE_SCORE = -999

_GUARANTEED_SCORE = {Profile.DOCUMENTS: -999, Profile.KUBERNETES: -997}
_LEAST_BURSTABLE_SCORE = {Profile.DOCUMENTS: 2, Profile.KUBERNETES: 3}
_GREATEST_BURSTABLE_SCORE = 999


def oom_score_adj(
    pod: Pod, container: Container, capacity_bytes: int, profile: Profile, qos: QoSClass | None = None
) -> int:
    """The `oom_score_adj` of every process in `container`. `qos` is the class of the pod, if it is known already."""
    if profile == Profile.DOCUMENTS:
        container_qos = container_class(container, MEMORY)
        request_bytes = _request_bytes(container)
    elif is_node_critical(pod, profile):
        container_qos = QoSClass.GUARANTEED
        request_bytes = 0
    else:
        container_qos = qos if qos is not None else pod_class(pod, profile)
        request_bytes = _request_with_part_of_pod_level(pod, container)
    if container_qos == QoSClass.GUARANTEED:
        return _GUARANTEED_SCORE[profile]
    if container_qos == QoSClass.BEST_EFFORT:
        return BEST_EFFORT_SCORE
    # The kernel adds the ‰ of memory that a process uses to its score. The sum is above 1000 if the container is above
    # its request, and below 1000 if it is within it. So containers above their request are killed first.
    score = 1000 - _per_mille(request_bytes, capacity_bytes)
    if profile == Profile.DOCUMENTS and request_bytes * 1000 > capacity_bytes * 998:
        score = _LEAST_BURSTABLE_SCORE[profile]  # A12: over 99.8 % of the node
    return min(max(score, _LEAST_BURSTABLE_SCORE[profile]), _GREATEST_BURSTABLE_SCORE)


def _request_bytes(container: Container) -> int:
    return container.resources.requests.get(MEMORY, ZERO).value


def _request_with_part_of_pod_level(pod: Pod, container: Container) -> int:
    """The request of a container plus its part of the pod-level request that no container claims. A sidecar counts as
    at least the smallest regular container, so that it is not killed before the containers that need it (E12)."""
    request = _request_bytes(container)
    if container.is_sidecar and any(other.name == container.name for other in pod.spec.init_containers):
        request = max(request, min((_request_bytes(other) for other in pod.spec.containers), default=0))
    return request + _unclaimed_pod_request(pod)


def _unclaimed_pod_request(pod: Pod) -> int:
    if not has_pod_level_requests(pod):
        return 0
    assert pod.spec.resources is not None
    of_pod = pod.spec.resources.requests.get(MEMORY, ZERO).value
    of_containers = container_requests(pod).get(MEMORY, ZERO).value
    count = len(pod.spec.containers) + len(pod.spec.init_containers)
    return max(of_pod - of_containers, 0) // count if count else 0


def _per_mille(part: int, whole: int) -> int:
    return 1000 * part // whole if whole > 0 else 1000
