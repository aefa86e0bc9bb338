"""The input for the start of a container: the objects that it refers to, the names of Services, and its cgroups."""

from collections.abc import Callable, Iterator

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.file_updates import ServiceNames
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.step_requests import NotStarted
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.cgroup.plan import INFRASTRUCTURE
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.policy.admission import Refusal
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.runtime.environment import missing_data
from evenkeel.runtime.interface import Attempt, Launch, Planned
from evenkeel.runtime.security import withheld
from evenkeel.runtime.volume_content import missing_files


class Launches:
    """For the pod loop. It remembers which objects volumes wait for and which rights containers do not get, so that
    each is recorded once."""

    def __init__(
        self,
        cgroups: NodeCgroups,
        data: DataStore,
        service_names: ServiceNames,
        event_recorder: EventRecorder,
        refusal: Callable[[Pod], Refusal | None],
        *,
        may_trace: bool,
    ) -> None:
        """`refusal` and `may_trace` are methods of the runtime."""
        self._cgroups = cgroups
        self._data = data
        self._service_names = service_names
        self._event_recorder = event_recorder
        self._refusal = refusal
        self._may_trace = may_trace
        self._without_files: dict[str, str] = {}  # by UID: what the pod's volumes wait for
        self._withheld: dict[str, set[str]] = {}  # by UID: the containers whose withheld rights are recorded

    def forget(self, uid: str) -> None:
        self._without_files.pop(uid, None)
        self._withheld.pop(uid, None)

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
            self._note_withheld(record, container)
            return None
        if state.container(name).held_up_message != missing:
            message = f"cannot start container {name}: {missing}"
            self._event_recorder.record(WARNING, "Failed", message, record.pod, name)
        return changes.without_data(state, name, missing)

    def _note_withheld(self, record: PodRecord, container: Container) -> None:
        lacks = withheld(record.pod, container, may_trace=self._may_trace)
        if not lacks or container.name in self._withheld.get(record.uid, ()):
            return
        self._withheld.setdefault(record.uid, set()).add(container.name)
        for capability in lacks:
            message = f"container {container.name} runs without {capability}, which would reach the host"
            self._event_recorder.record(WARNING, "NotGranted", message, record.pod, container.name)

    def of_pod(self, record: PodRecord, *, is_wanted: bool) -> Iterator[Launch | NotStarted]:
        """The containers of the pod that are to be started. Containers that cannot be started come with the reason. A
        container whose previous attempt is still being killed is left out; a step follows then."""
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
        ephemeral = record.pod.spec.ephemeral(container.name)
        if ephemeral is not None:
            # Other containers were examined when the pod was admitted. An ephemeral container comes later.
            refusal = self._refusal(record.pod.with_ephemeral(ephemeral))
            if refusal is not None:
                return NotStarted(attempt, refusal.message)
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
        return Launch(
            attempt, named, container, cgroup.path, score, planned, data, is_wanted, self._may_trace
        )
