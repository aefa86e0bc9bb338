"""Restarts: which container is started next, which has ended for good, and how long a restart or an image pull waits
(back-off).

`actions`, `changes` and `pod_status` ask these questions. They are answered here once, as kubelet answers them.
"""

from collections.abc import Iterator

from evenkeel.api.container import RESTART_ALL, Container, ContainerRestartRule
from evenkeel.api.defaults import DEFAULT_GRACE_PERIOD_SECONDS
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_state import (
    AS_RESTART,
    ContainerRecord,
    Ended,
    LifecycleSettings,
    PodState,
    TerminalStatus,
)

SUCCEEDED, FAILED = "Succeeded", "Failed"


def current_init_container(pod: Pod, state: PodState) -> int | None:
    """The index of the init container that runs or is started next. None once all are passed: from then on the
    pod-level limit applies (D3).

    A sidecar is passed when it has started (its startup probe has passed), any other init container when it has
    succeeded. The index never goes back: a sidecar that ends later is started again beside the others.
    """
    init_containers = pod.spec.init_containers
    if has_initialized(pod, state):
        return None
    begun = [place for place, each in enumerate(init_containers) if state.container(each.name).has_begun]
    furthest = begun[-1] if begun else 0
    if begun and _is_passed(init_containers[furthest], state):
        furthest += 1
    return furthest if furthest < len(init_containers) else None


def has_initialized(pod: Pod, state: PodState) -> bool:
    """Whether a regular container was started."""
    return any(state.container(each.name).has_begun for each in pod.spec.containers)


def is_done(pod: Pod, container: Container, record: ContainerRecord) -> bool:
    """Whether the container has ended and is not started again. A pod that begins anew runs its init containers again,
    whatever their exit code was."""
    is_anew = not record.has_begun and (record.runs_again or runs_before_others(pod, container))
    if record.ended is None or is_anew:
        return False
    return not restarts_after(pod, container, record.ended)


def restarts_after(pod: Pod, container: Container, ended: Ended) -> bool:
    """Whether the restart policy starts the container again. The container's own policy comes before the pod's."""
    if _rule_after(container, ended) is not None:
        return True
    policy = container.restart_policy or pod.spec.restart_policy or "Always"
    if runs_before_others(pod, container):
        return ended.exit_code != 0 and policy != "Never"
    if policy == "OnFailure":
        return ended.exit_code != 0 or bool(ended.stopped_as)
    return policy == "Always"


def may_restart_all(pod: Pod) -> bool:
    """Whether an exit code of one container restarts all of them."""
    rules = (rule for each in pod.spec.sized_containers for rule in each.restart_policy_rules)
    return any(rule.action == RESTART_ALL for rule in rules)


def restarts_all(pod: Pod, state: PodState) -> bool:
    """Whether a container has ended with an exit code that restarts all of them."""
    return any(asks_for_all(each, state.container(each.name)) for each in pod.spec.sized_containers)


def asks_for_all(container: Container, record: ContainerRecord) -> bool:
    """Whether this container's end, since the pod began, restarts all of them."""
    if record.ended is None or record.is_alive or not record.has_begun:
        return False
    rule = _rule_after(container, record.ended)
    return rule is not None and rule.action == RESTART_ALL


def _rule_after(container: Container, ended: Ended) -> ContainerRestartRule | None:
    """The first rule for the exit code. It comes before the restart policy. A stop by the agent has none."""
    if ended.stopped_as:
        return None
    return next((rule for rule in container.restart_policy_rules if _applies(rule, ended.exit_code)), None)


def _applies(rule: ContainerRestartRule, exit_code: int) -> bool:
    codes = rule.exit_codes
    return codes is not None and (exit_code in codes.values) == (codes.operator == "In")


class Backoff(NamedTuple):
    """How long this restart waits after the end of the container, and how long the next restart will wait."""

    seconds: float
    next_seconds: float


def restart_backoff(record: ContainerRecord, end: Ended, settings: LifecycleSettings) -> Backoff:
    """As in kubelet, the first restart does not wait and each further one waits twice as long as the one before. A
    container that ran for long begins anew. A restart that the agent asked for does not wait and does not count."""
    if end.stopped_as == AS_RESTART:
        return Backoff(0.0, record.backoff_seconds)
    ran_seconds = end.finished_at - end.started_at if end.started_at else 0.0
    wait = 0.0 if ran_seconds > settings.backoff_reset_seconds else record.backoff_seconds
    return Backoff(wait, _doubled(wait, settings))


def image_backoff_seconds(record: ContainerRecord, settings: LifecycleSettings) -> float:
    """How long the next start waits if a start failed because its image is missing."""
    return _doubled(record.held_up_seconds, settings)


def backoff_text(seconds: float) -> str:
    """`2m40s`, as kubelet writes a back-off."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def final_ends(pod: Pod, state: PodState) -> tuple[Ended, ...]:
    """The ends that finished the pod; empty while it is not finished. These are the ends of all regular containers, or
    the end of an init container that failed and is not started again. A sidecar does not keep a pod from finishing. A
    pod whose containers all restart does not finish."""
    if restarts_all(pod, state):
        return ()
    for container in pod.spec.init_containers:
        end = None if container.is_sidecar else _last_end(pod, container, state)
        if end is not None and end.exit_code:
            return (end,)
    ends = [_last_end(pod, container, state) for container in pod.spec.containers]
    found = tuple(end for end in ends if end is not None)
    return found if len(found) == len(ends) else ()


def outcome(pod: Pod, state: PodState, at: float) -> TerminalStatus:
    """The terminal status of a pod in which nothing runs: Succeeded if all regular containers succeeded."""
    ends = [state.container(each.name).ended for each in pod.spec.containers]
    succeeded = all(end is not None and end.exit_code == 0 for end in ends)
    return TerminalStatus(SUCCEEDED if succeeded else FAILED, at=at)


def sidecars(pod: Pod) -> Iterator[Container]:
    return (container for container in pod.spec.init_containers if container.is_sidecar)


def grace_seconds(pod: Pod) -> float:
    own = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE_PERIOD_SECONDS if own is None else own)


def _doubled(seconds: float, settings: LifecycleSettings) -> float:
    return min(max(2 * seconds, settings.first_backoff_seconds), settings.greatest_backoff_seconds)


def _is_passed(container: Container, state: PodState) -> bool:
    record = state.container(container.name)
    if container.is_sidecar:
        return record.is_running and record.is_started
    return not record.is_alive and record.ended is not None and record.ended.exit_code == 0


def _last_end(pod: Pod, container: Container, state: PodState) -> Ended | None:
    """How the container ended for good; None if it did not."""
    record = state.container(container.name)
    return record.ended if not record.is_alive and is_done(pod, container, record) else None


def runs_before_others(pod: Pod, container: Container) -> bool:
    """Whether it is an init container and not a sidecar."""
    return container in pod.spec.init_containers and not container.is_sidecar
