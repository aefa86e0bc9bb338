"""The status of a pod, computed from its state: phase, conditions and the state of every container, as kubelet writes
them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from evenkeel.api.resources import CPU, MEMORY, NO_RESOURCES, ResourceRequirements
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Refusal
from evenkeel.policy.eviction.decide import DISRUPTION_TARGET, TERMINATED_BY_NODE
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, ContainerRecord, Ended, PodState, TerminalStatus
from evenkeel.policy.lifecycle.resize import in_force
from evenkeel.policy.lifecycle.restarts import (
    FAILED,
    SUCCEEDED,
    current_init_container,
    has_initialized,
    may_restart_all,
    outcome,
    restarts_after,
    restarts_all,
    runs_before_others,
    sidecars,
)
from evenkeel.policy.pod_resources import (
    RESIZE_ERROR,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
    pod_limits,
    pod_requests,
)
from evenkeel.policy.qos import container_class, pod_class

PENDING, RUNNING = "Pending", "Running"
NO_WAITING: Mapping[str, ContainerStateWaiting] = {}
_NOT_STARTED = ContainerStateWaiting("ContainerCreating")


def pod_status(
    pod: Pod,
    state: PodState,
    profile: Profile,
    waiting: Mapping[str, ContainerStateWaiting] = NO_WAITING,
    runtime: str = "process",
) -> PodStatus:
    """The status to report. `waiting` comes from `Actions`. With an empty `runtime` a container has no id unless the
    runtime gave it one. A condition that has not changed since `pod.status` keeps its time."""
    phase = pod_phase(pod, state)
    terminal = state.verdict if phase in (SUCCEEDED, FAILED) else None
    known = PodStatus(
        phase=phase,
        reason=terminal.reason if terminal else "",
        message=terminal.message if terminal else "",
        qos_class=str(pod_class(pod, profile)),
    )
    if not state.accepted_at:
        return known  # it was refused and has no containers here
    if profile is Profile.KUBERNETES:
        # The allocated and the actual resources of the pod as a whole, as kubelet reports them since 1.36.
        now = in_force(pod, state)
        granted = pod_requests(pod) or NO_RESOURCES
        held = granted if now is pod else pod_requests(now) or NO_RESOURCES
        known = known._replace(
            allocated_resources=granted,
            resources=ResourceRequirements(held, pod_limits(now) or NO_RESOURCES),
        )

    def statuses(containers: Sequence[Container]) -> tuple[ContainerStatus, ...]:
        return tuple(_container(pod, each, state, waiting, runtime) for each in containers)

    return known._replace(
        conditions=_conditions(pod, state, phase),
        start_time=timestamp(state.accepted_at),
        init_container_statuses=statuses(pod.spec.init_containers),
        container_statuses=statuses(pod.spec.containers),
        ephemeral_container_statuses=tuple(
            # As in kubelet, an ephemeral container is never ready.
            status._replace(ready=False, started=None)
            for status in statuses([one.container for one in pod.spec.ephemeral_containers])
        ),
    )


def with_addresses(status: PodStatus, host: str, own: tuple[str, ...] | None) -> PodStatus:
    """The status with the addresses of the host and of the pod. `own` are the addresses of the pod's own network; None:
    it uses the host's. An ended pod has no address any more."""
    if not status.start_time or not host:
        return status
    return status.with_addresses(host, () if status.phase in (SUCCEEDED, FAILED) else own)


def with_resize(status: PodStatus, refusal: Refusal | None, now: float, *, in_progress: bool) -> PodStatus:
    """The status with the conditions of a resize. `refusal` says why it waits; None if none waits. With `in_progress`
    it was granted, and a container has not restarted for it yet. A condition that was there before keeps its time."""
    wanted = {
        RESIZE_PENDING: None,
        RESIZE_IN_PROGRESS: _Found(RESIZE_IN_PROGRESS, True, now) if in_progress else None,
    }
    if refusal is not None:
        condition = RESIZE_IN_PROGRESS if refusal.reason == RESIZE_ERROR else RESIZE_PENDING
        wanted[condition] = _Found(condition, True, now, refusal.reason, refusal.message)
    before = {one.type: one for one in status.conditions}
    if not any(wanted.values()) and before.keys().isdisjoint(wanted):
        return status
    others = tuple(one for one in status.conditions if one.type not in wanted)
    found = (_condition(one, before.get(one.type)) for one in wanted.values() if one is not None)
    return status._replace(conditions=(*others, *found))


