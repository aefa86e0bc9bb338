"""What the start of a container needs: the objects that it refers to, the names of Services, and its cgroups."""

from collections.abc import Iterator

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.service_names import ServiceNames
from evenkeel.agent.step_requests import NotStarted
from evenkeel.api.container import Container
from evenkeel.cgroup.plan import INFRASTRUCTURE
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.runtime.environment import missing_data
from evenkeel.runtime.interface import Attempt, Launch, Planned
from evenkeel.runtime.volume_content import missing_files


class Launches:
    """For the pod loop. It keeps what the volumes of pods wait for, so that it is recorded once."""

    def __init__(
        self,
        cgroups: NodeCgroups,
        data: DataStore,
        service_names: ServiceNames,
        event_recorder: EventRecorder,
    ) -> None:
        self._cgroups = cgroups
        self._data = data
        self._service_names = service_names
        self._event_recorder = event_recorder
        self._without_files: dict[str, str] = {}  # by UID: what the pod's volumes wait for

    def forget(self, uid: str) -> None:
        self._without_files.pop(uid, None)

    def wait_for_files(self, record: PodRecord) -> bool:
        """Whether a volume lacks a ConfigMap, Secret or claim. As in kubelet, then no container of the pod starts."""
        missing = missing_files(record.pod, self._data.of_pod(record.pod))
        if missing and self._without_files.get(record.uid) != missing:
            self._event_recorder.record(WARNING, "FailedMount", missing, record.pod)
            self._without_files[record.uid] = missing
        elif not missing:
            self._without_files.pop(record.uid, None)
        return bool(missing)

    def waiting_for_data(self, record: PodRecord, state: PodState, name: str) -> PodState | None:
        """The pod's state if the container waits for a ConfigMap or Secret, or for a key of one; None if it does
        not."""
        container = next(each for each in record.pod.spec.every_container if each.name == name)
        missing = missing_data(record.pod, container, self._data.of_pod(record.pod))
        if not missing:
            return None
        if state.container(name).held_up_message != missing:
            message = f"cannot start container {name}: {missing}"
            self._event_recorder.record(WARNING, "Failed", message, record.pod, name)
        return changes.without_data(state, name, missing)

    def of_pod(self, record: PodRecord, *, is_wanted: bool) -> Iterator[Launch | NotStarted]:
        """What is to be started of the pod. Containers that cannot be started come with the reason. A container whose
        previous attempt is still being killed is left out; a step follows then."""
        for container in record.pod.spec.every_container:
            if record.state.container(container.name).is_asked_for:
                launch = self._launch(record, container, is_wanted=is_wanted)
                if launch is not None:
                    yield launch

    def _launch(
        self, record: PodRecord, container: Container, *, is_wanted: bool
    ) -> Launch | NotStarted | None:
        attempt = Attempt(record.uid, container.name, record.state.container(container.name).attempt)
        cgroup = self._cgroups.of_container(record.pod.key, container.name)
        if cgroup is None:
            return NotStarted(attempt, "its cgroup is not in the plan")
        if cgroup.path in self._cgroups.killing:
            return None
        # It may have been removed since the start was decided.
        data = self._data.of_pod(record.pod)
        missing = missing_files(record.pod, data) or missing_data(record.pod, container, data)
        if missing:
            return NotStarted(attempt, missing, changes.CONFIG_ERROR)
        pod = self._cgroups.of_container(record.pod.key, "")
        infrastructure = self._cgroups.of_container(record.pod.key, INFRASTRUCTURE)
        assert pod is not None
        assert infrastructure is not None
        if not self._cgroups.is_there(cgroup if cgroup.is_ours_to_make else pod):
            self._cgroups.heal()
        score = int(cgroup.oom_score_adj.value) if cgroup.oom_score_adj is not None else None
        planned = Planned(self._cgroups.driver.version, cgroup, pod, infrastructure)
        named = self._service_names.with_names(record.pod)
        return Launch(attempt, named, container, cgroup.path, score, planned, data, is_wanted)
