"""CronJobs: when the next Job is made, what happens if one still runs, and which old Jobs are deleted.

As in Kubernetes, only the last of several missed times is made up for, and a Job has the minute of its schedule in its
name. So one time never has two Jobs, whenever the agent was killed.
"""

from datetime import tzinfo

from evenkeel.api.cron_schedule import Schedule, parse_schedule
from evenkeel.api.workload_pods import job_of
from evenkeel.api.workload_types import FORBID, REPLACE, CronJob, CronJobStatus, Job, ObjectReference
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.policy.workloads.decision import NORMAL, WARNING, Decision, JobFacts, Situation, WorkloadEvent
from evenkeel.policy.workloads.jobs import COMPLETE, FAILED

SUCCESSFUL_JOBS_KEPT, FAILED_JOBS_KEPT = 3, 1
MOST_MISSED = 100
_TOO_MANY = WorkloadEvent(
    WARNING,
    "TooManyMissedTimes",
    f"more than {MOST_MISSED} start times were missed: look at the clock, or set startingDeadlineSeconds",
)
_LONGEST_BASE = 52  # as in Kubernetes


def decide_cron_job(situation: Situation, zone: tzinfo) -> Decision:
    """`zone` is that of `spec.timeZone`, or the machine's."""
    cron = situation.workload
    assert isinstance(cron, CronJob)
    schedule = parse_schedule(cron.spec.schedule)
    progress, now = situation.progress.cron, situation.now
    active = [one for one in situation.jobs if not one.progress.outcome]
    progress = progress._replace(
        last_success_at=max(
            [one.progress.finished_at for one in situation.jobs if one.progress.outcome == COMPLETE]
            + [progress.last_success_at]
        )
    )
    delete = _old_jobs(cron, situation.jobs)
    create: list[Job] = []
    events: list[WorkloadEvent] = []
    since = _since(situation, cron)
    due = None if cron.spec.suspend else schedule.last_between(since, now, zone)
    why_not = None if due is None else _why_not(cron, due, active)
    if due is not None and why_not is not None:
        if progress.blocked_at != due:
            events.append(why_not)
        progress = progress._replace(blocked_at=due)
    elif due is not None:
        if _are_many(schedule, since, now, zone):
            events.append(_TOO_MANY)
        if cron.spec.concurrency_policy == REPLACE:
            delete += [one.job.metadata.name for one in active]
        name = f"{cron.metadata.name[:_LONGEST_BASE]}-{int(due) // 60}"
        if all(one.job.metadata.name != name for one in situation.jobs):
            create.append(job_of(cron, name))
            events.append(WorkloadEvent(NORMAL, "SuccessfulCreate", f"created job {name}"))
        progress = progress._replace(last_schedule_at=due)
    status = CronJobStatus(
        tuple(_reference(one) for one in active if one.job.metadata.name not in delete),
        timestamp(progress.last_schedule_at) if progress.last_schedule_at else None,
        timestamp(progress.last_success_at) if progress.last_success_at else None,
    )
    return Decision(
        cron._replace(status=status),
        situation.progress._replace(cron=progress),
        create_jobs=tuple(create),
        delete_jobs=tuple(dict.fromkeys(delete)),
        wake_at=None if cron.spec.suspend else schedule.next_after(now, zone),
        events=tuple(events),
    )


def _since(situation: Situation, cron: CronJob) -> float:
    """Scheduled times after this one are made up for. A time that is older than the deadline is missed."""
    since = situation.progress.cron.last_schedule_at or situation.progress.created_at
    deadline = cron.spec.starting_deadline_seconds
    return since if deadline is None else max(since, situation.now - deadline)


def _are_many(schedule: Schedule, since: float, until: float, zone: tzinfo) -> bool:
    time: float | None = since
    for _ in range(MOST_MISSED + 1):
        time = schedule.next_after(time, zone) if time is not None else None
        if time is None or time > until:
            return False
    return True


def _reference(one: JobFacts) -> ObjectReference:
    meta = one.job.metadata
    return ObjectReference("batch/v1", "Job", meta.namespace, meta.name, meta.uid)


def _why_not(cron: CronJob, due: float, active: list[JobFacts]) -> WorkloadEvent | None:
    if cron.spec.concurrency_policy != FORBID or not active:
        return None
    message = f"the start at {timestamp(due)} waits: a Job still runs, and concurrencyPolicy is Forbid"
    return WorkloadEvent(NORMAL, "JobAlreadyActive", message)


def _old_jobs(cron: CronJob, jobs: tuple[JobFacts, ...]) -> list[str]:
    gone: list[str] = []
    for outcome, given, default in (
        (COMPLETE, cron.spec.successful_jobs_history_limit, SUCCESSFUL_JOBS_KEPT),
        (FAILED, cron.spec.failed_jobs_history_limit, FAILED_JOBS_KEPT),
    ):
        most = default if given is None else given
        ended = sorted(
            (one for one in jobs if one.progress.outcome == outcome), key=lambda one: one.created_at
        )
        gone += [one.job.metadata.name for one in ended[: max(len(ended) - most, 0)]]
    return gone
