"""Cores of their own for Guaranteed containers that request whole cores (A23, `cpuManagerPolicy: static`).

An assignment that was made is kept for as long as its container lives: moving a running container would cost it the
caches that it asked for cores of its own to keep.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.profile import Profile
from evenkeel.api.resources import CPU
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
    reserved: Iterable[int],
    profile: Profile,
    kept: Mapping[ContainerKey, tuple[int, ...]] | None = None,
) -> Assignment:
    """Cores for every container that is due some, in order of admission.

    `reserved` cores (`reservedSystemCPUs`) are nobody's. One core always stays shared: containers without cores of
    their own must run somewhere. A container for which too few are left runs on the shared ones, under its quota.
    """
    free = sorted(set(cpus) - set(reserved))
    exclusive: dict[ContainerKey, tuple[int, ...]] = {}
    waiting: list[tuple[ContainerKey, int]] = []
    for pod in pods:
        for container in pod.spec.every_container:
            count = whole_cores(pod, container, profile)
            if not count:
                continue
            key = (pod.metadata.uid, container.name)
            before = (kept or {}).get(key, ())
            if len(before) == count and set(before) <= set(free):
                exclusive[key] = before
                free = [cpu for cpu in free if cpu not in before]
            else:
                waiting.append((key, count))
    for key, count in waiting:
        if count < len(free):
            # From the top: the kernel puts its own work on the first cores.
            exclusive[key] = tuple(free[-count:])
            del free[-count:]
    return Assignment(exclusive, tuple(free))


def whole_cores(pod: Pod, container: Container, profile: Profile) -> int:
    """How many cores of its own the container is due: 0 unless its pod is Guaranteed and it requests whole cores. An
    init container that ends gives nothing back for a while, so only sidecars and containers count."""
    if pod_class(pod, profile) != QoSClass.GUARANTEED:
        return 0
    if not container.is_sidecar and container not in pod.spec.containers:
        return 0
    millicpu = container.resources.requests.get(CPU, ZERO).milli
    return millicpu // 1000 if millicpu and millicpu % 1000 == 0 else 0
