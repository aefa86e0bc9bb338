"""Rules for workloads, as in Kubernetes, beside the rules for their pods. Also refuses what one node cannot do."""

import re
from collections.abc import Mapping

from evenkeel.api.pod import ObjectMeta
from evenkeel.api.problems import (
    Problems,
    choice_problems,
    duplicate,
    forbidden,
    invalid,
    join,
    not_supported,
    number_problems,
    required,
    shown,
    unusable,
)
from evenkeel.api.validation.job_rules import job_problems
from evenkeel.api.validation.name_rules import dns_label, dns_subdomain, label_value, qualified_name
from evenkeel.api.validation.object_rules import claim_problems
from evenkeel.api.workload_types import (
    ALLOW,
    FORBID,
    INDEXED,
    MAX_REPLICAS,
    ON_DELETE,
    ORDERED_READY,
    PARALLEL,
    RECREATE,
    REPLACE,
    ROLLING_UPDATE,
    CronJob,
    DaemonSet,
    Deployment,
    Job,
    LabelSelector,
    ReplicationController,
    StatefulSet,
)
from evenkeel.api.workloads import Workload, template_of
from evenkeel.errors import EvenkeelError

_LONGEST_CRON_JOB = 52  # its Jobs have eleven characters more
_ZERO = (0, "0%")
_PERCENT = re.compile(r"[0-9]{1,3}%", re.ASCII).fullmatch
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_OTHER_THAN_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


def validate_workload(workload: Workload) -> Problems:
    """Every problem of `workload` itself; those of its pod template are found elsewhere."""
    if isinstance(workload, CronJob):
        yield from _cron_job(workload)
        return
    if isinstance(workload, Job):
        yield from job_problems(workload.spec, "spec")
        if workload.spec.completion_mode == INDEXED:
            yield from _host_name(workload.metadata)
        return
    yield from number_problems(getattr(workload.spec, "replicas", None), "spec.replicas", MAX_REPLICAS)
    yield from number_problems(workload.spec.min_ready_seconds, "spec.minReadySeconds")
    yield from _selector(workload)
    yield from _always_restarted(workload)
    if isinstance(workload, Deployment):
        yield from _deployment(workload)
    elif isinstance(workload, DaemonSet):
        yield from _daemon_set(workload)
    elif isinstance(workload, StatefulSet):
        yield from _stateful_set(workload)


# Selectors


def _selector(workload: Workload) -> Problems:
    labels = template_of(workload).metadata.labels
    written = workload.spec.selector if not isinstance(workload, CronJob) else None
    if isinstance(workload, ReplicationController):
        selector = LabelSelector(workload.spec.selector)
        if not workload.spec.selector:  # the labels of the template stand for it
            if not labels:
                yield required("spec.selector", "is missing, and so are labels of the template: write them")
            return
    elif not isinstance(written, LabelSelector):
        yield required("spec.selector", f"is missing: write matchLabels: {_some(labels)}, as in the template")
        return
    else:
        selector = written
    if not selector.match_labels and not selector.match_expressions:
        yield invalid("spec.selector", f"is empty: write matchLabels: {_some(labels)}, as in the template")
        return
    problems = list(_requirements(selector))
    yield from problems
    if not problems and not selector.matches(labels):
        message = f"must have the labels that spec.selector selects, {_some(selector.match_labels)}"
        yield invalid("spec.template.metadata.labels", message)


def _requirements(selector: LabelSelector) -> Problems:
    for key, value in selector.match_labels.items():
        if wrong := qualified_name(key):
            yield invalid("spec.selector.matchLabels", f"{shown(key)} {wrong}")
        if wrong := label_value(value):
            yield invalid("spec.selector.matchLabels", f"{shown(value)} of {shown(key)} {wrong}")
    for place, one in enumerate(selector.match_expressions):
        here = f"spec.selector.matchExpressions[{place}]"
        if one.operator not in _OPERATORS:
            yield not_supported(f"{here}.operator", one.operator, _OPERATORS)
        elif one.operator in ("In", "NotIn") and not one.values:
            yield required(f"{here}.values", f"{one.operator} needs at least one value")
        elif one.operator in ("Exists", "DoesNotExist") and one.values:
            yield forbidden(f"{here}.values", f"{one.operator} takes no values")
        if wrong := qualified_name(one.key):
            yield invalid(f"{here}.key", f"{shown(one.key)} {wrong}")


