"""How far a pod has come and what may still be started in it: the questions that actions and status share."""

from collections.abc import Iterator

from evenkeel.api.container import Container
from evenkeel.api.defaults import DEFAULT_GRACE_PERIOD_SECONDS
from evenkeel.api.pod import Pod
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, Ended, PodState, TerminalStatus

SUCCEEDED, FAILED = "Succeeded", "Failed"


def current_init_container(pod: Pod, life: PodState) -> int | None:
    """The index of the init container that runs or is next; None once the last has been passed, which is the moment
    from which the pod-level limit holds (D3).

    One that runs to its end is passed when it has succeeded, a sidecar when it has started (its startup probe has
    passed). What has been passed is never gone back to: a sidecar that ends later is started again in its place.
    """
    init_containers = pod.spec.init_containers
    if has_initialized(pod, life):
        return None
    begun = [place for place, each in enumerate(init_containers) if life.container(each.name).has_begun]
    furthest = begun[-1] if begun else 0
    if begun and _is_passed(init_containers[furthest], life):
        furthest += 1
    return furthest if furthest < len(init_containers) else None


def has_initialized(pod: Pod, life: PodState) -> bool:
    """A container other than the init ones was started once."""
    return any(life.container(each.name).has_begun for each in pod.spec.containers)


def is_done(pod: Pod, container: Container, it: ContainerRecord) -> bool:
    """Whether it has ended and is not started again. In a pod that begins anew its init containers are, whatever they
    came to before."""
    if it.ended is None or (not it.has_begun and runs_to_its_end_first(pod, container)):
        return False
    return not restarts_after(pod, container, it.ended)


def restarts_after(pod: Pod, container: Container, ended: Ended) -> bool:
    """What the restart policy says: the container's own where it has one, or the pod's."""
    policy = container.restart_policy or pod.spec.restart_policy or "Always"
    if runs_to_its_end_first(pod, container):
        return ended.exit_code != 0 and policy != "Never"  # once it has succeeded it is done
    if policy == "OnFailure":
        return ended.exit_code != 0 or bool(ended.stopped_as)
    return policy == "Always"


def final_ends(pod: Pod, life: PodState) -> tuple[Ended, ...]:
    """The ends that finished the pod, if it is finished: of every container that is no init container, or of the init
    container that failed and is not tried again. Sidecars keep no pod alive."""
    for container in pod.spec.init_containers:
        end = None if container.is_sidecar else _last_end(pod, container, life)
        if end is not None and end.exit_code:
            return (end,)
    ends = [_last_end(pod, container, life) for container in pod.spec.containers]
    found = tuple(end for end in ends if end is not None)
    return found if len(found) == len(ends) else ()


def outcome(pod: Pod, life: PodState, at: float) -> TerminalStatus:
    """What a pod came to that nothing runs in any more: success is that of all its containers."""
    ends = [life.container(each.name).ended for each in pod.spec.containers]
    succeeded = all(end is not None and end.exit_code == 0 for end in ends)
    return TerminalStatus(SUCCEEDED if succeeded else FAILED, at=at)


def sidecars(pod: Pod) -> Iterator[Container]:
    return (container for container in pod.spec.init_containers if container.is_sidecar)


def grace_seconds(pod: Pod) -> float:
    own = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE_PERIOD_SECONDS if own is None else own)


def _is_passed(container: Container, life: PodState) -> bool:
    it = life.container(container.name)
    if container.is_sidecar:
        return it.is_running and it.is_started
    return not it.is_alive and it.ended is not None and it.ended.exit_code == 0


def _last_end(pod: Pod, container: Container, life: PodState) -> Ended | None:
    """How the container ended for good; None if it has not."""
    it = life.container(container.name)
    return it.ended if not it.is_alive and is_done(pod, container, it) else None


def runs_to_its_end_first(pod: Pod, container: Container) -> bool:
    """An init container that is no sidecar."""
    return container in pod.spec.init_containers and not container.is_sidecar
