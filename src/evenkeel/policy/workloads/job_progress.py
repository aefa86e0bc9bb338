"""How far a Job is: counts the pods that have succeeded or failed, by the rules of its podFailurePolicy.

Each end is counted once. An evicted pod does not count as failed.
"""

from collections.abc import Iterable

from evenkeel.api.workload_pods import COMPLETION_INDEX
from evenkeel.api.workload_types import (
    COUNT,
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    INDEXED,
    Job,
    JobSpec,
    PodFailurePolicyRule,
)
from evenkeel.policy.lifecycle.restarts import SUCCEEDED
from evenkeel.policy.workloads.decision import (
    JobProgress,
    PodFacts,
    Situation,
)


def counted(progress: JobProgress, job: Job, situation: Situation) -> JobProgress:
    """The progress with every end that was not counted before."""
    there = {pod.name for pod in situation.pods}
    progress = progress._replace(counted=tuple(name for name in progress.counted if name in there))
    fresh = [pod for pod in situation.pods if pod.has_ended and pod.name not in progress.counted]
    for pod in sorted(fresh, key=lambda pod: pod.ended_at):
        progress = _with_end(progress, job.spec, pod)._replace(counted=(*progress.counted, pod.name))
    return progress


def _with_end(progress: JobProgress, spec: JobSpec, pod: PodFacts) -> JobProgress:
    index = index_of(pod, spec)
    if pod.phase == SUCCEEDED:
        done = set() if index is None else numbers(progress.completed_indexes) | {index}
        return progress._replace(
            succeeded=progress.succeeded + 1 if index is None else len(done),
            completed_indexes=ranges(done),
            failures_in_a_row=0,
            disruptions_in_a_row=0,
        )
    if pod.is_deleting:
        return progress  # it was asked to end
    rule = _rule(spec, pod)
    if rule is None and pod.is_disruption:
        return _disrupted(progress, pod)
    action = rule.action if rule is not None else COUNT
    if action == IGNORE:
        return _disrupted(progress, pod)
    place = "" if index is None or spec.backoff_limit_per_index is None else str(index)
    progress = progress._replace(
        failed=progress.failed + 1,
        failed_at={**progress.failed_at, place: pod.ended_at},
        failures_in_a_row=progress.failures_in_a_row + 1,
    )
    if action == FAIL_JOB:
        message = f"Container of pod {pod.pod.key} failed, and a rule of podFailurePolicy says FailJob"
        return fails(progress, "PodFailurePolicy", message)
    if index is None or spec.backoff_limit_per_index is None:
        return progress
    failures = progress.failures_of.get(place, 0) + 1
    progress = progress._replace(failures_of={**progress.failures_of, place: failures})
    if failures > spec.backoff_limit_per_index or action == FAIL_INDEX:
        progress = progress._replace(failed_indexes=ranges(numbers(progress.failed_indexes) | {index}))
    return progress


def _disrupted(progress: JobProgress, pod: PodFacts) -> JobProgress:
    return progress._replace(
        disruptions_in_a_row=progress.disruptions_in_a_row + 1, disrupted_at=pod.ended_at
    )


def _rule(spec: JobSpec, pod: PodFacts) -> PodFailurePolicyRule | None:
    rules = spec.pod_failure_policy.rules if spec.pod_failure_policy is not None else ()
    return next((rule for rule in rules if _applies(rule, pod)), None)


def _applies(rule: PodFailurePolicyRule, pod: PodFacts) -> bool:
    codes = rule.on_exit_codes
    if codes is not None:
        seen = [
            code
            for name, code in pod.exit_codes.items()
            if code and (not codes.container_name or name == codes.container_name)
        ]
        return any((code in codes.values) == (codes.operator == "In") for code in seen)
    return any(
        one.type == "DisruptionTarget" and (one.status or "True") == "True" and pod.is_disruption
        for one in rule.on_pod_conditions
    )


def succeeding(progress: JobProgress, spec: JobSpec) -> JobProgress:
    """The progress once a rule of successPolicy is met by the indexes that have succeeded."""
    rules = spec.success_policy.rules if spec.success_policy is not None else ()
    done = numbers(progress.completed_indexes) if rules else set()
    for place, rule in enumerate(rules):
        among = done if rule.succeeded_indexes is None else numbers(rule.succeeded_indexes)
        needed = len(among) if rule.succeeded_count is None else rule.succeeded_count
        if len(done & among) >= needed:
            return progress._replace(
                is_succeeding=True, reason="SuccessPolicy", message=f"Matched rules at index {place}"
            )
    return progress


def index_of(pod: PodFacts, spec: JobSpec) -> int | None:
    text = pod.pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return int(text) if spec.completion_mode == INDEXED and text.isdecimal() else None


def fails(progress: JobProgress, reason: str, message: str) -> JobProgress:
    return progress._replace(is_failing=True, reason=reason, message=message)


def ranges(indexes: Iterable[int]) -> str:
    """`0-2,5`"""
    found: list[list[int]] = []
    for index in sorted(indexes):
        if found and found[-1][-1] == index - 1:
            found[-1] = [found[-1][0], index]
        else:
            found.append([index])
    return ",".join("-".join(map(str, span)) for span in found)


def numbers(text: str) -> set[int]:
    """The indexes of `ranges`."""
    found: set[int] = set()
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
