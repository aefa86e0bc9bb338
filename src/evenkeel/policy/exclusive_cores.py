"""Exclusive cores for Guaranteed containers that request whole cores (A23, `cpuManagerPolicy: static`).

A container keeps its cores as long as it lives: on other cores it would lose the caches that it has exclusive cores
for. A container that is resized keeps as many of its cores as possible.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU
from evenkeel.api.scalars import parse_cpuset
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.qos import QoSClass, pod_class
from evenkeel.quantity import ZERO

ContainerKey = tuple[str, str]  # the pod's UID and the container's name


class Assignment(NamedTuple):
    exclusive: Mapping[ContainerKey, tuple[int, ...]]
    shared: tuple[int, ...]  # for all other containers

    def of_pod(self, uid: str) -> Mapping[str, tuple[int, ...]]:
        return {name: cpus for (pod, name), cpus in self.exclusive.items() if pod == uid}


def assign(
    pods: Iterable[Pod],
    cpus: Sequence[int],
    reserved: Collection[int],
    profile: Profile,
    kept: Mapping[ContainerKey, tuple[int, ...]] | None = None,
    least_shared: int = 0,
) -> Assignment:
    """Exclusive cores for every container that has a right to them, in order of admission.

    `reserved` cores (`reservedSystemCPUs`) are never exclusive. At least `least_shared` cores, and always one, stay
    shared, because the other containers must run somewhere. In kubelet's profile the reserved cores are shared, so all
    others may become exclusive. A container for which too few cores are left runs on the shared cores, under its quota.
    """
    free = sorted(set(cpus) - set(reserved))
    is_as_kubelet = profile == Profile.KUBERNETES
    reserved_shared = set(cpus).intersection(reserved) if is_as_kubelet else set()
    least_shared = max(least_shared, 0 if reserved_shared else 1)
    exclusive: dict[ContainerKey, tuple[int, ...]] = {}
    waiting: list[tuple[ContainerKey, int]] = []
    for pod in pods:
        for container in pod.spec.every_container:
            count = whole_cores(pod, container, profile)
            if not count:
                continue
            key = (pod.metadata.uid, container.name)
            before = (kept or {}).get(key, ())
            if len(set(before)) == count <= len(free) - least_shared and set(before) <= set(free):
                exclusive[key] = tuple(sorted(set(before)))
                free = [cpu for cpu in free if cpu not in before]
            else:
                waiting.append((key, count))
    if kept:
        # First the resized ones, so that they keep their cores.
        waiting.sort(key=lambda one: not kept.get(one[0]))
    for key, count in waiting:
        if count <= len(free) - least_shared:
            # A container whose number has changed keeps cores that it had. Otherwise take the last cores, because the
            # kernel does its own work on the first. Kubelet takes the first; which of several sockets or threads of a
            # core it prefers is not followed.
            had = (kept or {}).get(key, ())
            chosen = sorted(free, key=lambda cpu: (cpu not in had, cpu if is_as_kubelet else -cpu))[:count]
            exclusive[key] = tuple(sorted(chosen))
            free = [cpu for cpu in free if cpu not in chosen]
    return Assignment(exclusive, tuple(sorted({*free, *reserved_shared})))


def assign_on(
    node: NodeView, pods: Iterable[Pod], kept: Mapping[ContainerKey, tuple[int, ...]] | None = None
) -> Assignment:
    """The assignment for `node`, by its configuration. Without the static policy no core is exclusive. If cpu is
    reserved as an amount, that many cores stay shared; in kubelet's profile these are the first ones."""
    cpus = range(node.capacity.millicpu // 1000)
    if node.config.cpu_manager_policy != "static":
        return Assignment({}, ())
    reserved = parse_cpuset(node.config.reserved_system_cpus)
    unnamed = 0 if reserved else -(-node.reserved_millicpu // 1000)
    if node.profile == Profile.KUBERNETES and unnamed:
        reserved, unnamed = tuple(cpus[:unnamed]), 0
    return assign(pods, cpus, reserved, node.profile, kept, least_shared=unnamed)


def whole_cores(pod: Pod, container: Container, profile: Profile) -> int:
    """How many exclusive cores the container has a right to: 0 unless its pod is Guaranteed and it requests whole
    cores. An init container that is no sidecar gets none, because its cores would be idle after its end."""
    if pod_class(pod, profile) != QoSClass.GUARANTEED:
        return 0
    if not container.is_sidecar and container not in pod.spec.containers:
        return 0
    millicpu = container.resources.requests.get(CPU, ZERO).milli
    return millicpu // 1000 if millicpu and millicpu % 1000 == 0 else 0
