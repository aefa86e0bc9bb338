"""Mirror pods: objects in the cluster for the pods that were applied on this machine itself.

The machine has the pod, and the mirror only shows it: with its requests, so that the scheduler knows what is taken, and
with its status. A mirror that a user deletes is made again. It is removed when its pod is gone."""

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from evenkeel.agent.cluster_pods import ClusterPods
from evenkeel.agent.pod_store import DELETED as LEFT
from evenkeel.agent.pod_store import PodChange
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import CONFLICT, NOT_FOUND, ApiError, Client, Json, path_of
from evenkeel.kube.pod_object import (
    MIRROR,
    TERMINAL,
    is_deleted,
    is_mirror,
    phase_of,
    pod_path,
    status_patch,
    uid_of,
    wanted_status,
)
from evenkeel.kube.watch import DELETED, WatchHandler
from evenkeel.kube.work_queue import WorkQueue

log = logging.getLogger(__name__)

_INVALID = 422
_LONGEST_NAME = 253
_PREFIX = "kubernetes.io/config."
# Fields that a mirror does not have. It must not refer to objects of the cluster, and objects of this machine mean
# nothing there.
_LEFT_OUT = ("priority", "runtimeClassName", "overhead", "serviceAccountName", "imagePullSecrets")
_SHOWN_VOLUMES = ("emptyDir", "hostPath")
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")  # those that every cluster has
_STAYS = {"operator": "Exists", "effect": "NoExecute"}  # no taint ends a pod of this machine


class LocalPods(Protocol):
    def pods(self) -> tuple[Pod, ...]: ...
    def watch(self) -> AsyncIterator[PodChange]: ...


class MirrorPods:
    """A handler of the watch of pods, for those that are mirrors. For the agent's event loop."""

    def __init__(
        self,
        client: Client,
        local: LocalPods,
        cluster_pods: ClusterPods,
        node_name: str,
        node_uid: Callable[[], str],
        addresses: tuple[str, str],
    ) -> None:
        """`addresses` are the node's address in the cluster, and the agent's address of this machine."""
        self._client = client
        self._local = local
        self._cluster_pods = cluster_pods
        self._node_name = node_name
        self._node_uid = node_uid
        self._addresses = addresses
        self._is_listed = False
        self._pods: dict[str, Pod] = {}  # by the mirror's namespace/name: the pods of this machine
        self._mirrors: dict[str, Json] = {}  # by namespace/name, as the API server has them
        self._queue = WorkQueue(self._deliver, "a mirror pod")

    # From the API server

    def listed(self, objects: list[Json]) -> None:
        self._mirrors = {_key(one): one for one in objects}
        self._is_listed = True
        for key in self._mirrors.keys() | self._pods.keys():
            self._queue.want(key)

    def changed(self, type_: str, one: Json) -> None:
        key = _key(one)
        if type_ != DELETED:
            self._mirrors[key] = one
        elif key in self._mirrors and uid_of(self._mirrors[key]) == uid_of(one):
            del self._mirrors[key]
        self._queue.want(key)

    def has(self, namespace: str, name: str) -> bool:
        """Whether the API server has a mirror of that name for this node."""
        one = self._mirrors.get(f"{namespace}/{name}")
        return one is not None and is_mirror(one)

    # From the agent

    async def follow_agent(self) -> None:
        """Hears of every change of a pod here, until it is cancelled."""
        while True:
            # A reader that was too slow is dropped, and a pod may have left meanwhile.
            before, self._pods = self._pods, {}
            for pod in self._local.pods():
                self._take(pod)
            for key in before:
                self._queue.want(key)
            async for change in self._local.watch():
                if change.type != LEFT:
                    self._take(change.pod)
                    continue
                key = self._key_of(change.pod)
                if key in self._pods and self._pods[key].metadata.uid == change.pod.metadata.uid:
                    del self._pods[key]
                    self._queue.want(key)

    def _take(self, pod: Pod) -> None:
        if self._cluster_pods.get(pod.metadata.uid) is None:
            key = self._key_of(pod)
            self._pods[key] = pod
            self._queue.want(key)

    def _key_of(self, pod: Pod) -> str:
        return f"{_namespace(pod)}/{mirror_name(pod, self._node_name)}"

    # To the API server

    async def deliver(self) -> None:
        """Delivers mirrors, until it is cancelled."""
        await self._queue.run()

    async def _deliver(self, key: str) -> None:
        if not self._is_listed:
            return
        pod = self._pods.get(key)
        wanted = mirror_of(pod, self._node_name, self._node_uid()) if pod is not None else None
        has = self._mirrors.get(key)
        if has is not None and (wanted is None or pod is None or _is_outdated(has, wanted, pod)):
            await self._remove(key, has)
            has = None
        if wanted is None or pod is None:
            return
        if has is None:
            has = await self._made(wanted)
            self._mirrors[key] = has
        await self._send_status(key, has, pod)

    async def _made(self, wanted: Json) -> Json:
        metadata = wanted["metadata"]
        try:
            return await self._client.post(
                path_of("api", "v1", "namespaces", metadata["namespace"], "pods"), wanted
            )
        except ApiError as error:
            if error.code != CONFLICT:
                raise
        has = await self._client.get(pod_path(wanted))
        if not is_mirror(has):
            raise EvenkeelError(f"the cluster has another pod {metadata['namespace']}/{metadata['name']}")
        return has

    async def _send_status(self, key: str, has: Json, pod: Pod) -> None:
        if not pod.status.phase:
            return  # it is not committed yet: a change follows
        generation = has["metadata"].get("generation")
        metadata = pod.metadata._replace(generation=generation if isinstance(generation, int) else 0)
        wanted = wanted_status(pod._replace(metadata=metadata), has, *self._addresses)
        patch = status_patch(uid_of(has), wanted, has.get("status") or {})
        if patch is None:
            return
        try:
            after = await self._client.patch(f"{pod_path(has)}/status", patch)
        except ApiError as error:
            if error.code not in (NOT_FOUND, CONFLICT, _INVALID):
                raise
            # The mirror is gone, or the API server refuses such a change of status: a new mirror is made.
            await self._remove(key, has)
            self._queue.want(key)
            return
        if key in self._mirrors and uid_of(self._mirrors[key]) == uid_of(has):
            self._mirrors[key] = {**self._mirrors[key], "status": after.get("status") or {}}

    async def _remove(self, key: str, has: Json) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(has)}}
        try:
            await self._client.delete(pod_path(has), body)
        except ApiError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise
        if key in self._mirrors and uid_of(self._mirrors[key]) == uid_of(has):
            del self._mirrors[key]


