"""The decision about a workload of any kind, what a change of its object means for its progress, and which changes
are refused."""

from datetime import tzinfo

from evenkeel.api.workload_types import CronJob, Job, ReplicationController, StatefulSet
from evenkeel.api.workloads import Workload, template_of
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


def immutable_change(before: Workload, after: Workload) -> str:
    """The field that differs although it cannot be changed, as in Kubernetes; empty if there is none."""
    if isinstance(before, Job) and isinstance(after, Job):
        return _of_job(before, after)
    if isinstance(before, CronJob | ReplicationController | Job) or isinstance(after, CronJob | Job):
        return ""
    if before.spec.selector != after.spec.selector:
        return "spec.selector"
    if isinstance(before, StatefulSet) and isinstance(after, StatefulSet):
        for name, field in (
            ("service_name", "serviceName"),
            ("pod_management_policy", "podManagementPolicy"),
            ("volume_claim_templates", "volumeClaimTemplates"),
        ):
            if getattr(before.spec, name) != getattr(after.spec, name):
                return f"spec.{field}"
    return ""


def _of_job(before: Job, after: Job) -> str:
    is_elastic = before.spec.completions == before.spec.parallelism and (
        after.spec.completions == after.spec.parallelism
    )
    for name, field in (
        ("template", "template"),
        ("completion_mode", "completionMode"),
        ("completions", "completions"),
        ("pod_failure_policy", "podFailurePolicy"),
        ("backoff_limit_per_index", "backoffLimitPerIndex"),
    ):
        if getattr(before.spec, name) != getattr(after.spec, name):
            if name == "completions" and after.spec.completion_mode == "Indexed" and is_elastic:
                continue
            return f"spec.{field}"
    return ""