def is_resize_in_progress(pod: Pod, state: PodState) -> bool:
    """Whether a container must restart to get the amounts that were granted, and has not restarted yet."""
    for container in pod.spec.sized_containers:
        record = state.container(container.name)
        restarts = record.ended is not None and record.ended.stopped_as == AS_RESTART
        is_other = record.resources is not None and record.resources != container.resources
        if is_other and (record.is_alive or restarts):
            return True
    return False


def pod_phase(pod: Pod, state: PodState) -> str:
    """The phase. A pod is Failed or Succeeded only once nothing of it runs, whatever was decided about it."""
    if state.verdict is not None and not state.is_alive:
        return state.verdict.phase
    if not has_initialized(pod, state):
        # As in kubelet, a pod whose containers all restart waits again for its init containers only.
        again = any(record.runs_again for record in state.containers.values())
        return RUNNING if again and not pod.spec.init_containers else PENDING
    regular = [(each, state.container(each.name)) for each in pod.spec.containers]
    if any((not record.is_running or record.in_post_start) and record.ended is None for _, record in regular):
        return PENDING
    if any(record.is_running for _, record in regular):
        return RUNNING
    if any(state.container(each.name).is_running for each in sidecars(pod)):
        return RUNNING
    if any(state.container(each.name).is_alive for each in pod.spec.ephemeral_containers):
        return RUNNING
    is_ending = state.deleted_at is not None
    if any(record.is_asked_for for _, record in regular) or (
        not is_ending
        and (
            restarts_all(pod, state)
            or any(record.ended and restarts_after(pod, each, record.ended) for each, record in regular)
        )
    ):
        return RUNNING
    return outcome(pod, state, 0.0).phase


# The same few times are in each status of a pod, and in those of pods that came together.
@lru_cache(maxsize=1024)
def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _container(
    pod: Pod,
    container: Container,
    state: PodState,
    waiting: Mapping[str, ContainerStateWaiting],
    runtime: str,
) -> ContainerStatus:
    record = state.container(container.name)

    def id_of(named: str, attempt: int) -> str:
        if named or not runtime or not attempt:
            return named
        return f"{runtime}://{pod.metadata.uid}/{container.name}/{attempt}"

    # As in kubelet, a start that was only requested does not count: it may fail for lack of an image.
    attempt = record.attempt - 1 if record.is_asked_for else record.attempt
    last_id = record.ended.id if record.ended is not None else ""
    last = _terminated(record.ended, id_of(last_id, attempt - 1 if record.is_running else attempt))
    has_succeeded = (
        record.has_begun and not record.is_alive and record.ended is not None and record.ended.exit_code == 0
    )
    if record.started_at is not None and not record.in_post_start:
        current = ContainerState(running=ContainerStateRunning(timestamp(record.started_at)))
    elif container.name in waiting or last is None:
        current = ContainerState(waiting=waiting.get(container.name, _NOT_STARTED))
    else:
        before = record.ended_before
        id_before = id_of(before.id if before is not None else "", attempt - 1)
        current, last = ContainerState(terminated=last), _terminated(before, id_before)
    return ContainerStatus(
        name=container.name,
        state=current,
        last_state=None if last is None else ContainerState(terminated=last),
        # An init container is ready when it has succeeded.
        ready=has_succeeded if runs_before_others(pod, container) else record.is_running and record.is_ready,
        restart_count=max(attempt - 1, 0),
        image=container.image,
        image_id=record.image_id,
        container_id=id_of(record.id if record.is_running else record.id or last_id, attempt),
        started=record.is_running and record.is_started,
        allocated_resources=container.resources.requests,
        resources=record.resources,
        memory_qos_class=str(container_class(container, MEMORY)),
        cpu_qos_class=str(container_class(container, CPU)),
    )


def _terminated(ended: Ended | None, container_id: str) -> ContainerStateTerminated | None:
    if ended is None:
        return None
    return ContainerStateTerminated(
        exit_code=ended.exit_code,
        signal=ended.signal,
        reason=ended.reason,
        message=ended.message,
        started_at=timestamp(ended.started_at) if ended.started_at else None,
        finished_at=timestamp(ended.finished_at),
        container_id=container_id,
    )


class _Found(NamedTuple):
    """A condition as it is now, and the earliest time since when it can be so."""

    type: str
    is_true: bool
    since: float
    reason: str = ""
    message: str = ""


