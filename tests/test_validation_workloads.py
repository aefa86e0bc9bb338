"""The rules for workloads: every mistake with its field, and what would be right."""

import json

import pytest
import yaml

from evenkeel.api.manifests import read_manifests
from evenkeel.api.workload_types import LabelSelector, LabelSelectorRequirement
from evenkeel.api.workloads import KINDS

CONTAINER = {"name": "main", "image": "host"}
POD = {"containers": [CONTAINER]}


def problems(kind, spec=None, name="w", template_spec=None, labels=None):
    is_batch = kind in ("Job", "CronJob")
    pod_spec = {"containers": [CONTAINER], **({"restartPolicy": "Never"} if is_batch else {})}
    template = {"metadata": {"labels": labels or {"app": "a"}}, "spec": {**pod_spec, **(template_spec or {})}}
    whole = {"template": template, **(spec or {})}
    if kind == "CronJob":
        template = whole.pop("template")
        whole = {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}, **whole}
    elif not is_batch and kind != "ReplicationController":
        whole.setdefault("selector", {"matchLabels": {"app": "a"}})
    whole = {field: value for field, value in whole.items() if value != "absent"}
    manifest = {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": whole,
    }
    return [(one.field, one.message) for one in read_manifests(json.dumps(manifest), "f").problems]


@pytest.mark.parametrize("value", ["true", "1", "1.5", "No", ""])
def test_the_labels_that_a_hint_tells_to_write_are_read_as_text(value):
    labels = {"app": "a", "other": value}
    ((_, message),) = problems("Deployment", {"selector": "absent"}, labels=labels)
    hint = message.removeprefix("is missing: write matchLabels: ").removesuffix(", as in the template")
    assert yaml.safe_load(hint) == labels


