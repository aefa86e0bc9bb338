"""What each thing that happens makes of a pod's life. The agent keeps the result before it acts on it."""

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import NOTHING_REQUIRED, ResourceRequirements
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import (
    AS_FAILURE,
    AS_RESTART,
    ContainerRecord,
    Ended,
    LifecycleSettings,
    PodState,
    TerminalStatus,
)
from evenkeel.policy.lifecycle.restarts import FAILED, grace_seconds, restarts_after
from evenkeel.policy.qos import QoSClass, pod_class

COMPLETED, ERROR, OOM_KILLED = "Completed", "Error", "OOMKilled"
START_ERROR, STATUS_UNKNOWN = "StartError", "ContainerStatusUnknown"
START_ERROR_CODE = 128
EVICTED = "Evicted"


def asked_to_start(life: PodState, name: str) -> PodState:
    """The next attempt is decided, and its number used up."""
    it = life.container(name)
    assert not it.is_alive, f"{name} is started twice"
    return life.having(
        name,
        it._replace(
            attempt=it.attempt + 1,
            is_asked_for=True,
            held_up="",
            held_up_message="",
            id="",
            stopping="",
            stop_by=None,
            stopped_as="",
        ),
    )


def not_started(life: PodState, name: str) -> PodState:
    """The start that was asked for was never done, and nothing of it is left: it can be asked for again."""
    it = life.container(name)
    return (
        life.having(name, it._replace(attempt=it.attempt - 1, is_asked_for=False))
        if it.is_asked_for
        else life
    )


def begun_anew(life: PodState) -> PodState:
    """Nothing runs, and what its containers had besides themselves is gone: volumes, whatever was in memory. As kubelet
    does it, the init containers run again before the others, and nothing waits for its back-off; who has ended for good
    is not started again."""
    for name in life.containers:
        life = not_started(life, name)
        it = life.container(name)
        assert not it.is_running, f"{name} runs"
        life = life.having(name, it._replace(attempts_before=it.attempt, start_after=0.0))
    return life


def no_image(
    life: PodState, name: str, reason: str, message: str, now: float, settings: LifecycleSettings
) -> PodState:
    """The start was not begun for want of its image, so it was no attempt: as kubelet does it, that is tried again
    with a back-off of its own, whatever the restart policy says."""
    it = not_started(life, name).container(name)
    wait = max(2 * it.held_up_seconds, settings.first_backoff_seconds)
    wait = min(wait, settings.greatest_backoff_seconds)
    waiting = it._replace(
        held_up=reason, held_up_message=message, held_up_seconds=wait, start_after=now + wait
    )
    return life.having(name, waiting)


def started(
    life: PodState,
    container: Container,
    started_at: float,
    *,
    pid: int = 0,
    pid_start_ticks: int = 0,
    id_: str = "",
    oom_kills_at_start: int = 0,
    resources: ResourceRequirements | None = None,
) -> PodState:
    """It runs. Without a startup probe it counts as started, and then, without a readiness probe, as ready."""
    is_started = container.startup_probe is None
    is_ready = is_started and container.readiness_probe is None
    it = life.container(container.name)._replace(
        is_asked_for=False,
        held_up_seconds=0.0,
        started_at=started_at,
        pid=pid,
        pid_start_ticks=pid_start_ticks,
        id=id_,
        oom_kills_at_start=oom_kills_at_start,
        is_started=is_started,
        is_ready=is_ready,
        ready_changed_at=started_at,
        resources=None if resources == NOTHING_REQUIRED else resources,
    )
    return life.having(container.name, it)


def start_failed(
    life: PodState, name: str, message: str, now: float, settings: LifecycleSettings
) -> PodState:
    """An attempt that never ran ended all the same, and the next waits its time."""
    end = Ended(START_ERROR_CODE, 0, START_ERROR, message, 0.0, now)
    return _ended(life, name, end, settings)


