"""Actions: what the agent must do for a pod now, as kubelet would: which containers to start and to stop, what each one
waits for, when to decide again, and whether the pod is over.

The answer is complete and not a difference to the answer before: a container that must end is listed as long as it
runs, with the rest of its grace period. So an agent that was killed continues where it was.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from evenkeel.api.container import Container
from evenkeel.api.pod import ContainerStateWaiting, Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_state import (
    AS_RESTART,
    LEAST_GRACE_SECONDS,
    ContainerRecord,
    LifecycleSettings,
    PodState,
    TerminalStatus,
)
from evenkeel.policy.lifecycle.restarts import (
    FAILED,
    backoff_text,
    current_init_container,
    final_ends,
    grace_seconds,
    is_done,
    outcome,
    restarts_all,
    sidecars,
)

DEADLINE_EXCEEDED = "DeadlineExceeded"
CRASH_LOOP = "CrashLoopBackOff"
CONTAINER_CREATING = "ContainerCreating"
ERR_IMAGE_PULL, IMAGE_PULL_BACKOFF = "ErrImagePull", "ImagePullBackOff"
# How long the error of a pull is shown as such; then the container is in its back-off.
_PULL_ERROR_SECONDS = 2.0
_RESTART_ALL_REASON = "all containers restart: one has ended with an exit code that asks for it"

Waiting = ContainerStateWaiting


class Stop(NamedTuple):
    container: str
    reason: str
    grace_seconds: float  # the rest of the grace period
    # AS_FAILURE or AS_RESTART for a container that is stopped alone.
    stopped_as: str = ""


class Actions(NamedTuple):
    start: tuple[str, ...] = ()  # in this order
    stop: tuple[Stop, ...] = ()  # all at once; sidecars follow when their turn comes
    init_container: int | None = None  # the one that runs now, for the plan (PlannedPod)
    is_over: bool = False  # nothing runs, and nothing will be started again
    all_again: bool = False  # all containers have ended, and all must start again
    # If it is new: the agent sets it in the state, which stops the rest.
    verdict: TerminalStatus | None = None
    waiting: Mapping[str, Waiting] = MappingProxyType({})
    wake_at: float | None = None  # when to decide again if nothing happens before


def actions(pod: Pod, state: PodState, now: float, settings: LifecycleSettings) -> Actions:
    """What to do for the pod at the time `now`."""
    late = _deadline_exceeded(pod, state, now)
    known = state if late is None else state._replace(verdict=late)
    ending = _ending(pod, known)
    if ending is None and restarts_all(pod, state):
        return _restarting_all(pod, state, now)
    if ending is None:
        return _running(pod, state, now)
    done = _stopping(pod, known, ending, now, settings)
    return done if late is None else done._replace(verdict=late)


class _Ending(NamedTuple):
    """Why the whole pod ends, and the time by which its containers must have ended."""

    reason: str
    by: float
    has_grace: bool


def _ending(pod: Pod, state: PodState) -> _Ending | None:
    causes = []
    if state.verdict is not None:
        given = state.verdict.grace_seconds
        causes.append(
            _Ending(state.verdict.reason or state.verdict.phase, state.verdict.at + given, given > 0)
        )
    if state.deleted_at is not None:
        own = state.deletion_grace_seconds
        given = grace_seconds(pod) if own is None else own
        causes.append(_Ending("Deleted", state.deleted_at + given, given > 0))
    ends = final_ends(pod, state)
    if ends:
        given = grace_seconds(pod)
        last = max(end.finished_at for end in ends)
        causes.append(_Ending("Completed", last + given, given > 0))
    return min(causes, key=lambda cause: cause.by, default=None)


def _deadline_exceeded(pod: Pod, state: PodState, now: float) -> TerminalStatus | None:
    deadline = _deadline(pod, state)
    if deadline is None or now < deadline:
        return None
    message = (
        f"The pod was active for longer than its activeDeadlineSeconds of {pod.spec.active_deadline_seconds}"
    )
    return TerminalStatus(FAILED, DEADLINE_EXCEEDED, message, now, grace_seconds(pod))


def _deadline(pod: Pod, state: PodState) -> float | None:
    """None also for a pod that ends already: the deadline does not matter any more."""
    seconds = pod.spec.active_deadline_seconds
    if seconds is None or state.verdict is not None or state.deleted_at is not None or final_ends(pod, state):
        return None
    return state.accepted_at + seconds


def _stopping(pod: Pod, state: PodState, ending: _Ending, now: float, settings: LifecycleSettings) -> Actions:
    stop: list[Stop] = []
    wake_at = None
    alive = False
    for container in _in_stop_order(pod):
        record = state.container(container.name)
        is_sidecar = container in pod.spec.init_containers and container.is_sidecar
        if is_sidecar and alive and now < ending.by:
            # Its turn comes when the others have ended, or when their grace period is over.
            wake_at = ending.by
            break
        alive = alive or record.is_alive
        if record.is_running:
            least = settings.least_sidecar_grace_seconds if is_sidecar and ending.has_grace else 0.0
            stop.append(_stop(container.name, record, ending, now, least))
    is_over = not state.is_alive
    return Actions(
        stop=tuple(stop),
        init_container=current_init_container(pod, state),
        is_over=is_over,
        verdict=outcome(pod, state, now) if is_over and state.verdict is None else None,
        waiting=_waiting(pod, state, now, will_start=False),
        wake_at=wake_at,
    )


def _in_stop_order(pod: Pod) -> Iterator[Container]:
    """Sidecars last and in reverse order: a container may need every sidecar that was started before it. Ephemeral
    containers end with the others."""
    yield from pod.spec.containers
    yield from (one.container for one in pod.spec.ephemeral_containers)
    yield from (container for container in pod.spec.init_containers if not container.is_sidecar)
    yield from reversed(tuple(sidecars(pod)))


def _stop(name: str, record: ContainerRecord, ending: _Ending, now: float, least: float) -> Stop:
    if record.stop_by is None:
        return Stop(name, ending.reason, max(ending.by - now, least, 0.0))
    # It was asked to stop before. A grace period that is now shorter applies to it, too.
    by = min(record.stop_by, max(ending.by, now + least))
    return Stop(name, record.stopping, max(by - now, 0.0), record.stopped_as)


def _running(pod: Pod, state: PodState, now: float) -> Actions:
    current = current_init_container(pod, state)
    init_containers = pod.spec.init_containers
    begun = init_containers if current is None else init_containers[: current + 1]
    # As in kubelet, ephemeral containers come first: they help to find out why init containers do not finish.
    candidates = list(_ephemeral(pod, state))
    candidates += [each for place, each in enumerate(begun) if each.is_sidecar or place == current]
    if current is None:
        candidates += pod.spec.containers
    start: list[str] = []
    is_held_back = False  # by the postStart hook of an earlier container, as in kubelet
    times = [_deadline(pod, state)]
    for container in candidates:
        record = state.container(container.name)
        is_next = not record.is_alive and not is_done(pod, container, record)
        if is_next and record.start_after <= now:
            if not is_held_back:
                start.append(container.name)
        elif is_next:
            times.append(record.start_after)
            if record.held_up == ERR_IMAGE_PULL and now < _pull_backoff_at(record):
                times.append(_pull_backoff_at(record))
        is_held_back = is_held_back or _holds_back(container, record, is_starting=container.name in start)
    return Actions(
        start=tuple(start),
        stop=tuple(
            Stop(container.name, record.stopping, max((record.stop_by or now) - now, 0.0), record.stopped_as)
            for container in pod.spec.every_container
            if (record := state.container(container.name)).is_running and record.stopping
        ),
        init_container=current,
        waiting=_waiting(pod, state, now, will_start=True),
        wake_at=min((time for time in times if time is not None), default=None),
    )


def _restarting_all(pod: Pod, state: PodState, now: float) -> Actions:
    """As in kubelet, all containers but the ephemeral ones are stopped with the shortest grace period."""
    records = {each.name: state.container(each.name) for each in pod.spec.sized_containers}
    stop = []
    for name, record in records.items():
        if record.is_running:
            by = now + LEAST_GRACE_SECONDS if record.stop_by is None else record.stop_by
            grace = max(min(by - now, LEAST_GRACE_SECONDS), 0.0)
            stop.append(Stop(name, record.stopping or _RESTART_ALL_REASON, grace, AS_RESTART))
    return Actions(
        stop=tuple(stop),
        all_again=not any(record.is_alive for record in records.values()),
        init_container=current_init_container(pod, state),
        waiting=_waiting(pod, state, now, will_start=True),
        wake_at=_deadline(pod, state),
    )


def _ephemeral(pod: Pod, state: PodState) -> Iterator[Container]:
    """The ephemeral containers that may run now. A container that enters the namespace of another one waits until the
    other one runs."""
    for one in pod.spec.ephemeral_containers:
        if not one.target_container_name or state.container(one.target_container_name).is_running:
            yield one.container


def _holds_back(container: Container, record: ContainerRecord, *, is_starting: bool) -> bool:
    """Whether containers after this one are not started yet: it is about to run its postStart hook, or runs it. A
    container that waits for data of its own does not hold back others."""
    if container.post_start is None:
        return False
    return record.is_asked_for or record.in_post_start or (is_starting and not record.held_up)


def _waiting(pod: Pod, state: PodState, now: float, *, will_start: bool) -> Mapping[str, Waiting]:
    first = Waiting("PodInitializing" if pod.spec.init_containers else CONTAINER_CREATING)
    found = {}
    for container in pod.spec.every_container:
        record = state.container(container.name)
        if record.is_running and not record.in_post_start:
            continue
        if record.held_up and not record.is_asked_for:
            # CONTAINER_CREATING: the volumes or the network of the whole pod could not be made.
            is_shared = record.held_up == CONTAINER_CREATING
            found[container.name] = (
                first._replace(message=record.held_up_message)
                if is_shared
                else _held_up(container, record, now)
            )
            continue
        is_next = will_start and not is_done(pod, container, record)
        is_anew = is_next and not record.has_begun and record.start_after <= now
        if record.is_alive or record.ended is None or is_anew:
            found[container.name] = first
        elif is_next and record.start_after > now:
            wait = record.start_after - record.ended.finished_at
            message = (
                f"back-off {backoff_text(wait)} restarting failed container={container.name} pod={pod.key}"
            )
            found[container.name] = Waiting(CRASH_LOOP, message)
    return found


def _held_up(container: Container, record: ContainerRecord, now: float) -> Waiting:
    if record.held_up != ERR_IMAGE_PULL or now < _pull_backoff_at(record):
        return Waiting(record.held_up, record.held_up_message)
    message = f'Back-off pulling image "{container.image}": {ERR_IMAGE_PULL}: {record.held_up_message}'
    return Waiting(IMAGE_PULL_BACKOFF, message)


def _pull_backoff_at(record: ContainerRecord) -> float:
    return record.start_after - record.held_up_seconds + _PULL_ERROR_SECONDS