@pytest.mark.parametrize(
    "kind, spec, field, words",
    [
        ("Deployment", {"selector": "absent"}, "spec.selector", "write matchLabels: {app: a}"),
        ("Deployment", {"selector": {}}, "spec.selector", "is empty"),
        (
            "Deployment",
            {"selector": {"matchLabels": {"app": "b"}}},
            "spec.template.metadata.labels",
            "must have the labels that spec.selector selects, {app: b}",
        ),
        (
            "ReplicaSet",
            {"selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}},
            "spec.selector.matchExpressions[0].operator",
            "In, NotIn, Exists or DoesNotExist",
        ),
        (
            "ReplicaSet",
            {"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
            "spec.selector.matchExpressions[0].values",
            "needs at least one value",
        ),
        ("ReplicationController", {"selector": {"app": "b"}}, "spec.template.metadata.labels", "{app: b}"),
        (
            "ReplicationController",
            {"template": {"spec": POD}},
            "spec.selector",
            "so are labels of the template",
        ),
        ("Deployment", {"replicas": 1001}, "spec.replicas", "from 0 to 1000"),
        ("Deployment", {"minReadySeconds": -1}, "spec.minReadySeconds", "from 0"),
        ("Deployment", {"strategy": {"type": "Slow"}}, "spec.strategy.type", "Recreate or RollingUpdate"),
        (
            "Deployment",
            {"strategy": {"type": "Recreate", "rollingUpdate": {}}},
            "spec.strategy.rollingUpdate",
            "leave it out",
        ),
        (
            "Deployment",
            {"strategy": {"rollingUpdate": {"maxSurge": "many"}}},
            "spec.strategy.rollingUpdate.maxSurge",
            "a percentage such as 25%",
        ),
        (
            "Deployment",
            {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
            "no pod could be replaced",
        ),
        (
            "Deployment",
            {"progressDeadlineSeconds": 5, "minReadySeconds": 5},
            "spec.progressDeadlineSeconds",
            "must be greater than minReadySeconds",
        ),
        (
            "DaemonSet",
            {"updateStrategy": {"type": "x"}},
            "spec.updateStrategy.type",
            "RollingUpdate or OnDelete",
        ),
        *(
            (
                "DaemonSet",
                {"updateStrategy": {"rollingUpdate": amounts}},
                f"spec.updateStrategy.rollingUpdate.{field}",
                words,
            )
            for amounts, field, words in (
                ({"maxSurge": 1}, "maxSurge", "write maxUnavailable: 0"),
                ({"maxSurge": "50%", "maxUnavailable": 1}, "maxSurge", "write maxUnavailable: 0"),
                ({"maxUnavailable": 0}, "maxUnavailable", "no pod could be replaced"),
                ({"maxUnavailable": 0, "maxSurge": 0}, "maxUnavailable", "no pod could be replaced"),
            )
        ),
        (
            "StatefulSet",
            {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}},
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled",
            "write Retain",
        ),
        ("StatefulSet", {"podManagementPolicy": "x"}, "spec.podManagementPolicy", "OrderedReady or Parallel"),
        ("Job", {"completions": -1}, "spec.completions", "from 0"),
        ("Job", {"parallelism": -1}, "spec.parallelism", "from 0"),
        ("Job", {"backoffLimit": -1}, "spec.backoffLimit", "from 0"),
        ("Job", {"completionMode": "Indexed"}, "spec.completions", "needs the number of indexes"),
        ("Job", {"backoffLimitPerIndex": 1}, "spec.backoffLimitPerIndex", "needs completionMode: Indexed"),
        (
            "Job",
            {"completionMode": "Indexed", "completions": 3, "maxFailedIndexes": 1},
            "spec.backoffLimitPerIndex",
            "maxFailedIndexes needs it",
        ),
        (
            "Job",
            {"selector": {"matchLabels": {"a": "b"}}},
            "spec.selector",
            "leave selector and manualSelector out",
        ),
        ("Job", {"successPolicy": {"rules": []}}, "spec.successPolicy", "needs completionMode: Indexed"),
        *(
            (
                "Job",
                {"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": rules}},
                f"spec.successPolicy.rules{field}",
                words,
            )
            for rules, field, words in (
                ([], "", "needs at least one rule"),
                ([{"succeededCount": 1}] * 21, "", "at most 20 rules"),
                ([{}], "[0]", "needs succeededIndexes, succeededCount or both"),
                (
                    [{"succeededCount": 6}],
                    "[0].succeededCount",
                    "at most 5, the number of completions, not 6",
                ),
                ([{"succeededCount": -1}], "[0].succeededCount", "from 0"),
                ([{"succeededIndexes": "0,2-5"}], "[0].succeededIndexes", 'cannot be read at "2-5"'),
                ([{"succeededIndexes": "3,1"}], "[0].succeededIndexes", 'cannot be read at "1"'),
                ([{"succeededIndexes": ""}], "[0].succeededIndexes", 'cannot be read at ""'),
                (
                    [{"succeededIndexes": "0,2-3", "succeededCount": 4}],
                    "[0].succeededCount",
                    "at most 3, the number of the indexes in succeededIndexes",
                ),
            )
        ),
        ("Job", {"managedBy": "example.com/x"}, "spec.managedBy", "does not run on this node"),
        (
            "Job",
            {"podFailurePolicy": {"rules": [{"action": "Ignore"}]}},
            "spec.podFailurePolicy.rules[0]",
            "needs one of onExitCodes and onPodConditions",
        ),
        (
            "Job",
            {
                "podFailurePolicy": {
                    "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]
                }
            },
            "spec.podFailurePolicy.rules[0].onExitCodes.values",
            "may not have 0",
        ),
        ("CronJob", {"schedule": "* * * *"}, "spec.schedule", "has 4 fields"),
        ("CronJob", {"schedule": "absent"}, "spec.schedule", "is missing"),
        ("CronJob", {"timeZone": "Mars/Base"}, "spec.timeZone", "write one such as Europe/Berlin"),
        ("CronJob", {"timeZone": "../../etc/passwd"}, "spec.timeZone", "no time zone"),
        ("CronJob", {"timeZone": "Local"}, "spec.timeZone", "leave it out"),
        ("CronJob", {"concurrencyPolicy": "x"}, "spec.concurrencyPolicy", "Allow, Forbid or Replace"),
    ],
)
def test_a_mistake_is_reported_with_what_would_be_right(kind, spec, field, words):
    ((found, message),) = problems(kind, spec)
    assert found == field
    assert words in message


def test_a_template_has_the_restart_policy_of_its_kind():
    ((field, message),) = problems("Job", template_spec={"restartPolicy": "Always"})
    assert (field, '"Always" is not one of Never or OnFailure' in message) == (
        "spec.template.spec.restartPolicy",
        True,
    )
    ((field, _),) = problems("Deployment", template_spec={"restartPolicy": "Never"})
    assert field == "spec.template.spec.restartPolicy"
    ((field, _),) = problems("Deployment", template_spec={"activeDeadlineSeconds": 5})
    assert field == "spec.template.spec.activeDeadlineSeconds"
    ((field, _),) = problems("CronJob", template_spec={"restartPolicy": "Always"})
    assert field == "spec.jobTemplate.spec.template.spec.restartPolicy"


def test_the_name_of_a_cron_job_leaves_room_for_its_jobs():
    ((field, message),) = problems("CronJob", name="x" * 53)
    assert (field, "at most 52" in message) == ("metadata.name", True)


@pytest.mark.parametrize(
    "kind, spec", [("StatefulSet", {}), ("Job", {"completionMode": "Indexed", "completions": 1})]
)
def test_a_name_that_becomes_a_host_name_has_no_dot(kind, spec):
    ((field, message),) = problems(kind, spec, name="a.b")
    assert (field, "host name" in message) == ("metadata.name", True)
    assert problems("Deployment", name="a.b") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_without_mistakes_has_no_problem(kind):
    assert problems(kind) == []


@pytest.mark.parametrize(
    "operator, values, matches",
    [
        ("In", ("a", "b"), True),
        ("In", ("b",), False),
        ("NotIn", ("b",), True),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
    ],
)
def test_a_selector_selects_by_expressions(operator, values, matches):
    selector = LabelSelector({}, (LabelSelectorRequirement("app", operator, values),))
    assert selector.matches({"app": "a"}) == matches
