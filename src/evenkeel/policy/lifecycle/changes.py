"""How each event changes the state of a pod: a start, an end, a probe result. Stops are in `stops`.

Each function returns the new state. The agent writes it to the journal before it acts on it.
"""

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import NOTHING_REQUIRED, ResourceRequirements
from evenkeel.policy.eviction.decide import EVICTED
from evenkeel.policy.lifecycle.pod_state import (
    ContainerRecord,
    Ended,
    LifecycleSettings,
    PodState,
    TerminalStatus,
)
from evenkeel.policy.lifecycle.restarts import (
    FAILED,
    asks_for_all,
    image_backoff_seconds,
    restart_backoff,
    restarts_after,
)
from evenkeel.policy.qos import QoSClass, pod_class

COMPLETED, ERROR, OOM_KILLED = "Completed", "Error", "OOMKilled"
START_ERROR, STATUS_UNKNOWN = "StartError", "ContainerStatusUnknown"
START_ERROR_CODE = 128
CONFIG_ERROR = "CreateContainerConfigError"


def asked_to_start(state: PodState, name: str) -> PodState:
    """The start of the next attempt is decided. Its number is never used again."""
    record = state.container(name)
    assert not record.is_alive, f"{name} is started twice"
    return state.with_container(
        name,
        record._replace(
            attempt=record.attempt + 1,
            is_asked_for=True,
            held_up="",
            held_up_message="",
            id="",
            stopping="",
            stop_by=None,
            stopped_as="",
        ),
    )


def not_started(state: PodState, name: str) -> PodState:
    """The start was requested and did not happen, and nothing of it is left. It can be requested again."""
    record = state.container(name)
    return (
        state.with_container(name, record._replace(attempt=record.attempt - 1, is_asked_for=False))
        if record.is_asked_for
        else state
    )


def begun_anew(state: PodState) -> PodState:
    """The pod begins anew after a reboot: nothing of it runs, and its volumes are gone.

    As in kubelet, its init containers run again before the others, and no container waits for its back-off. A
    container that has ended for good is not started again.
    """
    for name in state.containers:
        state = not_started(state, name)
        record = state.container(name)
        assert not record.is_running, f"{name} runs"
        begun = record._replace(
            attempts_before=record.attempt,
            runs_again=record.runs_again and not record.has_begun,
            start_after=0.0,
        )
        state = state.with_container(name, begun)
    return state


def all_again(pod: Pod, state: PodState) -> PodState:
    """All containers have ended because one of them asked for that (`RestartAllContainers`). They start again, init
    containers first, whatever their restart policies are. The one that asked keeps its back-off."""
    for container in pod.spec.sized_containers:
        record = state.container(container.name)
        assert not record.is_alive, f"{container.name} runs"
        start_after = record.start_after if asks_for_all(container, record) else 0.0
        again = record._replace(attempts_before=record.attempt, runs_again=True, start_after=start_after)
        state = state.with_container(container.name, again)
    return state


def no_image(
    state: PodState, name: str, reason: str, message: str, now: float, settings: LifecycleSettings
) -> PodState:
    """The start was not begun because the image is missing, so it does not count as an attempt. As in kubelet it is
    tried again with a back-off of its own, whatever the restart policy is."""
    record = not_started(state, name).container(name)
    wait = image_backoff_seconds(record, settings)
    waiting = record._replace(
        held_up=reason, held_up_message=message, held_up_seconds=wait, start_after=now + wait
    )
    return state.with_container(name, waiting)


def other_image(state: PodState, name: str) -> PodState:
    """The container has got another image. As in kubelet, back-offs belong to the former image, so they are over."""
    record = state.container(name)._replace(
        held_up="", held_up_message="", held_up_seconds=0.0, backoff_seconds=0.0, start_after=0.0
    )
    return state.with_container(name, record)


