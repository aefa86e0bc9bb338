"""Synchronizes pods between the API server and the agent.

The API server says which pods should run, and the agent reports their status. Of each pod only the newest status is
delivered. Without the API server, statuses wait and pods go on. A pod that was deleted leaves the API server when
nothing of it is left on this machine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Protocol

from evenkeel.agent.cluster_pods import ClusterPods
from evenkeel.agent.pod_store import DELETED as LEFT
from evenkeel.agent.pod_store import PodChange
from evenkeel.api.config import Profile
from evenkeel.api.container import EnvVar
from evenkeel.api.pod import Pod
from evenkeel.kube.api_client import NOT_FOUND, ApiError, Client, Json
from evenkeel.kube.pod_object import (
    TERMINAL,
    NotHonoured,
    ended_status,
    grace_of,
    is_deleted,
    not_honoured_status,
    phase_of,
    pod_path,
    read_pod,
    status_patch,
    transitions_of,
    uid_of,
    wanted_status,
)
from evenkeel.kube.pod_objects import PodObjects
from evenkeel.kube.watch import DELETED
from evenkeel.kube.work_queue import WorkQueue

_GONE_GRACE_SECONDS = 1.0  # of a pod that the API server does not have any more


class PodChanges(Protocol):
    def watch(self) -> AsyncIterator[PodChange]: ...


class FirstData(Protocol):
    async def first(self, pod: Pod) -> None: ...
    def forget(self, uid: str) -> None: ...


class Handlers(Protocol):
    def with_handler(self, pod: Pod) -> Pod | NotHonoured: ...


class ServiceVariables(Protocol):
    def env(self, namespace: str, *, with_links: bool) -> tuple[EnvVar, ...]: ...


class PodSync:
    """A handler of the watch of pods. For the agent's event loop."""

    def __init__(
        self,
        client: Client,
        pods: ClusterPods,
        changes: PodChanges,
        services: ServiceVariables,
        handlers: Handlers,
        data: FirstData,
        profile: Profile,
        addresses: tuple[str, str],
        on_refusal: Callable[[Json, NotHonoured], None],
    ) -> None:
        """`addresses` are the node's address in the cluster, and the agent's address of this machine. `on_refusal` is
        called with a pod that this node cannot run, and the reason."""
        self._client = client
        self._pods = pods
        self._changes = changes
        self._services = services
        self._handlers = handlers
        self._data = data
        self._profile = profile
        self._addresses = addresses
        self._on_refusal = on_refusal
        self._objects = PodObjects()  # by UID: the pods as the API server has them
        self._refused: dict[str, NotHonoured] = {}  # by UID: why this node cannot run the pod
        # UIDs of pods that the agent has, and of removed pods whose last status was not read yet.
        self._here: set[str] = set()
        self._last: dict[str, Pod] = {}  # by UID: the last status of a pod that has left the agent
        self._starting: dict[str, Pod] = {}  # by UID: pods that wait for their data, at their newest
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue = WorkQueue(self._send, "the status of pods")

    # From the API server

    def listed(self, objects: list[Json]) -> None:
        found = {uid_of(one): one for one in objects}
        for uid in set(self._objects) - found.keys():
            self._forget(uid)
            self._pods.end(uid, _GONE_GRACE_SECONDS)  # it may wait for the end of another pod of its name
        for record in self._pods:
            if record.uid not in found:
                self._pods.end(record.uid, _GONE_GRACE_SECONDS)
        for one in objects:
            self._take(one)

    def changed(self, type_: str, one: Json) -> None:
        if type_ == DELETED:
            self._forget(uid_of(one))
            self._pods.end(uid_of(one), _GONE_GRACE_SECONDS)
        else:
            self._take(one)

    def handlers_changed(self) -> None:
        """A pod that was refused may find the handler of its RuntimeClass now."""
        for uid in tuple(self._refused):
            if (one := self._objects.get(uid)) is not None and not is_deleted(one):
                self._run(uid, one)

    def _take(self, one: Json) -> None:
        uid = uid_of(one)
        before = self._objects.get(uid)
        if before is None:
            self._pods.keep_times(uid, transitions_of(one))
        if is_deleted(one):
            self._pods.end(uid, grace_of(one))
        elif (before is None or _is_other(before, one)) and (
            self._pods.get(uid) is not None or phase_of(one) not in TERMINAL
        ):
            self._run(uid, one)
        self._objects.put(uid, one)  # only now: if the agent cannot take it, it comes again and is new again
        self._queue.want(uid)

    def _run(self, uid: str, one: Json) -> None:
        namespace = str(one["metadata"].get("namespace") or "")
        with_links = (one.get("spec") or {}).get("enableServiceLinks") is not False
        pod = read_pod(one, self._profile, self._services.env(namespace, with_links=with_links))
        if not isinstance(pod, NotHonoured):
            record = self._pods.get(uid)
            if record is None:
                pod = self._handlers.with_handler(pod)
            else:  # it keeps the handler that it was started with
                spec = pod.spec._replace(runtime_class_name=record.pod.spec.runtime_class_name)
                pod = pod._replace(spec=spec)
        if not isinstance(pod, NotHonoured):
            self._refused.pop(uid, None)
            if self._pods.get(uid) is not None:
                self._pods.put(pod)
            elif uid in self._starting:
                self._starting[uid] = pod
            else:
                self._starting[uid] = pod
                self._spawn(self._start(uid, pod))
        elif self._refused.get(uid) != pod:
            self._refused[uid] = pod
            self._on_refusal(one, pod)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, uid: str, pod: Pod) -> None:
        """Gives the pod to the agent when its data was asked for, unless it was deleted meanwhile."""
        await self._data.first(pod)
        pod = self._starting.pop(uid)
        one = self._objects.get(uid)
        if one is not None and not is_deleted(one):
            self._pods.put(pod)
        else:
            self._data.forget(uid)

    def _forget(self, uid: str) -> None:
        self._objects.discard(uid)
        self._refused.pop(uid, None)
        self._here.discard(uid)
        self._last.pop(uid, None)
        self._queue.forget(uid)
        if self._pods.get(uid) is None and uid not in self._starting:
            self._data.forget(uid)  # it has waited for the end of another pod, and the agent never had it

    # To the API server

    async def follow_agent(self) -> None:
        """Hears of every change of a pod here, until it is cancelled."""
        while True:
            # A reader that was too slow is dropped, and a pod may have left meanwhile.
            self._here.clear()
            for uid in self._objects:
                self._queue.want(uid)
            async for change in self._changes.watch():
                uid = change.pod.metadata.uid
                if uid in self._objects:
                    if change.type == LEFT:
                        self._here.discard(uid)
                        self._last[uid] = change.pod
                    self._queue.want(uid)

    async def delivered(self) -> None:
        """Waits until the API server has the present status of every pod. A delivery that fails is not waited for."""
        for uid in self._objects:
            self._queue.want(uid)
        await self._queue.idle()

    async def deliver(self) -> None:
        """Delivers statuses, until it is cancelled."""
        try:
            await self._queue.run()
        finally:
            for task in self._tasks:
                task.cancel()

    async def _send(self, uid: str) -> None:
        one = self._objects.get(uid)
        if one is None:
            return
        try:
            if self._pods.get(uid) is not None:
                self._here.add(uid)
                await self._send_status(uid, one)
            elif uid in self._here:
                return  # the agent has just removed it: its last status follows
            elif is_deleted(one):
                await self._remove(uid, one)
            elif uid in self._refused and phase_of(one) not in TERMINAL:
                await self._patch(uid, one, not_honoured_status(one, self._refused[uid]))
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise  # a conflict, too: many have written at once, or another pod has its name, as the watch says
            # The pod is gone: the watch says so, too.

    async def _send_status(self, uid: str, one: Json) -> None:
        shown = self._pods.shown(uid)
        if shown is None or not shown.status.phase:
            return  # it is not committed yet: a change follows
        # A pod that was ended is terminal for the API server only when nothing of it is left here.
        await self._patch(uid, one, wanted_status(shown, one, *self._addresses))

    async def _remove(self, uid: str, one: Json) -> None:
        """Nothing of the pod is left here: its last status, and then it leaves the API server."""
        last = self._last.get(uid)
        status = one.get("status") or {}
        wanted = wanted_status(last, one, *self._addresses) if last is not None else ended_status(status)
        if wanted.get("phase") not in TERMINAL:
            wanted = ended_status({**status, **wanted})
        if phase_of(one) not in TERMINAL or last is not None:
            await self._patch(uid, one, wanted)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._client.delete(pod_path(one), body)

    async def _patch(self, uid: str, one: Json, wanted: Json) -> None:
        patch = status_patch(uid, wanted, one.get("status") or {})
        if patch is None:
            return
        version = self._objects.version(uid)
        after = await self._client.patch(f"{pod_path(one)}/status", patch)
        # If the versions differ, the watch has reported a newer state meanwhile.
        if self._objects.version(uid) == version:
            self._objects.put(uid, {**one, "status": after.get("status") or {}})


def _is_other(before: Json, after: Json) -> bool:
    """Whether more than the status differs."""
    old, new = before["metadata"], after["metadata"]
    fields = ("labels", "annotations", "generation", "deletionTimestamp")
    return before.get("spec") != after.get("spec") or any(old.get(one) != new.get(one) for one in fields)
