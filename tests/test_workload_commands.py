"""The commands and addresses for workloads, against a front that is served on a real socket."""

import json
from threading import Timer
from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.workload_pods import replica
from evenkeel.api.workload_types import (
    Condition,
    CronJobStatus,
    DaemonSetStatus,
    DeploymentStatus,
    JobStatus,
    ObjectReference,
    StatefulSetStatus,
)
from evenkeel.api.workloads import key_of
from evenkeel.cli.rollout import progress
from evenkeel.errors import EvenkeelError
from tests.fake_front import BORN, running
from tests.models.http_client import ask
from tests.models.workload_world import workload

ADDRESS = "/apis/apps/v1/namespaces/default/deployments"
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: server, image: ./image, command: [x]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: server, image: host, command: [x]}]
"""


def put(front, kind, spec=None, name="web", **status):
    more = {"selector": {"app": "a"}} if kind == "ReplicationController" else {}
    made = workload(kind, {**(spec or {}), **more}, name)
    made = made._replace(
        metadata=made.metadata._replace(creation_timestamp=BORN), status=made.status._replace(**status)
    )
    front.made[key_of(made)] = made
    return made


def test_workloads_of_two_kinds_and_one_name_are_applied_and_deleted_by_file(cli, front, tmp_path):
    path = tmp_path / "work.yaml"
    path.write_text(MANIFEST)
    assert cli("apply", "-f", str(path)) == (0, "deployment.apps/web created\njob.batch/web created\n", "")
    deployment = front.made["Deployment/default/web"]
    assert deployment.spec.template.spec.containers[0].image == f"{tmp_path}/image"
    assert cli("delete", "-f", str(path))[:2] == (0, 'deployment "web" deleted\njob "web" deleted\n')
    assert front.made == {}


def test_a_deletion_waits_for_the_pods_of_the_workload(cli, agent, front):
    made = put(front, "Deployment", {"replicas": 1})
    pod = running(replica(made, "web-x", Profile.DOCUMENTS))
    agent.call(front.put, pod)
    Timer(0.2, lambda: agent.call(front.remove, pod.key)).start()
    assert cli("delete", "deployment/web")[:2] == (0, 'deployment "web" deleted\n')
    assert not front.held


TABLES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "deployments": (
        "Deployment",
        {"replicas": 3},
        {"ready_replicas": 2, "updated_replicas": 1},
        "web 2/3 1 0",
    ),
    "rs": ("ReplicaSet", {"replicas": 3}, {"replicas": 3, "ready_replicas": 2}, "web 3 3 2"),
    "rc": ("ReplicationController", {"replicas": 3}, {"replicas": 1}, "web 3 1 0"),
    "sts": ("StatefulSet", {"replicas": 3}, {"ready_replicas": 1}, "web 1/3"),
    "ds": ("DaemonSet", {}, {"desired_number_scheduled": 1, "number_ready": 1}, "web 1 0 1 0 0"),
    "jobs": ("Job", {"completions": 3}, {"succeeded": 1}, "web Running 1/3"),
    "cronjobs": (
        "CronJob",
        {"schedule": "0 * * * *", "timeZone": "Europe/Berlin"},
        {"active": (ObjectReference(name="x"),)},
        "web 0 * * * * Europe/Berlin False 1 <none>",
    ),
}


@pytest.mark.parametrize("word", TABLES)
def test_each_kind_has_kubectls_table_and_other_forms(cli, front, word):
    kind, spec, status, row = TABLES[word]
    put(front, kind, spec, **status)
    put(front, "Deployment", name="other")
    code, out, _ = cli("get", word)
    assert code == 0
    found = [line for line in out.splitlines() if line.startswith("web ")]
    assert " ".join(found[0].split()).startswith(row)
    assert cli("get", word, "web", "-o", "name")[1].endswith("/web\n")
    assert json.loads(cli("get", word, "web", "-o", "json")[1])["kind"] == kind
    assert "main" in cli("get", word, "-A", "-o", "wide")[1]
    described = cli("describe", word, "web")[1]
    assert described.startswith("Name:")
    assert "main (host)" in described


def test_a_description_has_columns_for_reasons_of_any_length(cli, agent, front):
    text = "Job has reached the specified backoff limit"
    condition = Condition(type="Failed", status="True", reason="BackoffLimitExceeded", message=text)
    made = put(front, "Job", {"completions": 1}, conditions=(condition,))
    agent.call(front.put, running(replica(made, "web-x", Profile.DOCUMENTS)))
    agent.call(front.tell, "BackoffLimitExceeded", f"Job default/web: {text}")
    lines = cli("describe", "job", "web")[1].splitlines()
    heads = lines[lines.index("Events:") + 1]
    last = lines[-1]
    assert heads.split() == ["Type", "Reason", "Age", "Message"]
    assert last[heads.index("Reason") : heads.index("Age")] == "BackoffLimitExceeded  "
    assert last[heads.index("Message") :] == text
    assert f"  Failed  True    BackoffLimitExceeded  {text}" in lines
    assert "  web-x  Running" in lines


def test_what_is_missing_is_reported(cli):
    assert cli("get", "jobs") == (0, "", "no jobs in namespace default\n")
    assert cli("get", "job", "x") == (1, "", 'evenkeel: there is no Job "x" in namespace default\n')
    assert cli("describe", "job", "x")[0] == 1
    assert cli("delete", "job", "x")[0] == 1
    assert cli("scale", "--replicas", "1", "deployment/x")[0] == 1


def test_a_workload_is_scaled(cli, front):
    put(front, "Deployment", {"replicas": 1})
    assert cli("scale", "--replicas", "4", "deployment/web") == (0, "deployment.apps/web scaled\n", "")
    assert front.made["Deployment/default/web"].spec.replicas == 4
    put(front, "DaemonSet")
    assert "has no replicas" in cli("scale", "--replicas", "4", "ds/web")[2]
    assert "scale needs a workload" in cli("scale", "--replicas", "4", "pod/web")[2]


def test_a_restart_changes_an_annotation_of_the_template(cli, front):
    before = put(front, "Deployment", {"replicas": 1})
    assert cli("rollout", "restart", "deployment/web") == (0, "deployment.apps/web restarted\n", "")
    after = front.made["Deployment/default/web"]
    assert list(after.spec.template.metadata.annotations) == ["kubectl.kubernetes.io/restartedAt"]
    assert after.spec.template.spec == before.spec.template.spec
    assert "rollout is for deployments" in cli("rollout", "restart", "job/web")[2]


def test_the_status_of_a_rollout_is_reported_until_it_is_complete(cli, front):
    put(
        front,
        "Deployment",
        {"replicas": 1},
        observed_generation=1,
        replicas=1,
        updated_replicas=1,
        available_replicas=1,
    )
    assert cli("rollout", "status", "deployment/web") == (0, 'deployment "web" successfully rolled out\n', "")


def test_waiting_for_a_rollout_ends_with_its_timeout_though_nothing_changes(cli, front):
    put(front, "Deployment", {"replicas": 1}, observed_generation=1, replicas=1, updated_replicas=1)
    code, said, problem = cli("rollout", "status", "deployment/web", "--timeout", "10ms")
    assert (code, said.count("\n")) == (1, 1)
    assert problem == "evenkeel: deployment.apps/web was not rolled out in 0.01 s\n"
    code, _, problem = cli("rollout", "status", "deployment/web", "--timeout", "soon")
    assert code == 2
    assert '"soon" is not a duration' in problem


def test_a_rollout_fails_when_its_deadline_passes_though_no_pod_changes(cli, agent, front):
    made = put(front, "Deployment", {"replicas": 1}, observed_generation=1, replicas=1, updated_replicas=1)
    late = Condition("Progressing", "False", reason="ProgressDeadlineExceeded")
    failed = made._replace(status=made.status._replace(conditions=(late,)))
    Timer(0.1, lambda: agent.call(front.made.update, {key_of(made): failed})).start()
    code, _, problem = cli("rollout", "status", "deployment/web")
    assert (code, problem) == (1, 'evenkeel: deployment "web" exceeded its progress deadline\n')


def test_a_kind_may_have_the_group_with_which_it_is_printed(cli, front):
    put(front, "Deployment")
    printed = cli("get", "all", "-o", "name")[1].strip()
    assert printed == "deployment.apps/web"
    assert cli("get", printed, "-o", "name")[1].strip() == printed
    assert cli("get", "deployments.apps", "-o", "name")[1].strip() == printed
    assert 'no kind "deployment.batch"' in cli("get", "deployment.batch/web")[2]
    assert cli("delete", printed)[:2] == (0, 'deployment "web" deleted\n')


@pytest.mark.parametrize(
    "status, words",
    [
        ({}, "spec update to be observed"),
        ({"observedGeneration": 1, "updatedReplicas": 1}, "1 out of 2 new replicas"),
        (
            {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 3},
            "1 old replicas are pending termination",
        ),
        (
            {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2},
            "0 of 2 updated replicas are available",
        ),
    ],
)
def test_each_stage_of_a_rollout_has_its_line(status, words):
    shown = {"metadata": {"name": "web", "generation": 1}, "spec": {"replicas": 2}, "status": status}
    line, is_done = progress("deployments", shown)
    assert words in line
    assert not is_done


def test_a_rollout_past_its_deadline_is_an_error():
    conditions = [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]
    status = {"observedGeneration": 1, "conditions": conditions}
    shown = {"metadata": {"name": "web", "generation": 1}, "spec": {"replicas": 2}, "status": status}
    with pytest.raises(EvenkeelError, match="exceeded its progress deadline"):
        progress("deployments", shown)


def test_workloads_are_at_kubernetes_addresses(agent, front):
    put(front, "Deployment", {"replicas": 2})
    put(front, "ReplicationController", {"replicas": 1})
    status, listed = ask(agent, "GET", ADDRESS)
    assert (status, listed["apiVersion"], listed["kind"]) == (200, "apps/v1", "DeploymentList")
    assert ask(agent, "GET", "/apis/apps/v1/deployments")[1]["items"] == listed["items"]
    assert ask(agent, "GET", f"{ADDRESS}/web") == (200, listed["items"][0])
    assert ask(agent, "GET", "/apis/apps/v1/namespaces/other/deployments")[1]["items"] == []
    assert ask(agent, "GET", "/api/v1/namespaces/default/replicationcontrollers/web")[0] == 200
    assert ask(agent, "GET", "/apis/batch/v1/deployments")[0] == 404
    assert ask(agent, "PUT", f"{ADDRESS}/web/scale", '{"spec": {"replicas": 5}}')[1]["spec"] == {
        "replicas": 5
    }
    assert ask(agent, "PUT", f"{ADDRESS}/web/scale", '{"spec": {"replicas": -5}}')[0] == 422
    assert ask(agent, "PUT", f"{ADDRESS}/web/scale", "[]")[0] == 422
    assert ask(agent, "DELETE", f"{ADDRESS}/web")[0] == 202
    assert ask(agent, "DELETE", f"{ADDRESS}/web")[0] == 404


def test_every_status_is_shown_with_the_names_of_kubernetes():
    from evenkeel.api.encode import encode
    from evenkeel.api.known_fields import fields_of

    for status in (DeploymentStatus, DaemonSetStatus, StatefulSetStatus, JobStatus, CronJobStatus):
        shown = encode(status())
        assert isinstance(shown, dict)
        assert shown.keys() <= fields_of(f"V1{status.__name__}").keys()
