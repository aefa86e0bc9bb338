"""StatefulSets: pods with ordinals, made in order and updated in reverse order, one at a time.

The rules are those of Kubernetes, with one exception: an old pod that never becomes ready does not hold up its own
update."""

from collections.abc import Mapping

from evenkeel.api.pod import PodTemplateSpec
from evenkeel.api.workload_pods import POD_INDEX, stateful_pod, template_hash
from evenkeel.api.workload_types import ON_DELETE, PARALLEL, StatefulSet, StatefulSetStatus
from evenkeel.api.workloads import replicas_of
from evenkeel.policy.workloads.decision import Decision, PodFacts, Situation, earliest
from evenkeel.policy.workloads.replicas import revision_of

Places = Mapping[int, PodFacts | None]  # by ordinal: the pod that is there


def decide_stateful_set(situation: Situation) -> Decision:
    workload = situation.workload
    assert isinstance(workload, StatefulSet)
    spec, name = workload.spec, workload.metadata.name
    pods = {pod.name: pod for pod in situation.pods}
    ordinals = range(spec.ordinals.start, spec.ordinals.start + replicas_of(workload))
    places = {ordinal: pods.get(f"{name}-{ordinal}") for ordinal in ordinals}
    surplus = [pod for pod in situation.pods if pod not in places.values()]
    serving = {pod.name for pod in situation.pods if pod.is_available(spec.min_ready_seconds, situation.now)}
    create, delete = _to_number(workload, places, surplus, serving)
    if not create and not surplus:
        delete = _to_template(workload, places, serving)
    stable = _stable(situation, workload, places)
    ready_at = [pod.ready_since + spec.min_ready_seconds for pod in situation.pods if pod.is_ready]
    return Decision(
        workload._replace(status=_status(situation, workload, stable, serving)),
        situation.progress._replace(stable=None if stable == spec.template else stable),
        tuple(
            stateful_pod(workload, _template(workload, stable, ordinal), ordinal, situation.profile)
            for ordinal in create
        ),
        tuple(delete),
        wake_at=earliest(ready_at, situation.now),
    )


def _to_number(
    workload: StatefulSet, places: Places, surplus: list[PodFacts], serving: set[str]
) -> tuple[list[int], list[str]]:
    """The ordinals to make and the pods to end, so that there are as many as wanted."""
    if workload.spec.pod_management_policy == PARALLEL:
        missing = [ordinal for ordinal, pod in places.items() if pod is None]
        return missing, [pod.name for pod in surplus if not pod.is_deleting]
    for ordinal, pod in places.items():
        if pod is None:
            return [ordinal], []
        if pod.name not in serving:
            return [], []  # the next waits for it
    last = max(surplus, key=_ordinal, default=None)
    return [], [last.name] if last is not None and not last.is_deleting else []


def _to_template(workload: StatefulSet, places: Places, serving: set[str]) -> list[str]:
    """The pod that ends next because its template has changed: the greatest ordinal first. Each pod ends only when the
    pod that was replaced before serves."""
    if workload.spec.update_strategy.type == ON_DELETE:
        return []
    new = template_hash(workload.spec.template)
    for ordinal in sorted(places, reverse=True):
        pod = places[ordinal]
        if ordinal < _partition(workload) or pod is None:
            return []
        if revision_of(pod.pod) != new:
            return [] if pod.is_deleting else [pod.name]
        if pod.name not in serving:
            return []
    return []


def _stable(situation: Situation, workload: StatefulSet, places: Places) -> PodTemplateSpec:
    """The template before the present update; the new one once every pod has it."""
    new = template_hash(workload.spec.template)
    is_complete = all(pod is not None and revision_of(pod.pod) == new for pod in places.values())
    return workload.spec.template if is_complete else situation.progress.stable or workload.spec.template


def _template(workload: StatefulSet, stable: PodTemplateSpec, ordinal: int) -> PodTemplateSpec:
    """An ordinal below the partition keeps the template that it had before the update."""
    return stable if ordinal < _partition(workload) else workload.spec.template


def _partition(workload: StatefulSet) -> int:
    rolling = workload.spec.update_strategy.rolling_update
    return rolling.partition if rolling is not None else 0


def _ordinal(pod: PodFacts) -> int:
    text = pod.pod.metadata.labels.get(POD_INDEX, "")
    return int(text) if text.isdecimal() else -1


def _status(
    situation: Situation, workload: StatefulSet, stable: PodTemplateSpec, serving: set[str]
) -> StatefulSetStatus:
    name = workload.metadata.name
    new, old = template_hash(workload.spec.template), template_hash(stable)
    alive = [pod for pod in situation.pods if not pod.is_deleting]
    return StatefulSetStatus(
        observed_generation=workload.metadata.generation or 1,
        replicas=len(situation.pods),
        ready_replicas=sum(pod.is_ready for pod in alive),
        current_replicas=sum(revision_of(pod.pod) == old for pod in alive),
        updated_replicas=sum(revision_of(pod.pod) == new for pod in alive),
        available_replicas=len(serving),
        current_revision=f"{name}-{old}",
        update_revision=f"{name}-{new}",
    )
