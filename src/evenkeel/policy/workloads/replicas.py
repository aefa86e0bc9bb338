"""Deployment, ReplicaSet, ReplicationController and DaemonSet: which pods are made and which end, so that a changed
template replaces them step by step.

Pods that are being ended count against `maxSurge` here: on one node they still take room. Slots are numbered, and each
has one name for one template, so a pod that was deleted by hand comes back with its name when the old one is gone.
"""

from evenkeel.api.pod import Pod
from evenkeel.api.workload_pods import REVISION, TEMPLATE_HASH, replica, replica_names, template_hash
from evenkeel.api.workload_types import (
    ON_DELETE,
    RECREATE,
    Condition,
    DaemonSet,
    DaemonSetStatus,
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetStatus,
    ReplicationController,
)
from evenkeel.api.workloads import replicas_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.workloads.decision import (
    Decision,
    PodFacts,
    RollProgress,
    Situation,
    condition,
    earliest,
)

Replicated = Deployment | ReplicaSet | ReplicationController | DaemonSet
DEFAULT_PROGRESS_DEADLINE_SECONDS = 600


class Bounds(NamedTuple):
    """How far a rollout may go above and below the number of replicas."""

    surge: int
    unavailable: int
    may_yield: bool = False  # without room for a new pod, an old one may end first


class Split(NamedTuple):
    """The pods of a workload that are not being ended: of the present template, and of earlier ones."""

    new: tuple[PodFacts, ...]
    old: tuple[PodFacts, ...]
    ending: tuple[PodFacts, ...]


def decide_replicas(situation: Situation) -> Decision:
    workload = situation.workload
    assert isinstance(workload, Replicated)
    split = split_by_template(workload, situation.pods)
    is_available = {
        pod.name: pod.is_available(workload.spec.min_ready_seconds, situation.now) for pod in situation.pods
    }
    names, delete = _wanted(situation, workload, split, is_available)
    create = tuple(replica(workload, name, situation.profile) for name in names)
    decided = _with_status(situation, workload, split, is_available)
    ready_at = [
        pod.ready_since + workload.spec.min_ready_seconds
        for pod in situation.pods
        if pod.is_ready and not is_available[pod.name]
    ]
    known = [decided.wake_at] if decided.wake_at is not None else []
    return decided._replace(
        create=create, delete=delete, wake_at=earliest([*ready_at, *known], situation.now)
    )


def split_by_template(workload: Replicated, pods: tuple[PodFacts, ...]) -> Split:
    revision = template_hash(workload.spec.template)
    alive = [pod for pod in pods if not pod.is_deleting]
    return Split(
        tuple(pod for pod in alive if revision_of(pod.pod) == revision),
        tuple(pod for pod in alive if revision_of(pod.pod) != revision),
        tuple(pod for pod in pods if pod.is_deleting),
    )


def revision_of(pod: Pod) -> str:
    labels = pod.metadata.labels
    return labels.get(TEMPLATE_HASH) or labels.get(REVISION, "")


def _wanted(
    situation: Situation, workload: Replicated, split: Split, is_available: dict[str, bool]
) -> tuple[list[str], tuple[str, ...]]:
    """The names of the pods that are made, and of those that end."""
    count = replicas_of(workload)
    bounds = bounds_of(workload)
    names = replica_names(workload)
    places, taken = set(names), {pod.name for pod in situation.pods}
    free = [name for name in names if name not in taken]
    surplus = [pod.name for pod in split.new if pod.name not in places]
    if isinstance(workload, Deployment) and workload.spec.paused and split.old:
        over = [pod.name for pod in split.old][max(count - len(split.new), 0) :]
        return [], (*surplus, *over)
    if isinstance(workload, DaemonSet) and workload.spec.update_strategy.type == ON_DELETE and split.old:
        return [], tuple(surplus)
    if isinstance(workload, Deployment) and workload.spec.strategy.type == RECREATE:
        is_clear = not split.old and not any(revision_of(pod.pod) != _hash(workload) for pod in split.ending)
        return (free if is_clear else []), (*surplus, *(pod.name for pod in split.old))
    if not split.old:  # no rollout: fewer replicas are wanted at once
        return free[: max(count + bounds.surge - len(situation.pods), 0)], tuple(surplus)
    staying = [pod for pod in split.new if pod.name in places]
    leaving = [pod for pod in (*split.new, *split.old) if pod.name in surplus or pod in split.old]
    room = count + bounds.surge - len(situation.pods)
    return free[: max(room, 0)], _to_end(count, bounds, staying, leaving, is_available)


def _to_end(
    count: int,
    bounds: Bounds,
    staying: list[PodFacts],
    leaving: list[PodFacts],
    is_available: dict[str, bool],
) -> tuple[str, ...]:
    """The pods that end now: first those that do not serve, then as many as `maxUnavailable` allows."""
    unavailable = bounds.unavailable
    if bounds.may_yield and unavailable == 0 and any(pod.is_refused for pod in staying):
        unavailable = 1
    least = count - unavailable
    idle = [pod.name for pod in leaving if not is_available[pod.name]]
    serving = [pod.name for pod in reversed(leaving) if is_available[pod.name]]
    waiting = sum(not is_available[pod.name] for pod in staying)
    # A pod that does not serve yet may serve soon. So as many old pods stay as are needed, beside new pods that do not
    # serve yet.
    spare = max(len(staying) + len(leaving) - least - waiting, 0)
    serving_now = len(serving) + len(staying) - waiting
    return (*idle[:spare], *serving[: max(serving_now - least, 0)])


