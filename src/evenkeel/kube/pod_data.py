"""Data of the cluster's pods: fetches ConfigMaps, Secrets, and tokens of service accounts from the API server.

An object is fetched when the first pod refers to it, and watched until no pod does: a node may read an object only
while one of its pods refers to it. Right after a pod was bound the API server may not know that yet, so a refusal is
tried again. Tokens are bound to their pod and renewed at 80 % of their life.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Protocol

from evenkeel.agent.cluster_pods import ClusterPods
from evenkeel.agent.pod_store import PodChange
from evenkeel.api.data_objects import (
    CONFIG_MAP,
    SECRET,
    TOKEN,
    TOKEN_KEY,
    DataKey,
    DataObject,
    pod_tokens,
    read_object,
    references,
    token_name,
)
from evenkeel.api.decode import Findings
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.api.validation import validate_data
from evenkeel.api.volume_types import ServiceAccountTokenProjection
from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import NOT_FOUND, ApiError, Backoff, Client, Json, metadata_of, path_of
from evenkeel.kube.watch import DELETED, Watch
from evenkeel.named_tuples import NamedTuple

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 20.0)
_FIRST_SECONDS = 5.0  # a new pod waits at most this long for its data; then its status says what it lacks
_DEFAULT_TOKEN_SECONDS = 3600
_LONGEST_TOKEN_SECONDS = 86_400.0
_JITTER_SECONDS = 10.0
_PLURALS = {CONFIG_MAP: "configmaps", SECRET: "secrets"}


class PodChanges(Protocol):
    def watch(self) -> AsyncIterator[PodChange]: ...


class ClusterData(Protocol):
    def cluster_has(self, key: DataKey, one: DataObject | None) -> None: ...


class _Need(NamedTuple):
    """An object or a token. `users` are the UIDs of the pods that refer to it."""

    task: asyncio.Task[None]
    tried: asyncio.Event  # it was fetched, or is known not to be there
    users: set[str]


class PodData:
    """For the agent's event loop."""

    def __init__(
        self,
        client: Client,
        pods: ClusterPods,
        changes: PodChanges,
        data: ClusterData,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pods = pods
        self._changes = changes
        self._data = data
        self._clock = clock
        self._needs: dict[DataKey, _Need] = {}
        self._of_pod: dict[str, frozenset[DataKey]] = {}

    async def run(self) -> None:
        """Follows the agent's pods, until it is cancelled."""
        try:
            while True:
                async for change in self._changes.watch():  # the pods that there are come first
                    record = self._pods.get(change.pod.metadata.uid)
                    if record is None or (record.is_admitted and not record.takes_room):
                        self.forget(change.pod.metadata.uid)
                    else:
                        self._follow(record.pod)
        finally:
            for need in self._needs.values():
                need.task.cancel()

    async def first(self, pod: Pod) -> None:
        """Returns when each object that the pod needs was asked for once, or when that takes too long."""
        self._follow(pod)
        waits = [self._needs[key].tried.wait() for key in self._of_pod.get(pod.metadata.uid, ())]
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                await asyncio.gather(*waits)
        except TimeoutError:
            log.info("cluster: pod %s starts without all of its data: it takes too long", pod.key)

    def forget(self, uid: str) -> None:
        self._set(uid, frozenset(), {})

    def _follow(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        tokens = {DataKey(TOKEN, namespace, token_name(pod, one)): (pod, one) for one in pod_tokens(pod)}
        keys = frozenset(DataKey(kind, namespace, name) for kind, name in references(pod))
        self._set(pod.metadata.uid, keys, tokens)

    def _set(
        self,
        uid: str,
        keys: frozenset[DataKey],
        tokens: Mapping[DataKey, tuple[Pod, ServiceAccountTokenProjection]],
    ) -> None:
        before = self._of_pod.get(uid, frozenset())
        for key in keys - before:
            need = self._needs.get(key)
            if need is None:
                tried = asyncio.Event()
                work = self._keep_token(key, *tokens[key], tried) if key in tokens else self._keep(key, tried)
                need = self._needs[key] = _Need(asyncio.create_task(work), tried, set())
            need.users.add(uid)
        for key in before - keys:
            need = self._needs[key]
            need.users.discard(uid)
            if not need.users:
                need.task.cancel()
                del self._needs[key]
                self._data.cluster_has(key, None)
        if keys:
            self._of_pod[uid] = keys
        else:
            self._of_pod.pop(uid, None)

    # One object

    async def _keep(self, key: DataKey, tried: asyncio.Event) -> None:
        """Fetches the object, and then follows its changes, also if it is not there yet."""
        collection = path_of("api", "v1", "namespaces", key.namespace, _PLURALS[key.kind])
        version = await self._fetched(key, f"{collection}{path_of(key.name)}", tried)
        if version is not None:
            name = {"fieldSelector": f"metadata.name={key.name}"}  # a node may watch a single one only
            handler = _ObjectHandler(key, self._data)
            await Watch(self._client, collection, handler, str(key), name, version).run()

    async def _fetched(self, key: DataKey, path: str, tried: asyncio.Event) -> str | None:
        """The version from which the object can be watched; None if it never changes."""
        backoff = Backoff(*_BACKOFF_SECONDS)
        while True:
            try:
                value = await self._client.get(path)
                found = _read(key, value)
            except ApiError as error:
                if error.code == NOT_FOUND:
                    self._data.cluster_has(key, None)
                    tried.set()
                    return ""
                await backoff.wait()
            except EvenkeelError as error:
                log.debug("cluster: %s: %s", key, error)
                await backoff.wait()
            else:
                self._data.cluster_has(key, found)
                tried.set()
                return None if found.is_immutable else str(metadata_of(value).get("resourceVersion") or "")

    async def _keep_token(
        self, key: DataKey, pod: Pod, token: ServiceAccountTokenProjection, tried: asyncio.Event
    ) -> None:
        account = pod.spec.service_account_name or "default"
        path = path_of("api", "v1", "namespaces", key.namespace, "serviceaccounts", account, "token")
        bound = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
        }
        seconds = token.expiration_seconds or _DEFAULT_TOKEN_SECONDS
        spec: Json = {"expirationSeconds": seconds, "boundObjectRef": bound}
        spec["audiences"] = [token.audience] if token.audience else []
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        backoff = Backoff(*_BACKOFF_SECONDS)
        failure = ""
        while True:
            try:
                status = (await self._client.post(path, request)).get("status") or {}
                text, expires = (
                    str(status["token"]),
                    datetime.fromisoformat(str(status["expirationTimestamp"])),
                )
            except (EvenkeelError, KeyError, ValueError) as error:
                if str(error) != failure:
                    failure = str(error)
                    log.warning("cluster: the token of pod %s cannot be fetched: %s", pod.key, error)
                await backoff.wait()
                continue
            metadata = ObjectMeta(name=key.name, namespace=key.namespace)
            self._data.cluster_has(key, DataObject(TOKEN, metadata, {TOKEN_KEY: text.encode()}))
            tried.set()
            backoff.reset()
            failure = ""
            life = expires.timestamp() - self._clock()
            wait = min(life * 0.8, _LONGEST_TOKEN_SECONDS)
            await asyncio.sleep(max(wait - random.uniform(0, _JITTER_SECONDS), 1.0))  # noqa: S311 no secret


class _ObjectHandler:
    """A handler of the watch of one object."""

    def __init__(self, key: DataKey, data: ClusterData) -> None:
        self._key = key
        self._data = data

    def listed(self, objects: list[Json]) -> None:
        if not objects:
            self._data.cluster_has(self._key, None)
        for one in objects:
            self.changed("", one)

    def changed(self, type_: str, one: Json) -> None:
        self._data.cluster_has(self._key, None if type_ == DELETED else _read(self._key, one))


def _read(key: DataKey, value: Json) -> DataObject:
    """Raises EvenkeelError. Nothing of the content is in a message."""
    findings = Findings()
    fields = {name: item for name, item in value.items() if name not in ("apiVersion", "kind")}
    fields["metadata"] = {"name": key.name, "namespace": key.namespace}
    found = read_object(key.kind, fields, "", findings)
    if found is None or any(True for _ in validate_data(found)):
        raise EvenkeelError(f"{key} of the API server cannot be read")
    return found
