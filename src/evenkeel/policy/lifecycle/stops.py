"""How pods stop: the stop of a container, a deletion, the end of the agent, and the shutdown of the node.

A stop changes the state of a pod. Each function returns the new state, or the stop itself. The agent writes the state
to the journal before it acts on it. At a shutdown (shutdownGracePeriod) ordinary pods end first. Critical pods have the
last part of the time for themselves: others may need them until then.
"""

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.actions import Stop, actions
from evenkeel.policy.lifecycle.pod_state import AS_FAILURE, AS_RESTART, LifecycleSettings, PodState
from evenkeel.policy.lifecycle.restarts import grace_seconds
from evenkeel.policy.qos import is_critical


def asked_to_stop(state: PodState, stop: Stop, now: float) -> PodState:
    """The stop is decided. Its grace period begins now and continues even if the agent is killed. If the stop is asked
    for twice, the sooner end counts."""
    record = state.container(stop.container)
    if not record.is_running:
        return state
    by = now + stop.grace_seconds
    by = by if record.stop_by is None else min(by, record.stop_by)
    record = record._replace(
        stopping=record.stopping or stop.reason, stop_by=by, stopped_as=record.stopped_as or stop.stopped_as
    )
    return state.with_container(stop.container, record)


def probe_stop(pod: Pod, container: Container, kind: str, message: str) -> Stop:
    """The stop of a container whose liveness or startup probe has failed. The restart policy decides what follows."""
    probe = container.startup_probe if kind == "startup" else container.liveness_probe
    own = probe.termination_grace_period_seconds if probe is not None else None
    grace = grace_seconds(pod) if own is None else float(own)
    reason = f"{kind} probe failed: {message}" if message else f"{kind} probe failed"
    return Stop(container.name, reason, grace, AS_FAILURE)


def image_stop(pod: Pod, container: Container) -> Stop:
    """The stop of a container that has got another image. It starts again with the new one."""
    return Stop(container.name, "its image has changed", grace_seconds(pod), AS_RESTART)


def hook_stop(pod: Pod, container: Container, message: str) -> Stop:
    """The stop of a container whose postStart hook has failed. The restart policy decides what follows."""
    return Stop(container.name, f"postStart hook failed: {message}", grace_seconds(pod), AS_FAILURE)


def deleted(pod: Pod, state: PodState, now: float, given_seconds: float | None = None) -> PodState:
    """The deletion of the pod was asked for. If it is asked for twice, the sooner end counts."""
    given = grace_seconds(pod) if given_seconds is None else given_seconds
    if state.deleted_at is None:
        return state._replace(deleted_at=now, deletion_grace_seconds=given)
    before = state.deletion_grace_seconds
    before = grace_seconds(pod) if before is None else before
    return state._replace(deletion_grace_seconds=min(before, max(now + given - state.deleted_at, 0.0)))


def agent_ends(
    pod: Pod,
    state: PodState,
    since: float,
    given_seconds: float | None,
    now: float,
    settings: LifecycleSettings,
) -> PodState:
    """The agent is shutting down since the time `since`, and stops the containers. Their order is that of a deleted
    pod: sidecars last. The pod is not deleted: the next agent starts them again."""
    for stop in actions(pod, deleted(pod, state, since, given_seconds), now, settings).stop:
        why = stop._replace(reason="the agent is shutting down", stopped_as=AS_RESTART)
        state = asked_to_stop(state, why, now)
    return state


class ShutdownPhase(NamedTuple):
    """A part of the shutdown. Pods that are in it end within `seconds`; None: each within its own grace period."""

    profile: Profile
    takes_ordinary: bool
    takes_critical: bool
    seconds: float | None = None

    def grace(self, pod: Pod) -> float | None:
        """The grace period of the pod; None if it is not in this part. No pod has more than its own grace period."""
        if not (self.takes_critical if is_critical(pod, self.profile) else self.takes_ordinary):
            return None
        own = grace_seconds(pod)
        return own if self.seconds is None else min(own, self.seconds)


def shutdown_phases(config: KubeletConfiguration) -> tuple[ShutdownPhase, ...]:
    """The parts of a shutdown, in their order."""
    profile = config.rulebook
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    if not whole:
        return (ShutdownPhase(profile, takes_ordinary=True, takes_critical=True),)
    return (
        ShutdownPhase(
            profile, takes_ordinary=True, takes_critical=False, seconds=whole.seconds - critical.seconds
        ),
        ShutdownPhase(profile, takes_ordinary=False, takes_critical=True, seconds=critical.seconds),
    )
