"""The facts about a pod that decisions about workloads need."""

from collections.abc import Mapping

from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.policy.lifecycle.pod_status import PENDING, RUNNING, pod_phase
from evenkeel.policy.lifecycle.restarts import FAILED, SUCCEEDED


class PodFacts(NamedTuple):
    """A pod of a workload. A pod that the node has not admitted is Pending, also while it is refused for lack of
    room: it is tried again when room appears."""

    pod: Pod
    phase: str = PENDING
    is_deleting: bool = False
    is_refused: bool = False  # there was no room for it
    is_ready: bool = False
    ready_since: float = 0.0
    ended_at: float = 0.0
    is_disruption: bool = False  # the node ended it to protect itself: an eviction
    exit_codes: Mapping[str, int] = {}
    restarts: int = 0

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def has_ended(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)

    def is_available(self, min_ready_seconds: float, now: float) -> bool:
        return not self.is_deleting and self.is_ready and self.ready_since + min_ready_seconds <= now


def pod_facts(pod: Pod, state: PodState, *, is_admitted: bool) -> PodFacts:
    is_deleting = state.deleted_at is not None
    if not is_admitted:
        return PodFacts(pod, PENDING, is_deleting, is_refused=state.verdict is not None)
    phase = pod_phase(pod, state)
    counted = [
        state.container(each.name)
        for each in pod.spec.every_container
        if each in pod.spec.containers or each.is_sidecar
    ]
    records = [state.container(each.name) for each in pod.spec.every_container]
    ends = {
        each.name: end
        for each in pod.spec.every_container
        if (end := state.container(each.name).ended) is not None
    }
    last_end = max((end.finished_at for end in ends.values()), default=0.0)
    return PodFacts(
        pod,
        phase,
        is_deleting,
        is_ready=phase == RUNNING and all(one.is_running and one.is_ready for one in counted),
        ready_since=max((one.ready_changed_at for one in counted), default=0.0),
        ended_at=max(last_end, state.verdict.at if state.verdict is not None else 0.0),
        is_disruption=state.verdict is not None and state.verdict.is_disruption,
        exit_codes={name: end.exit_code for name, end in ends.items()},
        restarts=sum(max(one.attempt - 1, 0) for one in records),
    )
