"""Jobs: how many pods run, which ends count as failures, and when the Job is over.

Every end of a pod is counted once: the counts and the names of the counted pods are written in one transaction. As in
Kubernetes, failed pods are made anew after 10 s, 20 s and so on up to 6 minutes. An eviction is no failure of the Job.
It has a back-off of its own, so that a node under pressure is not filled again at once.
"""

from collections.abc import Iterable

from evenkeel.api.pod import Pod
from evenkeel.api.workload_pods import job_pod
from evenkeel.api.workload_types import (
    INDEXED,
    Condition,
    Job,
    JobSpec,
    JobStatus,
)
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.policy.workloads.decision import (
    NORMAL,
    WARNING,
    Decision,
    JobProgress,
    PodFacts,
    Situation,
    WorkloadEvent,
    condition,
    earliest,
)
from evenkeel.policy.workloads.job_progress import counted, fails, index_of, numbers, succeeding

COMPLETE, FAILED = "Complete", "Failed"
DEFAULT_BACKOFF_LIMIT = 6
FIRST_BACKOFF_SECONDS = 10.0
GREATEST_BACKOFF_SECONDS = 360.0
GREATEST_DISRUPTION_BACKOFF_SECONDS = 300.0
MOST_ENDED_PODS = 100  # kept for their logs


def decide_job(situation: Situation) -> Decision:
    job = situation.workload
    assert isinstance(job, Job)
    before = situation.progress.job
    progress = _started(before, job.spec, situation.now)
    progress = counted(progress, job, situation)
    if not progress.outcome and not progress.is_ending:
        progress = _failing(progress, job, situation)
        if not progress.is_failing:
            progress = succeeding(progress, job.spec)
    create: tuple[Pod, ...] = ()
    alive = [pod for pod in situation.pods if not pod.has_ended]
    active = [pod for pod in alive if not pod.is_deleting]
    times: list[float] = []
    if progress.outcome or progress.is_ending or job.spec.suspend:
        delete = [pod.name for pod in active]
    else:
        indexes, delete, times = _wanted(progress, job, situation, alive, active)
        create = tuple(
            job_pod(job, progress.attempts + place, index, situation.profile)
            for place, index in enumerate(indexes)
        )
        progress = progress._replace(attempts=progress.attempts + len(create))
    progress = _finished(progress, job.spec, alive, situation.now)
    delete += _old_ends(situation)
    end_at = _over_at(progress, job.spec)
    deadline = job.spec.active_deadline_seconds
    if deadline is not None and progress.started_at and not progress.outcome and not progress.is_ending:
        times.append(progress.started_at + deadline)
    if end_at is not None:
        times.append(end_at)
    conditions = _conditions(situation, job.spec, progress)
    return Decision(
        job._replace(status=_status(situation, progress, conditions, create, delete)),
        situation.progress._replace(job=progress, conditions=conditions),
        create,
        tuple(dict.fromkeys(delete)),
        is_over=end_at is not None and end_at <= situation.now,
        wake_at=earliest(times, situation.now),
        events=_events(before, progress),
    )


def _started(progress: JobProgress, spec: JobSpec, now: float) -> JobProgress:
    """The time of a Job runs from its first decision. While it is suspended, no time runs."""
    if spec.suspend:
        return progress._replace(started_at=0.0) if not progress.outcome else progress
    return progress if progress.started_at else progress._replace(started_at=now)


# Failing and finishing


