"""The pods that a cluster's API server gave to this node, and a copy of their data in memory. The room `kube` brings
them here.

Such a pod is known by its UID. It is never replaced by another one in place, and it leaves only when the API server
says so. Its state is in the journal, so it runs on while the API server is away.

The ConfigMaps, Secrets and tokens that running pods refer to are copied. An agent that is started while the API server
is away finds the copy. So containers restart with the data that their pod had. The copy is in a tmpfs that ends with
the pod: no Secret of a cluster gets to the disk.
"""

import asyncio
import binascii
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.in_place_changes import InPlaceChanges
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.data_objects import DataKey, DataObject, PodData
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.journal.records import CLUSTER, NORMAL, PodRecord
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.pod_state import TerminalStatus
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.memory_mounts import write_private
from evenkeel.runtime.paths import StatePaths, read_json

log = logging.getLogger(__name__)

_TERMINATED = "Terminated"
_SHUT_DOWN = "Pod was terminated in response to imminent node shutdown."
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class ClusterPods(PodObserver):
    """For the agent's event loop."""

    def __init__(
        self,
        pod_store: PodStore,
        in_place: InPlaceChanges,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
    ) -> None:
        self._is_joined = False
        self._pod_store = pod_store
        self._in_place = in_place
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._is_shutting_down = False
        # By namespace/name: pods that wait until the other pod of their name is gone.
        self._waiting: dict[str, Pod] = {}

    def __iter__(self) -> Iterator[PodRecord]:
        return (record for record in self._pod_store if record.source == CLUSTER)

    @property
    def is_joined(self) -> bool:
        """Whether this machine is a node of a cluster now. Then only the cluster deletes its pods."""
        return self._is_joined

    def join(self) -> None:
        self._is_joined = True

    def get(self, uid: str) -> PodRecord | None:
        record = self._pod_store.get(uid)
        return record if record is not None and record.source == CLUSTER else None

    def shown(self, uid: str) -> Pod | None:
        """The pod with its status, as it was last committed."""
        record = self.get(uid)
        pod = self._pod_store.shown_by_key(record.pod.key) if record is not None else None
        return pod if pod is not None and pod.metadata.uid == uid else None

    def keep_times(self, uid: str, transitions: Mapping[str, tuple[str, str]]) -> None:
        """Keeps the times of the pod's conditions that a former agent has reported to the cluster (`PodStore`)."""
        if self.get(uid) is not None:
            self._pod_store.keep_times(uid, transitions)

    def put(self, pod: Pod) -> None:
        """Runs the pod, or brings it to its present specification."""
        uid = pod.metadata.uid
        record = self.get(uid)
        if record is not None:
            if record.state.deleted_at is None and _has_same_containers(record.pod, pod):
                self._in_place.update(record, pod)
            return
        if (other := self._pod_store.by_key(pod.key)) is not None:
            if other.source != CLUSTER and self._waiting.get(pod.key) != pod:
                log.warning(
                    "cluster: pod %s waits: a pod of that name was handed in on this machine", pod.key
                )
            self._waiting[pod.key] = pod
            return
        self._add(pod)

    def end(self, uid: str, grace_seconds: float) -> None:
        """Ends the pod within this time, or sooner if a shorter time was given before."""
        for key, pod in tuple(self._waiting.items()):
            if pod.metadata.uid == uid:
                del self._waiting[key]
        record = self.get(uid)
        if record is None:
            return
        if record.state.deleted_at is None:
            self._event_recorder.record(NORMAL, "Deleted", "the cluster has deleted the pod", record.pod)
        state = stops.deleted(record.pod, record.state, self._clock(), grace_seconds)
        self._pod_store.put_state(uid, state)
        self._steps.want_step(uid)

    def shut_down(self, grace: Callable[[Pod], float | None]) -> None:
        """Ends pods because the node is shut down, each within the time that `grace` gives it; None: not yet. They are
        failed, and their owners make others elsewhere. Pods that come from now on are refused."""
        self._is_shutting_down = True
        now = self._clock()
        for record in self:
            seconds = grace(record.pod)
            if seconds is None or record.state.verdict is not None:
                continue
            self._event_recorder.record(NORMAL, _TERMINATED, _SHUT_DOWN, record.pod)
            terminal = TerminalStatus("Failed", _TERMINATED, _SHUT_DOWN, now, seconds, is_disruption=True)
            self._pod_store.put_state(record.uid, changes.with_terminal_status(record.state, terminal))
            self._steps.want_step(record.uid)

    def gone(self, record: PodRecord) -> None:
        waiting = self._waiting.get(record.pod.key)
        if waiting is not None and self._pod_store.by_key(record.pod.key) is None:
            del self._waiting[record.pod.key]
            self._add(waiting)

    def _add(self, pod: Pod) -> None:
        record = self._pod_store.add(pod, CLUSTER, self._clock())
        if self._is_shutting_down:
            refused = TerminalStatus("Failed", "NodeShutdown", "the node is being shut down", self._clock())
            self._pod_store.put_state(record.uid, changes.with_terminal_status(record.state, refused))
        self._steps.want_step(pod.metadata.uid)
        self._steps.room_appeared()


