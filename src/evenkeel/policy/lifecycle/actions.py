"""What is to be done for a pod now, as kubelet would: which containers to start and to stop, what it is waiting for,
when to look again, and whether it is over.

The answer is the whole truth at that moment and not a difference: a container that must end is listed for as long as
it runs, with the grace that is left, so that an agent which was killed goes on where it was.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.pod import ContainerStateWaiting, Pod
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, LifecycleSettings, PodState, TerminalStatus
from evenkeel.policy.lifecycle.restarts import (
    FAILED,
    current_init_container,
    final_ends,
    grace_seconds,
    is_done,
    outcome,
    sidecars,
)

DEADLINE_EXCEEDED = "DeadlineExceeded"
CRASH_LOOP = "CrashLoopBackOff"

Waiting = ContainerStateWaiting


class Stop(NamedTuple):
    container: str
    reason: str
    grace_seconds: float  # what is left of it
    # AS_FAILURE, AS_RESTART: of a container that ends alone, what that means for its restart.
    stopped_as: str = ""


class Actions(NamedTuple):
    start: tuple[str, ...] = ()  # in this order
    stop: tuple[Stop, ...] = ()  # all at once; those whose turn has not come are not listed yet
    init_container: int | None = None  # the moment for the plan (PlannedPod)
    is_over: bool = False  # nothing runs, and nothing will be started again
    verdict: TerminalStatus | None = (
        None  # newly reached: to be kept in the life, which stops what still runs
    )
    waiting: Mapping[str, Waiting] = MappingProxyType({})
    wake_at: float | None = None  # when to look again though nothing has happened


def actions(pod: Pod, life: PodState, now: float, settings: LifecycleSettings) -> Actions:
    late = _deadline_exceeded(pod, life, now)
    known = life if late is None else life._replace(verdict=late)
    ending = _ending(pod, known)
    if ending is None:
        return _living(pod, life, now)
    done = _stopping(pod, known, ending, now, settings)
    return done if late is None else done._replace(verdict=late)


class _Ending(NamedTuple):
    """Why the whole pod ends, and until when its containers have time to do so."""

    reason: str
    by: float
    has_grace: bool


def _ending(pod: Pod, life: PodState) -> _Ending | None:
    causes = []
    if life.verdict is not None:
        given = life.verdict.grace_seconds
        causes.append(_Ending(life.verdict.reason or life.verdict.phase, life.verdict.at + given, given > 0))
    if life.deleted_at is not None:
        own = life.deletion_grace_seconds
        given = grace_seconds(pod) if own is None else own
        causes.append(_Ending("Deleted", life.deleted_at + given, given > 0))
    ends = final_ends(pod, life)
    if ends:
        given = grace_seconds(pod)
        last = max(end.finished_at for end in ends)
        causes.append(_Ending("Completed", last + given, given > 0))
    return min(causes, key=lambda cause: cause.by, default=None)


def _deadline_exceeded(pod: Pod, life: PodState, now: float) -> TerminalStatus | None:
    deadline = _deadline(pod, life)
    if deadline is None or now < deadline:
        return None
    message = (
        f"The pod was active for longer than its activeDeadlineSeconds of {pod.spec.active_deadline_seconds}"
    )
    return TerminalStatus(FAILED, DEADLINE_EXCEEDED, message, now, grace_seconds(pod))


def _deadline(pod: Pod, life: PodState) -> float | None:
    """None also for a pod that is on its way out, for which time no longer matters."""
    seconds = pod.spec.active_deadline_seconds
    if seconds is None or life.verdict is not None or life.deleted_at is not None or final_ends(pod, life):
        return None
    return life.accepted_at + seconds


def _stopping(pod: Pod, life: PodState, ending: _Ending, now: float, settings: LifecycleSettings) -> Actions:
    stop: list[Stop] = []
    wake_at = None
    alive = False
    for container in _in_order_of_end(pod):
        it = life.container(container.name)
        is_sidecar = container in pod.spec.init_containers and container.is_sidecar
        if is_sidecar and alive and now < ending.by:
            wake_at = ending.by  # its turn comes when those before it have ended, or have had their time
            break
        alive = alive or it.is_alive
        if it.is_running:
            least = settings.least_sidecar_grace_seconds if is_sidecar and ending.has_grace else 0.0
            stop.append(_stop(container.name, it, ending, now, least))
    is_over = not life.is_alive
    return Actions(
        stop=tuple(stop),
        init_container=current_init_container(pod, life),
        is_over=is_over,
        verdict=outcome(pod, life, now) if is_over and life.verdict is None else None,
        waiting=_waiting(pod, life, now, will_start=False),
        wake_at=wake_at,
    )


def _in_order_of_end(pod: Pod) -> Iterator[Container]:
    """Sidecars last and backwards: each may be needed by those that were started after it."""
    yield from pod.spec.containers
    yield from (container for container in pod.spec.init_containers if not container.is_sidecar)
    yield from reversed(tuple(sidecars(pod)))


def _stop(name: str, it: ContainerRecord, ending: _Ending, now: float, least: float) -> Stop:
    if it.stop_by is None:
        return Stop(name, ending.reason, max(ending.by - now, least, 0.0))
    # Asked already. A grace that is cut short meanwhile is cut short for it too.
    by = min(it.stop_by, max(ending.by, now + least))
    return Stop(name, it.stopping, max(by - now, 0.0), it.stopped_as)


def _living(pod: Pod, life: PodState, now: float) -> Actions:
    current = current_init_container(pod, life)
    init_containers = pod.spec.init_containers
    begun = init_containers if current is None else init_containers[: current + 1]
    candidates = [each for place, each in enumerate(begun) if each.is_sidecar or place == current]
    if current is None:
        candidates += pod.spec.containers
    start = []
    times = [_deadline(pod, life)]
    for container in candidates:
        it = life.container(container.name)
        if it.is_alive or is_done(pod, container, it):
            continue
        if it.start_after <= now:
            start.append(container.name)
        else:
            times.append(it.start_after)
    return Actions(
        start=tuple(start),
        stop=tuple(
            Stop(container.name, it.stopping, max((it.stop_by or now) - now, 0.0), it.stopped_as)
            for container in pod.spec.every_container
            if (it := life.container(container.name)).is_running and it.stopping
        ),
        init_container=current,
        waiting=_waiting(pod, life, now, will_start=True),
        wake_at=min((time for time in times if time is not None), default=None),
    )


def _waiting(pod: Pod, life: PodState, now: float, *, will_start: bool) -> Mapping[str, Waiting]:
    first = Waiting("PodInitializing" if pod.spec.init_containers else "ContainerCreating")
    found = {}
    for container in pod.spec.every_container:
        it = life.container(container.name)
        if it.is_running:
            continue
        if it.held_up and not it.is_asked_for:
            found[container.name] = Waiting(it.held_up, it.held_up_message)
            continue
        is_next = will_start and not is_done(pod, container, it)
        if it.is_asked_for or it.ended is None or (is_next and not it.has_begun):
            found[container.name] = first
        elif is_next and it.start_after > now:
            wait = it.start_after - it.ended.finished_at
            message = f"back-off {_seconds(wait)} restarting failed container={container.name} pod={pod.key}"
            found[container.name] = Waiting(CRASH_LOOP, message)
    return found


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
