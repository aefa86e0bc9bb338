"""The fields of workloads that cannot be changed, as in Kubernetes."""

from evenkeel.api.workloads import CronJob, Job, ReplicationController, StatefulSet, Workload


def immutable_change(before: Workload, after: Workload) -> str:
    """The field that differs although it cannot be changed; empty if there is none."""
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