def _conditions(pod: Pod, state: PodState, phase: str) -> tuple[PodCondition, ...]:
    before = {condition.type: condition for condition in pod.status.conditions}
    initialized = _initialized(pod, state, phase)
    ready = _ready(pod, state, phase)
    found: tuple[_Found, ...] = (
        _ready_to_start(state, phase),
        initialized,
        ready._replace(type="Ready"),
        ready,
        _Found("PodScheduled", is_true=True, since=state.accepted_at),
    )
    if may_restart_all(pod):
        found += (_all_restarting(pod, state),)
    if state.verdict is not None and state.verdict.is_disruption:
        found += (_disruption(state.verdict),)
    ours = tuple(_condition(each, before.get(each.type)) for each in found)
    names = {each.type for each in ours}
    # Conditions that others have set stay. E16: a pod that has come back after an eviction is no DisruptionTarget.
    others = (
        one for one in pod.status.conditions if one.type not in names and one.reason != TERMINATED_BY_NODE
    )
    return (*ours, *others)


def _condition(found: _Found, before: PodCondition | None) -> PodCondition:
    status = "True" if found.is_true else "False"
    since = timestamp(found.since)
    if before is not None and before.status == status and before.last_transition_time:
        since = before.last_transition_time
    return PodCondition(found.type, status, found.reason, found.message, last_transition_time=since)


def _ready_to_start(state: PodState, phase: str) -> _Found:
    """True from the first start until the pod is over: its cgroups and volumes are there."""
    if phase in (SUCCEEDED, FAILED):
        return _Found("PodReadyToStartContainers", False, _over_at(state) or state.accepted_at)
    is_true = any(record.has_begun for record in state.containers.values())
    return _Found("PodReadyToStartContainers", is_true, state.accepted_at)


def _initialized(pod: Pod, state: PodState, phase: str) -> _Found:
    current = current_init_container(pod, state)
    if current is not None:
        names = " ".join(each.name for each in pod.spec.init_containers[current:])
        message = f"containers with incomplete status: [{names}]"
        return _Found("Initialized", False, state.accepted_at, "ContainersNotInitialized", message)
    passed = [_passed_at(each, state.container(each.name)) for each in pod.spec.init_containers]
    since = max(passed, default=0.0) or state.accepted_at
    return _Found("Initialized", True, since, "PodCompleted" if phase == SUCCEEDED else "")


def _all_restarting(pod: Pod, state: PodState) -> _Found:
    kind, since = "AllContainersRestarting", _over_at(state) or state.accepted_at
    if state.verdict is not None or state.deleted_at is not None or not restarts_all(pod, state):
        return _Found(kind, False, since)
    return _Found(
        kind, True, since, "RestartAllContainersStarted", "container exited with restart policy rule"
    )


def _disruption(terminal: TerminalStatus) -> _Found:
    return _Found(DISRUPTION_TARGET, True, terminal.at, TERMINATED_BY_NODE, terminal.message)


def _passed_at(container: Container, record: ContainerRecord) -> float:
    if not container.is_sidecar:
        return record.ended.finished_at if record.ended is not None else 0.0
    is_first = record.attempt == record.attempts_before + 1
    return record.started_at or 0.0 if is_first else 0.0  # the time of the first start is not known any more


def _ready(pod: Pod, state: PodState, phase: str) -> _Found:
    kind = "ContainersReady"
    if phase in (SUCCEEDED, FAILED):
        reason = "PodCompleted" if phase == SUCCEEDED else "PodFailed"
        return _Found(kind, False, _over_at(state) or state.accepted_at, reason)
    counted = [
        (each.name, state.container(each.name))
        for each in pod.spec.every_container
        if each in pod.spec.containers or each.is_sidecar
    ]
    unready = [(name, record) for name, record in counted if not (record.is_running and record.is_ready)]
    if not unready:
        return _Found(kind, True, max(record.ready_changed_at for _, record in counted))
    names = " ".join(name for name, _ in unready)
    since = min(record.ready_changed_at for _, record in unready) or state.accepted_at
    return _Found(kind, False, since, "ContainersNotReady", f"containers with unready status: [{names}]")


def _over_at(state: PodState) -> float:
    """When the last of its containers ended; 0 if one still runs, or if none ever ran."""
    if state.is_alive:
        return 0.0
    return max(
        (record.ended.finished_at for record in state.containers.values() if record.ended), default=0.0
    )
