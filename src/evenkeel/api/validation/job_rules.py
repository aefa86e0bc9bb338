"""Rules for Jobs, also those of CronJobs, as in Kubernetes. Also refuses what one node cannot do."""

import re

from evenkeel.api.problems import (
    Problems,
    choice_problems,
    forbidden,
    invalid,
    not_supported,
    number_problems,
    required,
    shown,
    unusable,
)
from evenkeel.api.workload_types import (
    COUNT,
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    INDEXED,
    MAX_COMPLETIONS,
    MAX_INDEXES,
    MAX_REPLICAS,
    NON_INDEXED,
    JobSpec,
    PodFailurePolicyRule,
    SuccessPolicy,
    SuccessPolicyRule,
)

_MOST_SUCCESS_RULES = 20
_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII).fullmatch


def job_problems(spec: JobSpec, path: str) -> Problems:
    for name, value, most in (
        ("parallelism", spec.parallelism, MAX_REPLICAS),
        ("completions", spec.completions, MAX_COMPLETIONS),
        ("backoffLimit", spec.backoff_limit, 2**31 - 1),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index, 2**31 - 1),
        ("maxFailedIndexes", spec.max_failed_indexes, MAX_COMPLETIONS),
        ("activeDeadlineSeconds", spec.active_deadline_seconds, 2**31 - 1),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished, 2**31 - 1),
    ):
        yield from number_problems(value, f"{path}.{name}", most)
    policy = spec.template.spec.restart_policy
    if policy not in ("Never", "OnFailure"):
        yield not_supported(f"{path}.template.spec.restartPolicy", policy or "Always", ("Never", "OnFailure"))
    yield from choice_problems(spec.completion_mode, f"{path}.completionMode", (NON_INDEXED, INDEXED))
    if spec.completion_mode == INDEXED and spec.completions is None:
        yield required(f"{path}.completions", "completionMode Indexed needs the number of indexes")
    elif spec.completion_mode == INDEXED and spec.completions is not None and spec.completions > MAX_INDEXES:
        yield unusable(f"{path}.completions", f"must be at most {MAX_INDEXES} with completionMode Indexed")
    if spec.completion_mode != INDEXED:
        for name, value in (
            ("backoffLimitPerIndex", spec.backoff_limit_per_index),
            ("maxFailedIndexes", spec.max_failed_indexes),
        ):
            if value is not None:
                yield invalid(f"{path}.{name}", "needs completionMode: Indexed")
    elif spec.max_failed_indexes is not None and spec.backoff_limit_per_index is None:
        yield required(f"{path}.backoffLimitPerIndex", "maxFailedIndexes needs it: write 0 or more")
    if spec.backoff_limit_per_index is not None and policy == "OnFailure":
        yield invalid(f"{path}.template.spec.restartPolicy", "must be Never with backoffLimitPerIndex")
    yield from choice_problems(
        spec.pod_replacement_policy, f"{path}.podReplacementPolicy", ("Failed", "TerminatingOrFailed")
    )
    yield from _not_here(spec, path)
    if spec.success_policy is not None:
        yield from _successes(spec.success_policy, spec, f"{path}.successPolicy")
    rules = spec.pod_failure_policy.rules if spec.pod_failure_policy is not None else ()
    if rules and policy != "Never":
        yield invalid(f"{path}.template.spec.restartPolicy", "must be Never with podFailurePolicy")
    for place, rule in enumerate(rules):
        yield from _rule(rule, spec, f"{path}.podFailurePolicy.rules[{place}]")


def _not_here(spec: JobSpec, path: str) -> Problems:
    if spec.selector is not None or spec.manual_selector:
        yield forbidden(
            f"{path}.selector", "the node makes the selector of a Job: leave selector and manualSelector out"
        )
    if spec.managed_by not in ("", "kubernetes.io/job-controller"):
        yield unusable(
            f"{path}.managedBy", f"{shown(spec.managed_by)} does not run on this node: leave it out"
        )


def _rule(rule: PodFailurePolicyRule, spec: JobSpec, path: str) -> Problems:
    yield from choice_problems(
        rule.action or "nothing", f"{path}.action", (FAIL_JOB, FAIL_INDEX, IGNORE, COUNT)
    )
    if rule.action == FAIL_INDEX and spec.backoff_limit_per_index is None:
        yield invalid(f"{path}.action", "FailIndex needs backoffLimitPerIndex")
    codes = rule.on_exit_codes
    if (codes is None) == (not rule.on_pod_conditions):
        yield invalid(path, "needs one of onExitCodes and onPodConditions")
    if codes is None:
        return
    yield from choice_problems(codes.operator or "nothing", f"{path}.onExitCodes.operator", ("In", "NotIn"))
    if not codes.values:
        yield required(f"{path}.onExitCodes.values", "needs at least one exit code")
    if codes.operator == "In" and 0 in codes.values:
        yield invalid(
            f"{path}.onExitCodes.values", "may not have 0: a container that ends with 0 has not failed"
        )
    names = {one.name for one in spec.template.spec.every_container}
    if codes.container_name and codes.container_name not in names:
        yield invalid(
            f"{path}.onExitCodes.containerName",
            f"{shown(codes.container_name)} is no container of the template",
        )


def _successes(policy: SuccessPolicy, spec: JobSpec, path: str) -> Problems:
    if spec.completion_mode != INDEXED:
        yield invalid(path, "needs completionMode: Indexed")
        return
    if not policy.rules:
        yield required(f"{path}.rules", "needs at least one rule")
    if len(policy.rules) > _MOST_SUCCESS_RULES:
        yield invalid(
            f"{path}.rules", f"must be at most {_MOST_SUCCESS_RULES} rules, not {len(policy.rules)}"
        )
    for place, rule in enumerate(policy.rules):
        yield from _success(rule, spec.completions or 0, f"{path}.rules[{place}]")


def _success(rule: SuccessPolicyRule, completions: int, path: str) -> Problems:
    count, most, among = rule.succeeded_count, completions, "completions"
    if count is None and rule.succeeded_indexes is None:
        yield required(path, "needs succeededIndexes, succeededCount or both")
    if rule.succeeded_indexes is not None:
        most, among = 0, "the indexes in succeededIndexes"
        last = -1
        for span in rule.succeeded_indexes.split(","):
            found = _SPAN(span)
            first, end = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
            if not last < first <= end < completions:
                yield invalid(
                    f"{path}.succeededIndexes",
                    f"{shown(rule.succeeded_indexes)} cannot be read at {shown(span)}: write indexes below "
                    f"{completions} in their order, such as 0,2-3",
                )
                return
            most, last = most + end - first + 1, end
    yield from number_problems(count, f"{path}.succeededCount")
    if count is not None and count > most:
        yield invalid(f"{path}.succeededCount", f"must be at most {most}, the number of {among}, not {count}")
