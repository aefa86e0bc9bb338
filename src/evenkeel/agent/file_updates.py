"""Brings files of running pods up to date: volumes with data, and the names of Services in /etc/hosts.

Volumes are written after a change of a ConfigMap, a Secret or the pod itself, and once after a start of the agent:
something may have changed while there was no agent. Variables and mounts with a subPath do not change before the next
start of their container, as in kubelet.

The names of Services are written at the start of a container, and when pods or Services change. The file is the pod's
own copy. A pod that has none, because it began before there was any Service, has the machine's file until its
containers start anew.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.data_objects import PodData
from evenkeel.api.pod import HostAlias, Pod
from evenkeel.api.services import Service
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import CLUSTER, WARNING, PodRecord
from evenkeel.policy.service_names import Entry, aliases, by_label, entries_of, wants_names
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, Runtime
from evenkeel.runtime.start_errors import StartFailed
from evenkeel.runtime.volume_content import missing_files

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05  # many pods often start or end together: one round writes the changes of all of them
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class ServiceNames(PodObserver):
    """For the agent's event loop. `changed` is set when a Service has changed."""

    def __init__(
        self, runtime: Runtime, data: DataStore, pod_store: PodStore, changed: asyncio.Event
    ) -> None:
        self._runtime = runtime
        self._data = data
        self._pod_store = pod_store
        self._changed = changed
        self._services: tuple[Service, ...] = ()  # the fields below are computed from these
        self._by_label = by_label(())
        self._of_pod: dict[str, tuple[Entry, ...]] = {}  # by UID of the pod; a pod without entries is absent
        self._unseen: set[str] = set()  # UIDs of pods that have changed
        self._aliases: dict[str, tuple[HostAlias, ...]] = {}  # by namespace
        # By UID of the pod: the names that were written, and the running containers that have them.
        self._written: dict[str, tuple[tuple[HostAlias, ...], tuple[Attempt, ...]]] = {}

    def settled(self, uid: str, record: PodRecord | None) -> None:
        self._unseen.add(uid)
        if self._data.services or (record is not None and uid in self._written):
            self._changed.set()

    def gone(self, record: PodRecord) -> None:
        self._written.pop(record.uid, None)
        self.settled(record.uid, None)
        self._unseen.discard(record.uid)
        self._put(record.uid, ())

    def with_names(self, pod: Pod) -> Pod:
        """The pod with the present names beside its own hostAliases."""
        if not self._data.services or not self._is_to_have_names(pod):
            return pod
        self._follow()
        # With a line at least, the pod has a file of its own for the names that come later.
        return _named(pod, self._names(pod.metadata.namespace) or (HostAlias("127.0.0.1", ("localhost",)),))

    async def run(self) -> None:
        """Writes the names of running pods whenever something has changed, until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._write()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _names(self, namespace: str) -> tuple[HostAlias, ...]:
        """The names that pods of the namespace have, as of the last `_follow`."""
        if namespace not in self._aliases:
            every = sorted({entry for found in self._of_pod.values() for entry in found})
            self._aliases[namespace] = aliases(every, namespace)
        return self._aliases[namespace]

    def _follow(self) -> None:
        """Takes up all changes since the last call. It looks only at the pods that have changed."""
        if self._data.services is not self._services:
            self._services = self._data.services
            self._by_label = by_label(self._services)
            self._of_pod.clear()
            self._aliases.clear()
            self._unseen = {pod.metadata.uid for pod in self._pod_store.shown()}
        while self._unseen:
            uid = self._unseen.pop()
            pod = self._pod_store.shown_of(uid)
            is_ours = pod is not None and not self._is_of_cluster(pod)
            self._put(uid, entries_of(pod, self._by_label) if pod is not None and is_ours else ())

    def _put(self, uid: str, found: tuple[Entry, ...]) -> None:
        if found == self._of_pod.get(uid, ()):
            return
        self._aliases.clear()
        if found:
            self._of_pod[uid] = found
        else:
            del self._of_pod[uid]

    def _is_to_have_names(self, pod: Pod) -> bool:
        return wants_names(pod) and not self._is_of_cluster(pod)

    def _is_of_cluster(self, pod: Pod) -> bool:
        """Whether it is a pod of a cluster, which has names of its own."""
        record = self._pod_store.get(pod.metadata.uid)
        return record is not None and record.source == CLUSTER

    async def _write(self) -> None:
        self._follow()
        for pod in self._pod_store.shown():
            record = self._pod_store.get(pod.metadata.uid)
            if record is None or not self._is_to_have_names(pod):
                continue
            attempts = tuple(
                Attempt(record.uid, name, container.attempt)
                for name, container in record.state.containers.items()
                if container.is_running
            )
            wanted = self._names(pod.metadata.namespace), attempts
            if not attempts or self._written.get(record.uid) == wanted:
                continue
            self._written[record.uid] = wanted
            try:
                await self._runtime.write_hosts(_named(pod, wanted[0]), attempts)
            except EvenkeelError as error:
                log.warning("pod %s: %s", pod.key, error)


def _named(pod: Pod, more: tuple[HostAlias, ...]) -> Pod:
    return pod._replace(spec=pod.spec._replace(host_aliases=(*pod.spec.host_aliases, *more)))


class VolumeUpdates(PodObserver):
    """`spawn` runs work beside the pod loop."""

    def __init__(
        self,
        runtime: Runtime,
        data: DataStore,
        spawn: Spawn,
        event_recorder: EventRecorder,
        steps: StepRequests,
    ) -> None:
        self._runtime = runtime
        self._data = data
        self._spawn = spawn
        self._event_recorder = event_recorder
        self._steps = steps
        self._written: dict[str, tuple[Pod, PodData]] = {}  # by UID: the content of the volumes

    def settled(self, uid: str, record: PodRecord | None) -> None:
        if record is None or not any(volume.has_data for volume in record.pod.spec.volumes):
            return
        if not any(container.is_running for container in record.state.containers.values()):
            self._written.pop(uid, None)  # the next start writes them
            return
        now = record.pod, self._data.of_pod(record.pod)
        if record.source == CLUSTER and missing_files(*now):
            return  # the API server is away: the files stay as they are
        if self._written.get(uid) != now:
            self._written[uid] = now
            self._spawn(self._write(*now))

    def gone(self, record: PodRecord) -> None:
        self._written.pop(record.uid, None)

    async def _write(self, pod: Pod, data: PodData) -> None:
        try:
            await self._runtime.prepare(pod, data)
        except StartFailed as error:  # an object is gone, for instance: the files stay as they are
            self._event_recorder.record(WARNING, "FailedMount", error.message, pod)
            self._steps.want_step()