class PodsAndMirrors:
    """A handler of the watch of pods, which has one handler for mirrors and one for all others."""

    def __init__(self, pods: WatchHandler, mirrors: WatchHandler) -> None:
        self._pods = pods
        self._mirrors = mirrors

    def listed(self, objects: list[Json]) -> None:
        self._pods.listed([one for one in objects if not is_mirror(one)])
        self._mirrors.listed([one for one in objects if is_mirror(one)])

    def changed(self, type_: str, one: Json) -> None:
        (self._mirrors if is_mirror(one) else self._pods).changed(type_, one)


def mirror_name(pod: Pod, node_name: str) -> str:
    return f"{pod.metadata.name}-{node_name}"


def mirror_of(pod: Pod, node_name: str, node_uid: str) -> Json | None:
    """The mirror of a pod, without its status; None if it would have too long a name."""
    name = mirror_name(pod, node_name)
    if len(name) > _LONGEST_NAME:
        return None
    spec = _mirror_spec(pod, node_name)
    labels = dict(pod.metadata.labels)
    content = json.dumps([pod.metadata.uid, spec, labels], sort_keys=True)
    hash_ = hashlib.sha256(content.encode()).hexdigest()[:32]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
    annotations = {
        **{key: value for key, value in pod.metadata.annotations.items() if not key.startswith(_PREFIX)},
        f"{_PREFIX}source": "file",
        f"{_PREFIX}seen": pod.metadata.creation_timestamp or "",
        f"{_PREFIX}hash": hash_,
        MIRROR: hash_,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": _namespace(pod),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _mirror_spec(pod: Pod, node_name: str) -> Json:
    spec = encode(pod.spec)
    assert isinstance(spec, dict)
    for field in _LEFT_OUT:
        spec.pop(field, None)
    if spec.get("priorityClassName") not in _SYSTEM_CLASSES:
        spec.pop("priorityClassName", None)
    spec["volumes"] = [
        one for one in spec.get("volumes") or () if any(kind in one for kind in _SHOWN_VOLUMES)
    ]
    shown = {one["name"] for one in spec["volumes"]}
    for field in ("initContainers", "containers"):
        for one in spec.get(field) or ():
            one.pop("envFrom", None)
            refers = ("configMapKeyRef", "secretKeyRef")
            one["env"] = [
                each
                for each in one.get("env") or ()
                if not any(kind in (each.get("valueFrom") or {}) for kind in refers)
            ]
            one["volumeMounts"] = [each for each in one.get("volumeMounts") or () if each["name"] in shown]
    spec["tolerations"] = [*(spec.get("tolerations") or ()), _STAYS]
    spec["nodeName"] = node_name
    return spec


def _is_outdated(has: Json, wanted: Json, pod: Pod) -> bool:
    """Whether the mirror must be replaced: it shows another pod, it was deleted, or its pod runs again after its
    end."""
    shown = has["metadata"]["annotations"].get(MIRROR)
    is_back = phase_of(has) in TERMINAL and bool(pod.status.phase) and pod.status.phase not in TERMINAL
    return shown != wanted["metadata"]["annotations"][MIRROR] or is_deleted(has) or is_back


def _namespace(pod: Pod) -> str:
    return pod.metadata.namespace or "default"


def _key(one: Json) -> str:
    return f"{one['metadata'].get('namespace')}/{one['metadata']['name']}"
