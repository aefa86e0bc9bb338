"""A pod's status from its life, as kubelet tells it: phase, conditions and the state of every container."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

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
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.policy.admission import Refusal
from evenkeel.policy.eviction.decide import DISRUPTION_TARGET, TERMINATED_BY_NODE
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, Ended, PodState, TerminalStatus
from evenkeel.policy.lifecycle.restarts import (
    FAILED,
    SUCCEEDED,
    current_init_container,
    has_initialized,
    outcome,
    restarts_after,
    runs_to_its_end_first,
    sidecars,
)
from evenkeel.policy.pod_resources import RESIZE_PENDING
from evenkeel.policy.qos import container_class, pod_class

PENDING, RUNNING = "Pending", "Running"
NO_WAITING: Mapping[str, ContainerStateWaiting] = {}
_NOT_STARTED = ContainerStateWaiting("ContainerCreating")


def pod_status(
    pod: Pod,
    life: PodState,
    profile: Profile,
    waiting: Mapping[str, ContainerStateWaiting] = NO_WAITING,
    runtime: str = "process",
) -> PodStatus:
    """`waiting` is that of `Actions`. Without `runtime` only containers that were given an id have one. A condition
    that is as it was in `pod.status` keeps its time."""
    phase = pod_phase(pod, life)
    verdict = life.verdict if phase in (SUCCEEDED, FAILED) else None
    known = PodStatus(
        phase=phase,
        reason=verdict.reason if verdict else "",
        message=verdict.message if verdict else "",
        qos_class=str(pod_class(pod, profile)),
    )
    if not life.accepted_at:
        return known  # refused: it was never more than a name here

    def statuses(containers: Sequence[Container]) -> tuple[ContainerStatus, ...]:
        return tuple(_container(pod, each, life, waiting, runtime) for each in containers)

    return known._replace(
        conditions=_conditions(pod, life, phase),
        start_time=timestamp(life.accepted_at),
        init_container_statuses=statuses(pod.spec.init_containers),
        container_statuses=statuses(pod.spec.containers),
    )


def with_pending_resize(status: PodStatus, pending: Refusal | None, now: float) -> PodStatus:
    """`pending` says why a resize that was asked for waits. One that waits on keeps its time."""
    before = next((one for one in status.conditions if one.type == RESIZE_PENDING), None)
    others = tuple(one for one in status.conditions if one.type != RESIZE_PENDING)
    if pending is None:
        return status if before is None else status._replace(conditions=others)
    found = _Found(RESIZE_PENDING, True, now, pending.reason, pending.message)
    return status._replace(conditions=(*others, _condition(found, before)))


def pod_phase(pod: Pod, life: PodState) -> str:
    """A pod is Failed or Succeeded once nothing of it runs, and not before, whatever has been decided about it."""
    if life.verdict is not None and not life.is_alive:
        return life.verdict.phase
    if not has_initialized(pod, life):
        return PENDING
    regular = [(each, life.container(each.name)) for each in pod.spec.containers]
    if any(not it.is_running and it.ended is None for _, it in regular):
        return PENDING
    if any(it.is_running for _, it in regular):
        return RUNNING
    if any(life.container(each.name).is_running for each in sidecars(pod)):
        return RUNNING
    is_ending = life.deleted_at is not None
    if any(it.is_asked_for for _, it in regular) or (
        not is_ending and any(it.ended and restarts_after(pod, each, it.ended) for each, it in regular)
    ):
        return RUNNING
    return outcome(pod, life, 0.0).phase


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _container(
    pod: Pod,
    container: Container,
    life: PodState,
    waiting: Mapping[str, ContainerStateWaiting],
    runtime: str,
) -> ContainerStatus:
    it = life.container(container.name)

    def id_of(named: str, attempt: int) -> str:
        if named or not runtime or not attempt:
            return named
        return f"{runtime}://{pod.metadata.uid}/{container.name}/{attempt}"

    last_id = it.ended.id if it.ended is not None else ""
    last = _terminated(it.ended, id_of(last_id, it.attempt - 1 if it.is_alive else it.attempt))
    has_succeeded = it.has_begun and not it.is_alive and it.ended is not None and it.ended.exit_code == 0
    if it.started_at is not None:
        state = ContainerState(running=ContainerStateRunning(timestamp(it.started_at)))
    elif container.name in waiting or last is None:
        state = ContainerState(waiting=waiting.get(container.name, _NOT_STARTED))
    else:
        state, last = ContainerState(terminated=last), None
    return ContainerStatus(
        name=container.name,
        state=state,
        last_state=None if last is None else ContainerState(terminated=last),
        # Of an init container that runs to its end, "ready" is that it has.
        ready=has_succeeded if runs_to_its_end_first(pod, container) else it.is_running and it.is_ready,
        restart_count=max(it.attempt - 1, 0),
        image=container.image,
        container_id=id_of(it.id, it.attempt),
        started=it.is_running and it.is_started,
        allocated_resources=container.resources.requests,
        resources=it.resources,
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
    """A condition as it is now: true if `reason` is empty, with the time since when that may be so."""

    type: str
    is_true: bool
    since: float
    reason: str = ""
    message: str = ""


def _conditions(pod: Pod, life: PodState, phase: str) -> tuple[PodCondition, ...]:
    before = {condition.type: condition for condition in pod.status.conditions}
    initialized = _initialized(pod, life, phase)
    ready = _ready(pod, life, phase)
    found: tuple[_Found, ...] = (
        _ready_to_start(life, phase),
        initialized,
        ready._replace(type="Ready"),
        ready,
        _Found("PodScheduled", is_true=True, since=life.accepted_at),
    )
    if life.verdict is not None and life.verdict.is_disruption:
        found += (_disruption(life.verdict),)
    ours = tuple(_condition(each, before.get(each.type)) for each in found)
    names = {each.type for each in ours}
    # Those that others have set stay; of ours, none of a life before (E16): who has come back is no target any more.
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


def _ready_to_start(life: PodState, phase: str) -> _Found:
    """Its cgroups and volumes are there: from the first start until it is over."""
    is_true = phase not in (SUCCEEDED, FAILED) and any(it.has_begun for it in life.containers.values())
    return _Found("PodReadyToStartContainers", is_true, _over_at(life) or life.accepted_at)


def _initialized(pod: Pod, life: PodState, phase: str) -> _Found:
    current = current_init_container(pod, life)
    if current is not None:
        names = " ".join(each.name for each in pod.spec.init_containers[current:])
        message = f"containers with incomplete status: [{names}]"
        return _Found("Initialized", False, life.accepted_at, "ContainersNotInitialized", message)
    passed = [_passed_at(each, life.container(each.name)) for each in pod.spec.init_containers]
    since = max(passed, default=0.0) or life.accepted_at
    return _Found("Initialized", True, since, "PodCompleted" if phase == SUCCEEDED else "")


def _disruption(verdict: TerminalStatus) -> _Found:
    return _Found(DISRUPTION_TARGET, True, verdict.at, TERMINATED_BY_NODE, verdict.message)


def _passed_at(container: Container, it: ContainerRecord) -> float:
    if not container.is_sidecar:
        return it.ended.finished_at if it.ended is not None else 0.0
    is_first = it.attempt == it.attempts_before + 1
    return it.started_at or 0.0 if is_first else 0.0  # later attempts say nothing of the first


def _ready(pod: Pod, life: PodState, phase: str) -> _Found:
    kind = "ContainersReady"
    if phase in (SUCCEEDED, FAILED):
        reason = "PodCompleted" if phase == SUCCEEDED else "PodFailed"
        return _Found(kind, False, _over_at(life) or life.accepted_at, reason)
    counted = [
        (each.name, life.container(each.name))
        for each in pod.spec.every_container
        if each in pod.spec.containers or each.is_sidecar
    ]
    unready = [(name, it) for name, it in counted if not (it.is_running and it.is_ready)]
    if not unready:
        return _Found(kind, True, max(it.ready_changed_at for _, it in counted))
    names = " ".join(name for name, _ in unready)
    since = min(it.ready_changed_at for _, it in unready) or life.accepted_at
    return _Found(kind, False, since, "ContainersNotReady", f"containers with unready status: [{names}]")


def _over_at(life: PodState) -> float:
    """When the last of its containers ended; 0 while one runs, or none ever has."""
    if life.is_alive:
        return 0.0
    return max((it.ended.finished_at for it in life.containers.values() if it.ended), default=0.0)