def ended(
    pod: Pod,
    life: PodState,
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
    """It ended; with A17, an OOM kill may be the end of the whole pod."""
    it = life.container(name)
    # A container that lost a child to the OOM killer and still ended well was not killed.
    is_oom_killed = is_oom_killed and exit_code != 0
    if not is_known:
        reason = OOM_KILLED if is_oom_killed else STATUS_UNKNOWN
    elif is_oom_killed:
        reason = OOM_KILLED
    else:
        reason = ERROR if exit_code else COMPLETED
    begun = started_at or it.started_at or 0.0
    end = Ended(exit_code, signal, reason, message or it.stopping, begun, finished_at, it.stopped_as)
    life = _ended(life, name, end, settings)
    if is_oom_killed and settings.profile is Profile.DOCUMENTS and life.deleted_at is None:
        return _after_oom_kill(pod, life, name, finished_at, settings)
    return life


def started_up(life: PodState, container: Container, now: float) -> PodState:
    """The startup probe has passed."""
    it = life.container(container.name)
    if not it.is_running or it.is_started:
        return life
    life = life.having(container.name, it._replace(is_started=True))
    return life if container.readiness_probe else with_readiness(life, container.name, is_ready=True, now=now)


def with_readiness(life: PodState, name: str, *, is_ready: bool, now: float) -> PodState:
    it = life.container(name)
    if it.is_ready == is_ready or not it.is_running:
        return life
    return life.having(name, it._replace(is_ready=is_ready, ready_changed_at=now))


def asked_to_stop(life: PodState, stop: Stop, now: float) -> PodState:
    """The stop is decided: what is left of its grace runs from now, also if the agent is killed meanwhile. Of a second
    stop the sooner end counts."""
    it = life.container(stop.container)
    if not it.is_running:
        return life
    by = now + stop.grace_seconds
    by = by if it.stop_by is None else min(by, it.stop_by)
    it = it._replace(
        stopping=it.stopping or stop.reason, stop_by=by, stopped_as=it.stopped_as or stop.stopped_as
    )
    return life.having(stop.container, it)


def probe_stop(pod: Pod, container: Container, kind: str, message: str) -> Stop:
    """The stop of a container whose liveness or startup probe has failed; the restart policy says what comes then."""
    probe = container.startup_probe if kind == "startup" else container.liveness_probe
    own = probe.termination_grace_period_seconds if probe is not None else None
    grace = grace_seconds(pod) if own is None else float(own)
    reason = f"{kind} probe failed: {message}" if message else f"{kind} probe failed"
    return Stop(container.name, reason, grace, AS_FAILURE)


def deleted(pod: Pod, life: PodState, now: float, given_seconds: float | None = None) -> PodState:
    """Somebody asked for the pod's end. Asked again, the sooner end counts."""
    given = grace_seconds(pod) if given_seconds is None else given_seconds
    if life.deleted_at is None:
        return life._replace(deleted_at=now, deletion_grace_seconds=given)
    before = life.deletion_grace_seconds
    before = grace_seconds(pod) if before is None else before
    return life._replace(deletion_grace_seconds=min(before, max(now + given - life.deleted_at, 0.0)))


def with_verdict(life: PodState, verdict: TerminalStatus) -> PodState:
    """The first word on a pod is the last."""
    return life if life.verdict is not None else life._replace(verdict=verdict)


def _ended(life: PodState, name: str, end: Ended, settings: LifecycleSettings) -> PodState:
    it = life.container(name)
    # As kubelet: the first restart is at once, the second waits; one that has run for long begins anew.
    ran_seconds = end.finished_at - end.started_at if end.started_at else 0.0
    wait = 0.0 if ran_seconds > settings.backoff_reset_seconds else it.backoff_seconds
    following = min(max(2 * wait, settings.first_backoff_seconds), settings.greatest_backoff_seconds)
    if end.stopped_as == AS_RESTART:
        wait, following = 0.0, it.backoff_seconds  # no fault of its own
    after = ContainerRecord(
        attempt=it.attempt,
        attempts_before=it.attempts_before,
        id=it.id,
        ended=end._replace(id=it.id) if it.id else end,
        start_after=end.finished_at + wait,
        backoff_seconds=following,
        oom_kills=it.oom_kills,
        ready_changed_at=end.finished_at if it.is_ready else it.ready_changed_at,
    )
    return life.having(name, after)


def _after_oom_kill(pod: Pod, life: PodState, name: str, now: float, settings: LifecycleSettings) -> PodState:
    """A17: a BestEffort pod is evicted at once, a Burstable one when a container has used up its retries."""
    it = life.container(name)
    recent = it.oom_kills and now - it.oom_kills[-1] <= settings.oom_retries_reset_seconds
    kills = (*it.oom_kills, now) if recent else (now,)
    life = life.having(name, it._replace(oom_kills=kills))
    qos = pod_class(pod, settings.profile)
    container = next((each for each in pod.spec.every_container if each.name == name), None)
    if qos == QoSClass.BEST_EFFORT:
        why = f"Container {name} was OOM-killed, and a BestEffort pod is evicted at once for that."
    elif qos == QoSClass.BURSTABLE and len(kills) > settings.oom_retries and it.ended and container:
        if not restarts_after(pod, container, it.ended):
            return life
        why = (
            f"Container {name} was OOM-killed {len(kills)} times, each within"
            f" {settings.oom_retries_reset_seconds:g}s of the one before, and a Burstable pod is started again"
            f" {settings.oom_retries} times after that."
        )
    else:
        return life
    why += " Give it a memory request that covers its need, or a larger limit."
    return with_verdict(life, TerminalStatus(FAILED, EVICTED, why, now))
