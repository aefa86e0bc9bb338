"""Answers made of the picture: each is encoded once for a sweep, for everybody who asks for it."""

import asyncio
from collections.abc import Awaitable, Callable

from evenkeel.agent.interface import Front
from evenkeel.agent.picture import Picture
from evenkeel.api.pod import Pod
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.server.http import to_json
from evenkeel.server.metrics import node_metrics
from evenkeel.server.metrics_cgroups import Labels, cadvisor_metrics, resource_metrics
from evenkeel.server.summary import summary
from evenkeel.server.view import plain_amounts, settings

_METRICS = {"": node_metrics, "resource": resource_metrics, "cadvisor": cadvisor_metrics}


class Readings:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._labels = Labels()
        self._made: dict[str, tuple[int, bytes]] = {}
        self._making = asyncio.Lock()

    async def summary(self, *, only_cpu_and_memory: bool) -> bytes:
        async def make(picture: Picture) -> bytes:
            return await summary(picture, only_cpu_and_memory=only_cpu_and_memory)

        return await self._once(f"summary {only_cpu_and_memory}", make)

    async def metrics(self, which: str) -> bytes:
        async def make(picture: Picture) -> bytes:
            return _METRICS[which](picture, self._labels)

        return await self._once(f"metrics {which}", make)

    async def explanation(self, key: str) -> bytes | None:
        """What the pod has in the kernel and why; None if there is no such pod."""
        picture = await self._front.picture()
        pod = next((one for one in picture.pods if one.key == key), None)
        return None if pod is None else to_json(_explained(picture, pod))

    async def _once(self, name: str, make: Callable[[Picture], Awaitable[bytes]]) -> bytes:
        async with self._making:
            picture = await self._front.picture()
            number, text = self._made.get(name, (0, b""))
            if number != picture.sweep.number:
                text = await make(picture)
                self._made[name] = (picture.sweep.number, text)
            return text


def _explained(picture: Picture, pod: Pod) -> dict[str, object]:
    status = pod.status
    return {
        "pod": pod.key,
        "uid": pod.metadata.uid,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "qosClass": status.qos_class,
        "requests": plain_amounts(pod_requests(pod)),
        "limits": plain_amounts(pod_limits(pod)),
        "cgroups": [
            {
                "path": cgroup.path,
                "parent": cgroup.path.rpartition("/")[0],
                "name": cgroup.container or pod.metadata.name,
                "kind": str(cgroup.kind),
                "qosClass": str(cgroup.qos),
                "container": cgroup.container,
                "memoryQosClass": str(cgroup.memory_qos),
                "cpuQosClass": str(cgroup.cpu_qos),
                "requests": plain_amounts(asked.requests) if asked is not None else {},
                "limits": plain_amounts(asked.limits) if asked is not None else {},
                "settings": settings(cgroup, picture.sweep.applied.get(cgroup.path)),
            }
            for cgroup in picture.sweep.tree.cgroups
            if cgroup.pod == pod.key
            for asked in [
                next(
                    (one.resources for one in pod.spec.every_container if one.name == cgroup.container),
                    None,
                )
            ]
        ],
    }
