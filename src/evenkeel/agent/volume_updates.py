"""Brings volumes with data up to date while their pods run: after a change of a ConfigMap, a Secret or the pod itself.

After a start of the agent, every such volume is written once: something may have changed while there was no agent.
Variables and mounts with a subPath do not change before the next start of their container, as in kubelet.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.data_objects import PodData
from evenkeel.api.pod import Pod
from evenkeel.journal.records import CLUSTER, WARNING, PodRecord
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Runtime, StartFailed
from evenkeel.runtime.volume_content import missing_files

Spawn = Callable[[Coroutine[Any, Any, None]], object]


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
        self._written: dict[str, tuple[Pod, PodData]] = {}  # by UID: what the volumes have

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