def without_data(state: PodState, name: str, message: str) -> PodState:
    """The container waits for a ConfigMap or Secret. The change of the object asks for the next decision, so there is
    no back-off."""
    record = state.container(name)
    return state.with_container(name, record._replace(held_up=CONFIG_ERROR, held_up_message=message))


def started(
    state: PodState,
    container: Container,
    started_at: float,
    *,
    pid: int = 0,
    pid_start_ticks: int = 0,
    id_: str = "",
    image_id: str = "",
    oom_kills_at_start: int = 0,
    resources: ResourceRequirements | None = None,
    in_post_start: bool = False,
) -> PodState:
    """The container runs. Without a startup probe it counts as started; without a readiness probe also as ready. While
    its postStart hook runs it is neither."""
    is_started = container.startup_probe is None and not in_post_start
    is_ready = is_started and container.readiness_probe is None
    before = state.container(container.name)
    record = before._replace(
        is_asked_for=False,
        held_up_seconds=0.0,
        started_at=started_at,
        in_post_start=in_post_start,
        pid=pid,
        pid_start_ticks=pid_start_ticks,
        id=id_,
        image_id=image_id,
        oom_kills_at_start=oom_kills_at_start,
        is_started=is_started,
        is_ready=is_ready,
        # A container that is not ready now was not ready before.
        ready_changed_at=started_at if is_ready else before.ready_changed_at,
        resources=None if resources == NOTHING_REQUIRED else resources,
    )
    return state.with_container(container.name, record)


def start_failed(
    pod: Pod,
    state: PodState,
    name: str,
    message: str,
    now: float,
    settings: LifecycleSettings,
    *,
    is_oom_killed: bool = False,
) -> PodState:
    """The attempt ended before it ran. The next attempt waits for its back-off. Its process may have been OOM-killed
    while it was being set up, which may end the whole pod (A17)."""
    end = Ended(START_ERROR_CODE, 0, START_ERROR, message, 0.0, now)
    state = _ended(state, name, end, settings)
    return _after_oom_kill(pod, state, name, now, settings) if is_oom_killed else state


def ended(
    pod: Pod,
    state: PodState,
    name: str,
    *,
    exit_code: int,
    signal: int = 0,
    started_at: float = 0.0,
    finished_at: float,
    is_known: bool = True,
    message: str = "",
    is_oom_killed: bool = False,
    settings: LifecycleSettings,
) -> PodState:
    """The container ended. An OOM kill may end the whole pod (A17)."""
    record = state.container(name)
    # The OOM killer may have killed a child of the container. If the container still succeeded, it was not killed.
    is_oom_killed = is_oom_killed and exit_code != 0
    if not is_known:
        reason = OOM_KILLED if is_oom_killed else STATUS_UNKNOWN
    elif is_oom_killed:
        reason = OOM_KILLED
    else:
        reason = ERROR if exit_code else COMPLETED
    begun = started_at or record.started_at or 0.0
    end = Ended(exit_code, signal, reason, message or record.stopping, begun, finished_at, record.stopped_as)
    state = _ended(state, name, end, settings)
    return _after_oom_kill(pod, state, name, finished_at, settings) if is_oom_killed else state


def post_started(state: PodState, container: Container, now: float) -> PodState:
    """The postStart hook of the container has ended."""
    record = state.container(container.name)
    if not record.is_running or not record.in_post_start:
        return state
    state = state.with_container(container.name, record._replace(in_post_start=False))
    return state if container.startup_probe else started_up(state, container, now)


def hooks_left(pod: Pod, state: PodState, now: float) -> PodState:
    """A former agent was killed while postStart hooks ran. As in kubelet they are not run again in the same attempt."""
    for container in pod.spec.every_container:
        state = post_started(state, container, now)
    return state


def started_up(state: PodState, container: Container, now: float) -> PodState:
    """The startup probe of the container has passed."""
    record = state.container(container.name)
    if not record.is_running or record.is_started:
        return state
    state = state.with_container(container.name, record._replace(is_started=True))
    return (
        state if container.readiness_probe else with_readiness(state, container.name, is_ready=True, now=now)
    )