def _some(labels: Mapping[str, str]) -> str:
    """A few labels, as they can be copied to a manifest."""
    few = list(labels.items())[:3] or [("app", "NAME")]
    return "{" + ", ".join(f"{key}: {_as_text(value)}" for key, value in few) + "}"


def _as_text(value: str) -> str:
    """In quotes where YAML 1.1, which Kubernetes reads, takes the plain word for a number or a truth value."""
    return value if _PLAIN_WORD.fullmatch(value) and value.lower() not in _OTHER_THAN_TEXT else shown(value)


# Deployment, DaemonSet and StatefulSet


def _always_restarted(workload: Workload) -> Problems:
    spec = template_of(workload).spec
    if spec.restart_policy not in ("", "Always"):
        yield not_supported("spec.template.spec.restartPolicy", spec.restart_policy, ("Always",))
    if spec.active_deadline_seconds is not None:
        yield forbidden("spec.template.spec.activeDeadlineSeconds", "is only for pods that end: leave it out")


def _deployment(workload: Deployment) -> Problems:
    strategy, rolling = workload.spec.strategy, workload.spec.strategy.rolling_update
    yield from choice_problems(strategy.type, "spec.strategy.type", (RECREATE, ROLLING_UPDATE))
    if strategy.type == RECREATE and rolling is not None:
        yield forbidden("spec.strategy.rollingUpdate", "is only for type RollingUpdate: leave it out")
    yield from _bounds(rolling, "spec.strategy.rollingUpdate")
    deadline, ready = workload.spec.progress_deadline_seconds, workload.spec.min_ready_seconds
    yield from number_problems(deadline, "spec.progressDeadlineSeconds")
    yield from number_problems(workload.spec.revision_history_limit, "spec.revisionHistoryLimit")
    if deadline is not None and deadline <= ready:
        yield invalid("spec.progressDeadlineSeconds", f"must be greater than minReadySeconds, {ready}")


def _daemon_set(workload: DaemonSet) -> Problems:
    strategy = workload.spec.update_strategy
    yield from choice_problems(strategy.type, "spec.updateStrategy.type", (ROLLING_UPDATE, ON_DELETE))
    path = "spec.updateStrategy.rollingUpdate"
    yield from _bounds(strategy.rolling_update, path)
    rolling = strategy.rolling_update
    if rolling is None:
        return
    if rolling.max_surge not in (None, *_ZERO) and rolling.max_unavailable not in _ZERO:
        yield invalid(
            f"{path}.maxSurge",
            "may not be there while maxUnavailable is 1, as by default: write maxUnavailable: 0",
        )
    elif rolling.max_unavailable in _ZERO and rolling.max_surge is None:
        yield invalid(f"{path}.maxUnavailable", "may not be 0 without maxSurge: no pod could be replaced")


def _bounds(rolling: object, path: str) -> Problems:
    amounts = {}
    for field, name in (("maxUnavailable", "max_unavailable"), ("maxSurge", "max_surge")):
        amount = getattr(rolling, name, None)
        amounts[field] = amount
        if isinstance(amount, str) and not _PERCENT(amount):
            yield invalid(
                f"{path}.{field}", f"{shown(amount)} must be a whole number or a percentage such as 25%"
            )
        elif isinstance(amount, int) and amount < 0:
            yield invalid(f"{path}.{field}", f"must be 0 or more, not {amount}")
    if amounts["maxUnavailable"] in _ZERO and amounts["maxSurge"] in _ZERO:
        yield invalid(f"{path}.maxUnavailable", "may not be 0 while maxSurge is 0: no pod could be replaced")


