"""Cores of their own for Guaranteed containers that request whole cores (A23, `cpuManagerPolicy: static`).

An assignment that was made is kept for as long as its container lives: moving a running container would cost it the
caches that it asked for cores of its own to keep. One that is resized keeps those it can.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU
from evenkeel.api.scalars import parse_cpuset
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.qos import QoSClass, pod_class
from evenkeel.quantity import ZERO

ContainerKey = tuple[str, str]  # the pod's UID and the container's name


class Assignment(NamedTuple):
    exclusive: Mapping[ContainerKey, tuple[int, ...]]
    shared: tuple[int, ...]  # what everybody else runs on

    def of_pod(self, uid: str) -> Mapping[str, tuple[int, ...]]:
        return {name: cpus for (pod, name), cpus in self.exclusive.items() if pod == uid}


def assign(
    pods: Iterable[Pod],
    cpus: Sequence[int],
    reserved: Collection[int],
    profile: Profile,
    kept: Mapping[ContainerKey, tuple[int, ...]] | None = None,
    least_shared: int = 1,
) -> Assignment:
    """Cores for every container that is due some, in order of admission.

    `reserved` cores (`reservedSystemCPUs`) are nobody's; kubelet lets those share them that have none of their own.
    `least_shared` cores, and always one, stay shared: containers without cores of their own must run somewhere. A
    container for which too few are left runs on the shared ones, under its quota.
    """
    free = sorted(set(cpus) - set(reserved))
    least_shared = max(least_shared, 1)
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
        waiting.sort(key=lambda one: not kept.get(one[0]))  # nobody else is given what a resized one had
    for key, count in waiting:
        if count <= len(free) - least_shared:
            # Of a container whose number has changed, those it had. Else from the top: the kernel puts its own work on
            # the first cores.
            had = (kept or {}).get(key, ())
            chosen = sorted(free, key=lambda cpu: (cpu not in had, -cpu))[:count]
            exclusive[key] = tuple(sorted(chosen))
            free = [cpu for cpu in free if cpu not in chosen]
    shared = free if profile == Profile.DOCUMENTS else sorted({*free, *set(cpus).intersection(reserved)})
    return Assignment(exclusive, tuple(shared))


def assign_on(
    node: NodeView, pods: Iterable[Pod], kept: Mapping[ContainerKey, tuple[int, ...]] | None = None
) -> Assignment:
    """Cores on `node`, as its configuration has them: none are anybody's own unless the policy is static. Where cpu is
    reserved but not which CPUs, as many cores stay shared."""
    cpus = range(node.capacity.millicpu // 1000)
    if node.config.cpu_manager_policy != "static":
        return Assignment({}, ())
    reserved = parse_cpuset(node.config.reserved_system_cpus)
    unnamed = 0 if reserved else -(-node.reserved_millicpu // 1000)
    return assign(pods, cpus, reserved, node.profile, kept, least_shared=unnamed)


def whole_cores(pod: Pod, container: Container, profile: Profile) -> int:
    """How many cores of its own the container is due: 0 unless its pod is Guaranteed and it requests whole cores. An
    init container that ends gives nothing back for a while, so only sidecars and containers count."""
    if pod_class(pod, profile) != QoSClass.GUARANTEED:
        return 0
    if not container.is_sidecar and container not in pod.spec.containers:
        return 0
    millicpu = container.resources.requests.get(CPU, ZERO).milli
    return millicpu // 1000 if millicpu and millicpu % 1000 == 0 else 0
