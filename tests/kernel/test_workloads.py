"""Workloads on a real kernel: the agent is killed at any moment, and no pod is lost, doubled or run twice."""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import READY_SECONDS, MakeUp, Up, up, with_host_path
from tests.kernel.live_tree import content
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


def workload(kind: str, command: str, directory: Path, **spec: Any) -> dict[str, Any]:
    """A workload called w, whose containers see the directory."""
    is_batch = kind == "Job"
    container = {"name": "main", "image": "host", "command": ["sh", "-c", command]}
    body = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template: dict[str, Any] = {"metadata": {"labels": {"kind": kind}}, "spec": body}
    if is_batch:
        body["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"kind": kind}}
    return {
        "apiVersion": "batch/v1" if is_batch else "apps/v1",
        "kind": kind,
        "metadata": {"name": "w"},
        "spec": {**spec, "template": with_host_path(template, directory)},
    }


def status(agent: Up, plural: str) -> dict[str, Any]:
    found: dict[str, Any] = agent.client.workload(plural, "default", "w")["status"]
    return found


def pods(agent: Up, kind: str) -> list[dict[str, Any]]:
    return [one for one in agent.client.pods() if one["metadata"]["ownerReferences"][0]["kind"] == kind]


def reached(agent: Up, plural: str, **wanted: object) -> None:
    def is_so() -> bool:
        found = status(agent, plural)
        return all(found.get(field) == value for field, value in wanted.items())

    def details() -> str:
        state = json.dumps([status(agent, plural), agent.cli("get", "pods")], indent=1)
        return f"{state}\n{agent.log_tail()}"

    eventually(is_so, within_seconds=READY_SECONDS, details=details)


def runs(file: Path) -> Counter[str]:
    """How often each pod has written its name there."""
    return Counter((content(file) or "").split())


def check_runs(agent: Up, seen: Counter[str], names: set[str]) -> None:
    """These pods have run, each once. With the agent, its call to start a container ends too: a runtime that was at it
    ends the container, which may have begun, and the next agent starts it again."""
    assert seen.keys() == names
    assert [name for name, times in seen.items() if times > (2 if agent.containerd else 1)] == [], seen


def test_workloads_survive_kills_of_the_agent_and_run_nothing_twice(up: MakeUp, tmp_path: Path):
    directory = tmp_path / "seen"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    agent = up(node="512Mi,4cpu")
    agent.start(stop_pods=False)
    chance = random.Random(7)

    def killed() -> None:
        agent.kill()
        agent.start(stop_pods=False)

    server = f"echo $HOSTNAME >> {directory}/servers; exec sleep 600"
    agent.apply(
        workload("Deployment", server, directory, replicas=3),
        workload("StatefulSet", server, directory, replicas=2),
        workload(
            "Job", f"sleep 0.2; echo $HOSTNAME >> {directory}/job", directory, completions=3, parallelism=2
        ),
    )
    killed()
    reached(agent, "deployments", availableReplicas=3, replicas=3)
    reached(agent, "statefulsets", readyReplicas=2)
    reached(agent, "jobs", succeeded=3)
    done = runs(directory / "job")
    check_runs(agent, done, {one["metadata"]["name"] for one in pods(agent, "Job")})
    assert len(done) == 3

    def started() -> Counter[str]:
        return runs(directory / "servers")

    old = {one["metadata"]["name"] for one in pods(agent, "Deployment")}
    # A pod is available a moment before its shell has said so.
    eventually(lambda: {*old, "w-0", "w-1"} <= started().keys(), details=agent.log_tail)
    agent.cli("rollout", "restart", "deployment/w")
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.3))  # the kill is to come at any moment of the rollout
        killed()
    agent.cli("scale", "--replicas", "4", "deployment/w")
    killed()
    assert "successfully rolled out" in agent.cli("rollout", "status", "deployment/w")
    reached(agent, "deployments", availableReplicas=4, updatedReplicas=4, replicas=4)
    eventually(lambda: len(pods(agent, "Deployment")) == 4)  # old ones may still be ending
    new = {one["metadata"]["name"] for one in pods(agent, "Deployment")}
    assert not old & new
    assert {one["metadata"]["name"] for one in pods(agent, "StatefulSet")} == {"w-0", "w-1"}
    eventually(lambda: new <= started().keys(), details=agent.log_tail)
    check_runs(agent, started(), {*old, *new, "w-0", "w-1"})

    agent.cli("delete", "deployment/w")
    assert not pods(agent, "Deployment")
    agent.cli("delete", "statefulset/w")
    agent.cli("delete", "job/w")
    assert agent.client.pods() == []
    assert runs(directory / "job") == done
    agent.kill()
    agent.start()


def test_a_file_with_a_deployment_is_followed(up: MakeUp, tmp_path: Path):
    directory = tmp_path / "seen"
    directory.mkdir()
    agent = up(node="512Mi,4cpu")
    one = workload("Deployment", "exec sleep 600", directory, replicas=1)
    agent.write("work.yaml", json.dumps(one))
    agent.start()
    reached(agent, "deployments", availableReplicas=1)
    one["spec"]["replicas"] = 2
    one["spec"]["template"]["metadata"]["annotations"] = {"version": "2"}
    agent.write("work.yaml", json.dumps(one))
    reached(agent, "deployments", availableReplicas=2, updatedReplicas=2, replicas=2)


def test_pods_of_a_stateful_set_find_each_other_by_name_and_their_files_in_their_claims(
    up: MakeUp, tmp_path: Path
):
    directory = tmp_path / "seen"
    directory.mkdir()
    agent = up(node="512Mi,4cpu")
    agent.start()
    meets = "until grep -q w-1.peers.default.svc.cluster.local /etc/hosts; do sleep 0.1; done"
    one = workload(
        "StatefulSet",
        f"{meets}; echo $HOSTNAME >> /data/starts; exec sleep 600",
        directory,
        replicas=2,
        serviceName="peers",
    )
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    one["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    container = one["spec"]["template"]["spec"]["containers"][0]
    container.setdefault("volumeMounts", []).append({"name": "data", "mountPath": "/data"})
    service = {"clusterIP": "None", "selector": {"kind": "StatefulSet"}}
    agent.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"}, "spec": service}, one)

    def starts(ordinal: int) -> str:
        file = agent.state / "claims" / f"default_data-w-{ordinal}" / "starts"
        return file.read_text() if file.exists() else ""

    eventually(lambda: starts(0) == "w-0\n" and starts(1) == "w-1\n", within_seconds=READY_SECONDS)
    agent.cli("delete", "pod", "w-0")
    eventually(lambda: starts(0) == "w-0\n" * 2, within_seconds=READY_SECONDS)
    agent.cli("delete", "statefulset/w")
    agent.cli("delete", "pvc", "data-w-0")
    assert not (agent.state / "claims" / "default_data-w-0").exists()
    assert starts(1) == "w-1\n"