def _host_name(metadata: ObjectMeta) -> Problems:
    if metadata.name and dns_label(metadata.name) and not dns_subdomain(metadata.name):
        message = "must be a host name, for its pods are called after it: at most 63 characters, and no ."
        yield invalid("metadata.name", f"{shown(metadata.name)} {message}")


def _stateful_set(workload: StatefulSet) -> Problems:
    spec = workload.spec
    yield from _host_name(workload.metadata)
    yield from choice_problems(
        spec.pod_management_policy, "spec.podManagementPolicy", (ORDERED_READY, PARALLEL)
    )
    yield from choice_problems(
        spec.update_strategy.type, "spec.updateStrategy.type", (ROLLING_UPDATE, ON_DELETE)
    )
    rolling = spec.update_strategy.rolling_update
    if rolling is not None:
        yield from number_problems(rolling.partition, "spec.updateStrategy.rollingUpdate.partition")
    yield from number_problems(spec.ordinals.start, "spec.ordinals.start")
    names: set[str] = set()
    for place, claim in enumerate(spec.volume_claim_templates):
        here = f"spec.volumeClaimTemplates[{place}]"
        yield from (problem._replace(field=join(here, problem.field)) for problem in claim_problems(claim))
        if not claim.metadata.name or dns_label(claim.metadata.name):
            yield invalid(f"{here}.metadata.name", f"{shown(claim.metadata.name)} {dns_label('')}")
        elif claim.metadata.name in names:
            yield duplicate(
                f"{here}.metadata.name", f"another template is called {shown(claim.metadata.name)}"
            )
        names.add(claim.metadata.name)
    policy = spec.persistent_volume_claim_retention_policy
    for field, value in (
        (("whenDeleted", policy.when_deleted), ("whenScaled", policy.when_scaled)) if policy else ()
    ):
        here = f"spec.persistentVolumeClaimRetentionPolicy.{field}"
        yield from choice_problems(value, here, ("Retain", "Delete"))
        if value == "Delete":
            yield unusable(here, "claims stay here until evenkeel delete pvc: write Retain, or leave it out")


# CronJob


def _cron_job(workload: CronJob) -> Problems:
    from evenkeel.api.cron_schedule import parse_schedule

    spec = workload.spec
    yield from _cron_name(workload.metadata)
    if not spec.schedule:
        yield required("spec.schedule", 'is missing: write five fields, such as "30 4 * * 1-5"')
    else:
        try:
            parse_schedule(spec.schedule)
        except EvenkeelError as error:
            yield invalid("spec.schedule", str(error))
    if spec.time_zone is not None and (wrong := zone_problem(spec.time_zone)):
        yield invalid("spec.timeZone", wrong)
    yield from choice_problems(spec.concurrency_policy, "spec.concurrencyPolicy", (ALLOW, FORBID, REPLACE))
    yield from number_problems(spec.starting_deadline_seconds, "spec.startingDeadlineSeconds")
    yield from number_problems(
        spec.successful_jobs_history_limit, "spec.successfulJobsHistoryLimit", MAX_REPLICAS
    )
    yield from number_problems(spec.failed_jobs_history_limit, "spec.failedJobsHistoryLimit", MAX_REPLICAS)
    yield from job_problems(spec.job_template.spec, "spec.jobTemplate.spec")


def _cron_name(metadata: ObjectMeta) -> Problems:
    if len(metadata.name) > _LONGEST_CRON_JOB:
        yield invalid(
            "metadata.name", f"must be at most {_LONGEST_CRON_JOB} characters, not {len(metadata.name)}"
        )


def zone_problem(name: str) -> str:
    """What is wrong with the name of a time zone; empty if nothing is."""
    if not name or name.lower() == "local":
        return f"{shown(name)} is no time zone: write one such as Europe/Berlin, or leave it out for the machine's"
    from zoneinfo import ZoneInfo  # late: it takes 0.8 MiB, and only CronJobs need it

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return f"{shown(name)} is no time zone that this machine knows: write one such as Europe/Berlin or Etc/UTC"
    return ""
