"""The agent's events as Events of the cluster: those of its pods, and those of the node.

Repeats are counted. If there are too many, or the API server is away, events are dropped: the journal has them all.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Protocol

from evenkeel.agent.cluster_pods import ClusterPods
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import WARNING, Event
from evenkeel.kube.api_client import NOT_FOUND, ApiError, Client, Json, path_of
from evenkeel.kube.pod_object import NotHonoured
from evenkeel.policy.lifecycle.pod_status import timestamp

log = logging.getLogger(__name__)

_A_SECOND, _BURST = 50.0, 100.0
_MOST_KNOWN = 1024
_MOST_LETTERS = 1024  # of a message, the API server's limit
_LONGEST_NAME = 200


class EventSource(Protocol):
    def follow(self) -> AsyncIterator[Event]: ...


class EventPublisher:
    """For the agent's event loop."""

    def __init__(self, client: Client, node: str, pods: ClusterPods, source: EventSource) -> None:
        self._client = client
        self._node = node
        self._pods = pods
        self._source = source
        self._names: OrderedDict[int, str] = (
            OrderedDict()
        )  # by the number in the journal: the path of the Event
        self._tokens = _BURST
        self._at = time.monotonic()
        self._own: asyncio.Queue[tuple[Json, Event]] = asyncio.Queue(maxsize=100)

    async def run(self) -> None:
        """Publishes events, until it is cancelled."""
        while True:
            async for event in self._source.follow():
                about = self._about(event)
                if about is not None and self._may_send():
                    await self._publish(event, about)

    async def run_own(self) -> None:
        """Publishes events that are not in the agent's journal, until it is cancelled."""
        while True:
            about, event = await self._own.get()
            await self._publish(event._replace(number=-1), about)

    def refused(self, one: Json, refused: NotHonoured) -> None:
        """This node cannot run the pod."""
        message, reason = refused
        metadata = one["metadata"]
        log.warning("cluster: pod %s cannot run here: %s", metadata.get("name"), message)
        about = _reference("Pod", str(metadata["name"]), str(metadata["uid"]), str(metadata.get("namespace")))
        self._put(about, reason, message)

    def rebooted(self, boot_id: str) -> None:
        """The machine was rebooted since the last status that the API server has."""
        about = _reference("Node", self._node, self._node, "")
        self._put(about, "Rebooted", f"Node {self._node} has been rebooted, boot id: {boot_id}")

    def _put(self, about: Json, reason: str, message: str) -> None:
        if not self._own.full():
            self._own.put_nowait((about, Event(time.time(), WARNING, reason, message)))

    def _about(self, event: Event) -> Json | None:
        if not event.uid:
            return _reference("Node", self._node, self._node, "")
        record = self._pods.get(event.uid)
        if record is None:
            return None
        metadata = record.pod.metadata
        about = _reference("Pod", metadata.name, metadata.uid, metadata.namespace)
        if event.container:
            about["fieldPath"] = f"spec.{_list_of(record.pod, event.container)}{{{event.container}}}"
        return about

    def _may_send(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._at) * _A_SECOND, _BURST)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _publish(self, event: Event, about: Json) -> None:
        try:
            known = self._names.get(event.number)
            if known is not None and await self._counted(known, event):
                return
            namespace = about["namespace"] or "default"
            path = path_of("api", "v1", "namespaces", namespace, "events")
            name = f"{about['name'][:_LONGEST_NAME]}.{time.time_ns():016x}"
            await self._client.post(path, self._object(event, about, name, namespace))
            if event.number > 0:
                self._names[event.number] = f"{path}/{name}"
                if len(self._names) > _MOST_KNOWN:
                    self._names.popitem(last=False)
        except EvenkeelError as error:
            log.debug("cluster: an event was not published: %s", error)

    async def _counted(self, path: str, event: Event) -> bool:
        """Counts a repeat. False if the first Event has expired."""
        again = {"count": event.times, "lastTimestamp": timestamp(event.at), "message": _message(event)}
        try:
            await self._client.patch(path, again)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    def _object(self, event: Event, about: Json, name: str, namespace: str) -> Json:
        at = timestamp(event.at)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {key: value for key, value in about.items() if value},
            "reason": event.reason,
            "message": _message(event),
            "type": event.type,
            "count": event.times,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
        }


def _message(event: Event) -> str:
    return event.message[:_MOST_LETTERS]


def _list_of(pod: Pod, container: str) -> str:
    """The field of the pod's specification that has the container."""
    if pod.spec.ephemeral(container) is not None:
        return "ephemeralContainers"
    is_init = any(one.name == container for one in pod.spec.init_containers)
    return "initContainers" if is_init else "containers"


def _reference(kind: str, name: str, uid: str, namespace: str) -> Json:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "namespace": namespace}
