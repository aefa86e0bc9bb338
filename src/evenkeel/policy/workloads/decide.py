"""The decision about a workload of any kind, and what a change of its object means for its progress."""

from datetime import tzinfo

from evenkeel.api.workloads import CronJob, Job, StatefulSet, Workload, template_of
from evenkeel.policy.workloads.cron_jobs import decide_cron_job
from evenkeel.policy.workloads.decision import Decision, Progress, Situation
from evenkeel.policy.workloads.jobs import decide_job
from evenkeel.policy.workloads.replicas import decide_replicas
from evenkeel.policy.workloads.stateful_sets import decide_stateful_set


def decide(situation: Situation, zone: tzinfo) -> Decision:
    """The pods to make and to end, the status, the progress, and when to decide again. `zone` is for a CronJob."""
    workload = situation.workload
    if isinstance(workload, CronJob):
        return decide_cron_job(situation, zone)
    if isinstance(workload, Job):
        return decide_job(situation)
    if isinstance(workload, StatefulSet):
        return decide_stateful_set(situation)
    return decide_replicas(situation)


def changed(before: Workload, after: Workload, progress: Progress) -> Progress:
    """The progress after a change of the object."""
    if isinstance(before, StatefulSet) and before.spec.template != template_of(after):
        return progress._replace(stable=progress.stable or before.spec.template)
    return progress