def _has_same_containers(before: Pod, after: Pod) -> bool:
    """Ephemeral containers may be added. None is ever removed."""
    names = [[each.name for each in pod.spec.sized_containers] for pod in (before, after)]
    kept = {one.name for one in before.spec.ephemeral_containers}
    return names[0] == names[1] and kept <= {one.name for one in after.spec.ephemeral_containers}


class ClusterDataCopies(PodObserver):
    """For the agent's event loop. `spawn` runs work beside the pod loop. New data comes only while this machine is a
    node of a cluster (`is_joined`)."""

    def __init__(
        self, paths: StatePaths, data: DataStore, is_joined: Callable[[], bool], spawn: Spawn
    ) -> None:
        self._paths = paths
        self._data = data
        self._is_joined = is_joined
        self._spawn = spawn
        self._written: dict[str, PodData] = {}  # by UID

    def take_up(self, records: Iterable[PodRecord]) -> None:
        """Takes the data that the pods had with a former agent."""
        for record in records:
            if record.source == CLUSTER:
                for key, one in _read(self._paths, record.uid):
                    self._data.cluster_has(key, one)
                self._written[record.uid] = self._data.of_pod(record.pod)

    def settled(self, uid: str, record: PodRecord | None) -> None:
        if record is None or record.source != CLUSTER or not self._is_joined():
            return
        if record.state.deleted_at is not None:
            return
        if not any(container.is_running for container in record.state.containers.values()):
            return
        data = self._data.of_pod(record.pod)
        if data and data != self._written.get(uid):
            self._written[uid] = data
            self._spawn(self._write(uid, data))

    def gone(self, record: PodRecord) -> None:
        self._written.pop(record.uid, None)

    async def _write(self, uid: str, data: PodData) -> None:
        value = {"objects": [_encoded(one) for one in data.values() if isinstance(one, DataObject)]}
        try:
            await asyncio.to_thread(write_private, self._paths.cluster_data(uid), value, self._paths)
        except OSError as error:  # without root there are no mounts: a later agent needs the API server then
            log.debug("the data of pod %s has no copy: %s", uid, error)


def _encoded(one: DataObject) -> Mapping[str, object]:
    content = {key: binascii.b2a_base64(value, newline=False).decode() for key, value in one.content.items()}
    return {
        "kind": one.kind,
        "namespace": one.metadata.namespace,
        "name": one.metadata.name,
        "content": content,
        "binary": sorted(one.binary),
        "type": one.type,
        "immutable": one.is_immutable,
    }


def _read(paths: StatePaths, uid: str) -> list[tuple[DataKey, DataObject]]:
    directory, _, name = paths.cluster_data(uid).rpartition("/")
    found = []
    for one in (read_json(directory, name) or {}).get("objects", ()):
        key = DataKey(one["kind"], one["namespace"], one["name"])
        content = {name: binascii.a2b_base64(value) for name, value in one["content"].items()}
        metadata = ObjectMeta(name=key.name, namespace=key.namespace)
        binary = frozenset(one["binary"])
        found.append((key, DataObject(key.kind, metadata, content, binary, one["type"], one["immutable"])))
    return found
