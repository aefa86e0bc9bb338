"""Pods of a real cluster on Evenkeel's nodes, from kubectl's point of view."""

from typing import Any

from tests.cluster.nodes import Node
from tests.cluster.workspaces import SLEEP, Workspace, condition, deployment, is_ready, pod, restarts, shell
from tests.kernel.waiting import eventually


def test_a_pod_that_the_scheduler_bound_runs(workspace: Workspace, nodes: list[Node]):
    workspace.apply(pod("sleeper", *SLEEP))
    seen = workspace.until("sleeper", is_ready)
    status = seen["status"]
    assert seen["spec"]["nodeName"] in {node.name for node in nodes}
    assert status["phase"] == "Running"
    assert status["hostIP"] in {node.place.address for node in nodes}
    assert status["podIP"]
    assert status["startTime"]
    assert status["containerStatuses"][0]["state"]["running"]["startedAt"]
    for kind in ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady"):
        assert condition(seen, kind) == "True", kind
    assert status["observedGeneration"] == seen["metadata"]["generation"]


def test_a_job_of_three_pods_completes(workspace: Workspace, nodes: list[Node]):
    template = pod("", *shell("exit 0"), restartPolicy="Never")["spec"]
    workspace.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "three"},
            "spec": {"completions": 3, "parallelism": 2, "template": {"spec": template}},
        }
    )
    seen = workspace.until("three", lambda job: condition(job, "Complete") == "True", "job")
    assert seen["status"]["succeeded"] == 3
    assert {one["status"]["phase"] for one in workspace.pods()} == {"Succeeded"}


def test_a_container_that_fails_is_restarted_and_its_end_is_reported(workspace: Workspace, nodes: list[Node]):
    workspace.apply(pod("fails", *shell("echo nothing goes >&2; exit 3")))
    seen = workspace.until("fails", lambda one: restarts(one) >= 1)
    assert seen["status"]["phase"] == "Running"
    assert seen["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3


def test_a_pod_gets_its_configuration_and_the_token_of_its_account(workspace: Workspace, nodes: list[Node]):
    """Every ordinary pod has a projected volume with a token, the cluster's certificate and its namespace."""
    workspace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"colour": "red"}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "secret"},
            "stringData": {"word": "open"},
        },
        pod(
            "reader",
            *shell(
                "set -e; cd /var/run/secrets/kubernetes.io/serviceaccount; test -s token; test -s ca.crt;"
                ' test "$(cat namespace)" = "$SPACE"; test "$COLOUR" = red; test "$WORD" = open;'
                ' test "$(cat /etc/colours/colour)" = red; test "$KUBERNETES_SERVICE_HOST" = 10.251.0.1'
            ),
            restartPolicy="Never",
            volumes=[{"name": "colours", "configMap": {"name": "config"}}],
            container={
                "env": [
                    {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                    {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "colour"}}},
                    {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
                ],
                "volumeMounts": [{"name": "colours", "mountPath": "/etc/colours"}],
            },
        ),
    )
    seen = workspace.until("reader", lambda one: one["status"]["phase"] in ("Succeeded", "Failed"))
    assert seen["status"]["phase"] == "Succeeded", seen["status"]


def waiting_reason(one: dict[str, Any]) -> str:
    """The reason why the pod's first container waits; empty if it does not wait, or has no status yet."""
    (state, *_) = [each["state"] for each in one["status"].get("containerStatuses", ())] or [{}]
    return str(state.get("waiting", {}).get("reason", ""))


def test_a_pod_waits_for_a_config_map_that_is_not_there_yet(workspace: Workspace, nodes: list[Node]):
    named = {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "colour"}}}
    workspace.apply(pod("waits", *SLEEP, container={"env": [named]}))
    # Before that it may be about to be started.
    workspace.until("waits", lambda one: waiting_reason(one) == "CreateContainerConfigError")
    late = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"colour": "blue"}}
    workspace.apply(late)
    workspace.until("waits", is_ready)


def test_the_files_of_a_config_map_follow_it(workspace: Workspace, nodes: list[Node]):
    def colours(colour: str) -> dict:
        metadata = {"name": "colours"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"colour": colour}}

    workspace.apply(
        colours("red"),
        pod(
            "follows",
            *shell("until grep -q blue /etc/colours/colour; do sleep 0.1; done"),
            restartPolicy="Never",
            volumes=[{"name": "colours", "configMap": {"name": "colours"}}],
            container={"volumeMounts": [{"name": "colours", "mountPath": "/etc/colours"}]},
        ),
    )
    workspace.until("follows", is_ready)
    workspace.apply(colours("blue"))
    workspace.until_phase("follows", "Succeeded")


def test_a_deleted_pod_has_its_grace_and_is_gone(workspace: Workspace, nodes: list[Node]):
    workspace.apply(
        pod(
            "graceful",
            *shell("trap 'exit 0' TERM; echo trapped; while :; do sleep 0.1; done"),
            terminationGracePeriodSeconds=60,
        )
    )
    workspace.until("graceful", is_ready)
    # It is ready when it runs, and before it has set its trap a first process does not hear of SIGTERM.
    eventually(lambda: workspace.kubectl("logs", "graceful") == "trapped\n")
    workspace.kubectl("delete", "pod", "graceful", "--wait=true", timeout_seconds=50)
    assert not workspace.get("pod", "graceful")


def test_a_deployment_spreads_rolls_and_scales(workspace: Workspace, nodes: list[Node]):
    workspace.until_schedulable(*(node.name for node in nodes))
    workspace.apply(deployment("web", *SLEEP, replicas=8))
    workspace.until_rolled_out("web")
    placed = [one["spec"]["nodeName"] for one in workspace.pods(app="web")]
    assert {placed.count(node.name) for node in nodes} == {4}

    workspace.kubectl("set", "env", "deployment/web", "ROUND=2")
    workspace.until_rolled_out("web")
    workspace.kubectl("scale", "deployment/web", "--replicas=2")
    eventually(lambda: len(workspace.pods(app="web")) == 2)
    assert all(is_ready(one) for one in workspace.pods(app="web"))
    environments = [one["spec"]["containers"][0]["env"] for one in workspace.pods(app="web")]
    assert environments == [[{"name": "ROUND", "value": "2"}]] * 2


def test_a_pod_that_asks_for_more_than_is_left_stays_with_the_scheduler(
    workspace: Workspace, nodes: list[Node]
):
    workspace.apply(pod("large", *SLEEP, container={"resources": {"requests": {"memory": "4Gi"}}}))
    seen = workspace.until("large", lambda one: condition(one, "PodScheduled") == "False")
    assert "Insufficient memory" in seen["status"]["conditions"][0]["message"]


def test_a_pod_resized_in_place_keeps_its_container(workspace: Workspace, nodes: list[Node]):
    workspace.apply(pod("grows", *SLEEP))
    before = workspace.until("grows", is_ready)["status"]["containerStatuses"][0]
    wanted = '{"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":"48Mi"}}}]}}'
    workspace.kubectl("patch", "pod", "grows", "--subresource=resize", "--patch", wanted)

    def has_grown(one: dict) -> bool:
        resources = one["status"]["containerStatuses"][0].get("resources", {})
        return resources.get("limits", {}).get("memory") == "48Mi"

    after = workspace.until("grows", has_grown)
    assert after["status"]["containerStatuses"][0]["containerID"] == before["containerID"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    workspace.until("grows", lambda one: not condition(one, "PodResizeInProgress"))