def _failing(progress: JobProgress, job: Job, situation: Situation) -> JobProgress:
    spec, now = job.spec, situation.now
    limit = _backoff_limit(spec)
    restarts = sum(pod.restarts for pod in situation.pods if not pod.has_ended and not pod.is_deleting)
    deadline = spec.active_deadline_seconds
    if deadline is not None and progress.started_at and now >= progress.started_at + deadline:
        return fails(progress, "DeadlineExceeded", "Job was active longer than specified deadline")
    is_past = progress.failed > limit
    if spec.template.spec.restart_policy == "OnFailure":
        is_past = is_past or (restarts > 0 if limit == 0 else restarts >= limit)
    if is_past:
        return fails(progress, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    most = spec.max_failed_indexes
    if most is not None and len(numbers(progress.failed_indexes)) > most:
        return fails(
            progress,
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        )
    return progress


def _backoff_limit(spec: JobSpec) -> int:
    if spec.backoff_limit is not None:
        return spec.backoff_limit
    return DEFAULT_BACKOFF_LIMIT if spec.backoff_limit_per_index is None else 2**31 - 1


def _finished(progress: JobProgress, spec: JobSpec, alive: list[PodFacts], now: float) -> JobProgress:
    """The progress with its outcome, once no pod is left that runs."""
    if progress.outcome or alive:
        return progress
    if progress.is_failing:
        return progress._replace(outcome=FAILED, finished_at=now)
    if progress.is_succeeding:
        return progress._replace(outcome=COMPLETE, finished_at=now)
    completions, failed = spec.completions, len(numbers(progress.failed_indexes))
    if completions is not None and failed and failed + progress.succeeded >= completions:
        return progress._replace(
            outcome=FAILED, finished_at=now, reason="FailedIndexes", message="Job has failed indexes"
        )
    if progress.succeeded >= completions if completions is not None else progress.succeeded > 0:
        message = "Reached expected number of succeeded pods"
        return progress._replace(
            outcome=COMPLETE, finished_at=now, reason="CompletionsReached", message=message
        )
    return progress


def _over_at(progress: JobProgress, spec: JobSpec) -> float | None:
    if not progress.outcome or spec.ttl_seconds_after_finished is None:
        return None
    return progress.finished_at + spec.ttl_seconds_after_finished


# Pods


class _Wanted(NamedTuple):
    indexes: list[int | None]  # for each new pod
    delete: list[str]
    times: list[float]  # when a back-off is over


def _wanted(
    progress: JobProgress, job: Job, situation: Situation, alive: list[PodFacts], active: list[PodFacts]
) -> _Wanted:
    spec = job.spec
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    if spec.completions is None:
        most = parallelism if not progress.succeeded else min(len(alive), parallelism)
    else:
        done = progress.succeeded + len(numbers(progress.failed_indexes))
        most = min(parallelism, max(spec.completions - done, 0))
    surplus = [pod.name for pod in sorted(active, key=lambda pod: (pod.is_ready, pod.name))]
    delete = surplus[: max(len(active) - most, 0)]
    missing = max(most - len(alive), 0)
    if not missing:
        return _Wanted([], delete, [])
    general = _start_after(progress, "")
    if spec.completion_mode != INDEXED:
        return _Wanted([None] * missing if general <= situation.now else [], delete, [general])
    taken = {index_of(pod, spec) for pod in alive}
    taken |= numbers(progress.completed_indexes) | numbers(progress.failed_indexes)
    found: list[int | None] = []
    times: list[float] = []
    for index in range(spec.completions or 0):
        if len(found) == missing:
            break
        if index in taken:
            continue
        own = general if spec.backoff_limit_per_index is None else _start_after(progress, str(index))
        if own <= situation.now:
            found.append(index)
        else:
            times.append(own)
    return _Wanted(found, delete, times)


def _start_after(progress: JobProgress, place: str) -> float:
    """When the back-off is over: of the Job, or of one index."""
    failures = progress.failures_of.get(place, 0) if place else progress.failures_in_a_row
    after = 0.0
    if failures and place in progress.failed_at:
        after = progress.failed_at[place] + _doubled(failures, GREATEST_BACKOFF_SECONDS)
    if progress.disruptions_in_a_row:
        wait = _doubled(progress.disruptions_in_a_row, GREATEST_DISRUPTION_BACKOFF_SECONDS)
        after = max(after, progress.disrupted_at + wait)
    return after


def _doubled(times: int, greatest: float) -> float:
    return float(min(FIRST_BACKOFF_SECONDS * 2 ** min(times - 1, 10), greatest))


def _old_ends(situation: Situation) -> list[str]:
    ended = sorted((pod for pod in situation.pods if pod.has_ended), key=lambda pod: pod.ended_at)
    over = ended[: max(len(ended) - MOST_ENDED_PODS, 0)]
    return [pod.name for pod in over if not pod.is_deleting]


# Status


def _conditions(situation: Situation, spec: JobSpec, progress: JobProgress) -> tuple[Condition, ...]:
    now, before = situation.now, situation.progress.conditions
    found: list[tuple[str, str, str]] = []
    is_suspended = spec.suspend and not progress.outcome
    if is_suspended or any(one.type == "Suspended" for one in before):
        found.append(("Suspended", "JobSuspended" if is_suspended else "JobResumed", ""))
    if progress.is_failing or progress.outcome == FAILED:
        found.append(("FailureTarget", progress.reason, progress.message))
    if progress.is_succeeding or progress.outcome == COMPLETE:
        found.append(("SuccessCriteriaMet", progress.reason, progress.message))
    if progress.outcome:
        found.append((progress.outcome, progress.reason, progress.message))
    return tuple(
        condition(
            before, kind, is_true=kind != "Suspended" or is_suspended, reason=reason, message=message, now=now
        )
        for kind, reason, message in found
    )


def _status(
    situation: Situation,
    progress: JobProgress,
    conditions: tuple[Condition, ...],
    create: tuple[Pod, ...],
    delete: Iterable[str],
) -> JobStatus:
    leaving = set(delete)
    alive = [pod for pod in situation.pods if not pod.has_ended]
    active = [pod for pod in alive if not pod.is_deleting and pod.name not in leaving]
    return JobStatus(
        start_time=timestamp(progress.started_at) if progress.started_at else None,
        completion_time=timestamp(progress.finished_at) if progress.outcome == COMPLETE else None,
        active=len(active) + len(create),
        ready=sum(pod.is_ready for pod in active),
        terminating=len(alive) - len(active),
        succeeded=progress.succeeded,
        failed=progress.failed,
        completed_indexes=progress.completed_indexes,
        failed_indexes=progress.failed_indexes,
        conditions=conditions,
    )


def _events(before: JobProgress, after: JobProgress) -> tuple[WorkloadEvent, ...]:
    if after.is_failing and not before.is_failing:
        return (WorkloadEvent(WARNING, after.reason, after.message),)
    if after.outcome and not before.outcome and not after.is_failing:
        kind = NORMAL if after.outcome == COMPLETE else WARNING
        return (
            WorkloadEvent(kind, "Completed" if after.outcome == COMPLETE else after.reason, after.message),
        )
    return ()