def _hash(workload: Replicated) -> str:
    return template_hash(workload.spec.template)


def bounds_of(workload: Replicated) -> Bounds:
    if isinstance(workload, Deployment):
        given = workload.spec.strategy.rolling_update
        surge = "25%" if given is None or given.max_surge is None else given.max_surge
        unavailable = "25%" if given is None or given.max_unavailable is None else given.max_unavailable
        count = replicas_of(workload)
        above, below = share(surge, count, up=True), share(unavailable, count, up=False)
        may_yield = given is None or given.max_unavailable is None
        return Bounds(above, below, may_yield) if above or below else Bounds(0, 1)
    if isinstance(workload, DaemonSet):
        daemon = workload.spec.update_strategy.rolling_update
        surge = 0 if daemon is None or daemon.max_surge is None else daemon.max_surge
        above = share(surge, 1, up=True)
        return Bounds(above, 0 if above else 1)
    return Bounds(0, 1)  # one by one, each after the last is ready


def share(amount: int | str, whole: int, *, up: bool) -> int:
    """A number, or a percentage of `whole`."""
    if isinstance(amount, int):
        return amount
    number = int(amount.removesuffix("%"))
    return -(-number * whole // 100) if up else number * whole // 100


# Status


def _with_status(
    situation: Situation, workload: Replicated, split: Split, is_available: dict[str, bool]
) -> Decision:
    alive = (*split.new, *split.old)
    ready, available = sum(pod.is_ready for pod in alive), sum(is_available[pod.name] for pod in alive)
    generation, progress = workload.metadata.generation or 1, situation.progress
    count = replicas_of(workload)
    if isinstance(workload, Deployment):
        return _with_deployment_status(situation, workload, split, ready, available)
    if isinstance(workload, DaemonSet):
        status = DaemonSetStatus(
            observed_generation=generation,
            desired_number_scheduled=count,
            current_number_scheduled=min(len(alive), count),
            updated_number_scheduled=min(len(split.new), count),
            number_ready=min(ready, count),
            number_available=min(available, count),
            number_unavailable=count - min(available, count),
        )
        return Decision(workload._replace(status=status), progress)
    replica_status = ReplicaSetStatus(generation, len(alive), len(alive), ready, available)
    return Decision(workload._replace(status=replica_status), progress)


def _with_deployment_status(
    situation: Situation, workload: Deployment, split: Split, ready: int, available: int
) -> Decision:
    now, progress, count = situation.now, situation.progress, replicas_of(workload)
    updated = len(split.new)
    total = updated + len(split.old)
    is_done = updated == count == total == available
    roll = _roll(progress.roll, workload, updated, available, now)
    least = count - bounds_of(workload).unavailable
    deadline = workload.spec.progress_deadline_seconds
    deadline_at = roll.at + (DEFAULT_PROGRESS_DEADLINE_SECONDS if deadline is None else deadline)
    is_late = not is_done and not workload.spec.paused and now >= deadline_at
    before = progress.conditions
    name = workload.metadata.name
    conditions: tuple[Condition, ...] = (
        condition(
            before,
            "Available",
            is_true=available >= least,
            reason="MinimumReplicasAvailable" if available >= least else "MinimumReplicasUnavailable",
            message=f"Deployment {'has' if available >= least else 'does not have'} minimum availability.",
            now=now,
        ),
        condition(
            before,
            "Progressing",
            is_true=not is_late,
            reason="ProgressDeadlineExceeded"
            if is_late
            else "NewReplicaSetAvailable"
            if is_done
            else "ReplicaSetUpdated",
            message=f'Deployment "{name}" '
            + (
                "has timed out progressing."
                if is_late
                else "has been rolled out."
                if is_done
                else "is progressing."
            ),
            now=now,
        ),
    )
    status = DeploymentStatus(
        observed_generation=workload.metadata.generation or 1,
        replicas=total,
        updated_replicas=updated,
        ready_replicas=ready,
        available_replicas=available,
        unavailable_replicas=max(count - available, 0),
        terminating_replicas=len(split.ending),
        conditions=conditions,
    )
    wake_at = None if is_done or is_late or workload.spec.paused else deadline_at
    return Decision(
        workload._replace(status=status), progress._replace(conditions=conditions, roll=roll), wake_at=wake_at
    )


def _roll(
    before: RollProgress, workload: Deployment, updated: int, available: int, now: float
) -> RollProgress:
    """When the rollout last came forward: more pods are new or serve than before."""
    revision = _hash(workload)
    came_forward = (
        revision != before.revision
        or updated > before.updated
        or available > before.available
        or not before.at
    )
    if came_forward:
        return RollProgress(now, updated, available, revision)
    return before._replace(updated=updated, available=available)