def with_readiness(state: PodState, name: str, *, is_ready: bool, now: float) -> PodState:
    record = state.container(name)
    if record.is_ready == is_ready or not record.is_running:
        return state
    return state.with_container(name, record._replace(is_ready=is_ready, ready_changed_at=now))


def clock_moved(state: PodState, seconds: float) -> PodState:
    """The machine's clock was set forward by this many seconds, or back. The times that decisions compare with the
    clock are moved by as much. So the remaining time of a back-off and the age of a container stay the same."""
    containers = {
        name: record._replace(
            started_at=_moved(record.started_at, seconds),
            start_after=record.start_after + seconds if record.start_after else 0.0,
            stop_by=_moved(record.stop_by, seconds),
            ready_changed_at=record.ready_changed_at + seconds if record.ready_changed_at else 0.0,
        )
        for name, record in state.containers.items()
    }
    verdict = state.verdict
    return state._replace(
        accepted_at=state.accepted_at + seconds if state.accepted_at else 0.0,
        containers=containers,
        verdict=verdict._replace(at=verdict.at + seconds) if verdict is not None else None,
        deleted_at=_moved(state.deleted_at, seconds),
    )


def _moved(at: float | None, seconds: float) -> float | None:
    return None if at is None else at + seconds


def with_terminal_status(state: PodState, terminal: TerminalStatus) -> PodState:
    """A terminal status is set once: a later one changes nothing."""
    return state if state.verdict is not None else state._replace(verdict=terminal)


def _ended(state: PodState, name: str, end: Ended, settings: LifecycleSettings) -> PodState:
    record = state.container(name)
    backoff = restart_backoff(record, end, settings)
    after = ContainerRecord(
        attempt=record.attempt,
        attempts_before=record.attempts_before,
        id=record.id,
        image_id=record.image_id,
        ended=end._replace(id=record.id) if record.id else end,
        ended_before=record.ended,
        start_after=end.finished_at + backoff.seconds,
        backoff_seconds=backoff.next_seconds,
        oom_kills=record.oom_kills,
        ready_changed_at=end.finished_at if record.is_ready else record.ready_changed_at,
    )
    return state.with_container(name, after)


def _after_oom_kill(
    pod: Pod, state: PodState, name: str, now: float, settings: LifecycleSettings
) -> PodState:
    """A17: a BestEffort pod is evicted at once, a Burstable pod when a container has used up its retries."""
    if settings.profile is not Profile.DOCUMENTS or state.deleted_at is not None:
        return state
    if pod.spec.ephemeral(name) is not None:
        return state  # the OOM kill of an ephemeral container does not end its pod
    record = state.container(name)
    recent = record.oom_kills and now - record.oom_kills[-1] <= settings.oom_retries_reset_seconds
    kills = (*record.oom_kills, now) if recent else (now,)
    state = state.with_container(name, record._replace(oom_kills=kills))
    qos = pod_class(pod, settings.profile)
    container = next((each for each in pod.spec.every_container if each.name == name), None)
    if qos == QoSClass.BEST_EFFORT:
        why = f"Container {name} was OOM-killed, and a BestEffort pod is evicted at once for that."
    elif qos == QoSClass.BURSTABLE and len(kills) > settings.oom_retries and record.ended and container:
        if not restarts_after(pod, container, record.ended):
            return state
        why = (
            f"Container {name} was OOM-killed {len(kills)} times, each within"
            f" {settings.oom_retries_reset_seconds:g}s of the one before, and a Burstable pod is started again"
            f" {settings.oom_retries} times after that."
        )
    else:
        return state
    why += " Give it a memory request that covers its need, or a larger limit."
    # A BestEffort pod has no limit of its own that it could have reached: the node needed its memory.
    is_disruption = qos == QoSClass.BEST_EFFORT
    return with_terminal_status(state, TerminalStatus(FAILED, EVICTED, why, now, is_disruption=is_disruption))
