"""The ConfigMaps, Secrets and tokens that a cluster's pods refer to, and a copy of each running pod's data in memory.

An agent that is started while the API server is away finds the copy. So containers restart with the data that their pod
had. The copy is in a tmpfs that ends with the pod: no Secret of a cluster gets to the disk.
"""

import asyncio
import binascii
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from evenkeel.agent.data_store import DataStore
from evenkeel.api.data_objects import DataKey, DataObject, PodData
from evenkeel.api.pod import ObjectMeta
from evenkeel.journal.records import CLUSTER, PodRecord
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.memory_mounts import write_private
from evenkeel.runtime.paths import StatePaths, read_json

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], object]


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
