"""Answers that are encoded once for all clients: those computed from the node snapshot, and pods."""

import asyncio
from collections.abc import Awaitable, Callable

from evenkeel.agent.front import Front
from evenkeel.agent.observe.node_snapshot import NodeSnapshot
from evenkeel.agent.observe.pod_history import (
    HistoryEntry,
    PodHistory,
    end_sentence,
    sentence,
    stayed_sentence,
)
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.server.http import to_json
from evenkeel.server.metrics import node_metrics
from evenkeel.server.metrics_cgroups import Labels, cadvisor_metrics, resource_metrics
from evenkeel.server.summary import summary
from evenkeel.server.view import plain_amounts, settings

_SPARE_TEXTS = 256  # texts of deleted pods that may be kept
_METRICS = {"": node_metrics, "resource": resource_metrics, "cadvisor": cadvisor_metrics}


class SnapshotAnswers:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._labels = Labels()
        self._made: dict[str, tuple[int, bytes]] = {}
        self._making = asyncio.Lock()

    async def summary(self, *, only_cpu_and_memory: bool) -> bytes:
        async def make(snapshot: NodeSnapshot) -> bytes:
            return await summary(snapshot, only_cpu_and_memory=only_cpu_and_memory)

        return await self._once(f"summary {only_cpu_and_memory}", make)

    async def metrics(self, which: str) -> bytes:
        async def make(snapshot: NodeSnapshot) -> bytes:
            return _METRICS[which](snapshot, self._labels)

        return await self._once(f"metrics {which}", make)

    async def explanation(self, key: str) -> bytes | None:
        """Every kernel setting of the pod and its reason; None if there is no such pod."""
        snapshot = await self._front.node_snapshot()
        pod = next((one for one in snapshot.pods if one.key == key), None)
        return None if pod is None else to_json(_explained(snapshot, pod))

    async def _once(self, name: str, make: Callable[[NodeSnapshot], Awaitable[bytes]]) -> bytes:
        async with self._making:
            snapshot = await self._front.node_snapshot()
            number, text = self._made.get(name, (0, b""))
            if number != snapshot.sweep.number:
                text = await make(snapshot)
                self._made[name] = (snapshot.sweep.number, text)
            return text


class PodTexts:
    """Pods as JSON. Each is encoded once for all clients until it changes. Deleted pods are forgotten now and then: a
    watch may still have to report their deletion."""

    def __init__(self, pods: Callable[[], tuple[Pod, ...]]) -> None:
        self._pods = pods
        self._texts: dict[str, tuple[Pod, bytes]] = {}

    def of(self, pod: Pod) -> bytes:
        known = self._texts.get(pod.key)
        if known is None or known[0] is not pod:
            text = to_json({"apiVersion": "v1", "kind": "Pod", **fields_of(pod)}).rstrip()
            known = self._texts[pod.key] = (pod, text)
            if len(self._texts) > _SPARE_TEXTS:
                self._forget_some()
        return known[1]

    def _forget_some(self) -> None:
        pods = self._pods()
        if len(self._texts) > len(pods) + _SPARE_TEXTS:
            keys = {pod.key for pod in pods}
            self._texts = {key: known for key, known in self._texts.items() if key in keys}


def _explained(snapshot: NodeSnapshot, pod: Pod) -> dict[str, object]:
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
                "settings": settings(cgroup, snapshot.sweep.applied.get(cgroup.path)),
            }
            for cgroup in snapshot.sweep.tree.cgroups
            if cgroup.pod == pod.key
            for asked in [
                next(
                    (one.resources for one in pod.spec.every_container if one.name == cgroup.container),
                    None,
                )
            ]
        ],
    }


def history_answer(history: PodHistory) -> dict[str, object]:
    return {
        **fields_of(history),
        "chapters": [_entry(entry) for entry in history.chapters],
        "end": end_sentence(history),
    }


def _entry(entry: HistoryEntry) -> dict[str, object]:
    stayed = [
        {**fields_of(other), "sentence": stayed_sentence(other, entry.resource)} for other in entry.stayed
    ]
    return {**fields_of(entry), "sentence": sentence(entry), **({"stayed": stayed} if stayed else {})}


def fields_of(value: object) -> dict[str, object]:
    fields = encode(value)
    assert isinstance(fields, dict)
    return fields
