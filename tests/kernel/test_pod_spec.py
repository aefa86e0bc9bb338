"""Fields of a pod that people write, each as the kernel and the container see it, with both runtimes."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, pod, up, with_host_path
from tests.kernel.waiting import eventually
from tests.reserved_port import ReservedPort

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")
UNTIL_TERM = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
ON_42 = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}


def ended(status: dict[str, Any]) -> dict[str, Any]:
    """How the first container has ended; nothing if it has not."""
    (one, *_) = status.get("containerStatuses") or [{}]
    found: dict[str, Any] = one.get("state", {}).get("terminated", {})
    return found


def await_log(agent: Up, name: str, expected: str) -> None:
    # A container runtime may know of the end before it has written the last line.
    eventually(lambda: agent.cli("logs", name) == expected, details=lambda: agent.cli("logs", name))


def test_a_termination_message_comes_from_its_file_or_from_the_log(up: MakeUp):
    agent = up()
    agent.start()
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    elsewhere = {"terminationMessagePath": "/mnt/message"}
    agent.apply(
        pod("file", ["sh", "-c", "echo -n why > /dev/termination-log; exit 3"], **spec),
        pod("path", ["sh", "-c", "echo -n where > /mnt/message"], container=elsewhere, **spec),
        pod("log", ["sh", "-c", "echo last words; exit 3"], container=fallback, **spec),
        pod("well", ["sh", "-c", "echo no error"], container=fallback, **spec),
    )
    messages = {
        name: ended(agent.await_that(name, ended)).get("message", "")
        for name in ("file", "path", "log", "well")
    }
    assert messages == {"file": "why", "path": "where", "log": "last words\n", "well": ""}


def test_hooks_may_be_requests_or_pauses(up: MakeUp, tmp_path: Path):
    seen = tmp_path / "seen"
    seen.mkdir()
    agent = up()
    agent.start()
    port = ReservedPort()
    answer = r"printf 'Content-Type: text/plain\r\n\r\nok'"
    scripts = "; ".join(
        f"printf '#!/bin/sh\\necho {word} >> {seen}/calls\\n' > {word}; echo \"{answer}\" >> {word}"
        for word in ("start", "stop")
    )
    serve = f"/bin/busybox httpd -p 127.0.0.1:{port.number} -h /tmp; {UNTIL_TERM}"
    asked = f"mkdir /tmp/cgi-bin; cd /tmp/cgi-bin; {scripts}; chmod +x start stop; cd /; {serve}"
    lifecycle = {"preStop": {"httpGet": {"path": "/cgi-bin/stop", "port": port.number}}}
    pauses = (
        f'trap "cat /proc/uptime > {seen}/at-term; exit 0" TERM; touch {seen}/up; while :; do sleep 0.1; done'
    )
    web = pod(
        "web", ["sh", "-c", asked], container={"lifecycle": lifecycle}, terminationGracePeriodSeconds=30
    )
    probe = {"httpGet": {"path": "/cgi-bin/start", "port": port.number}, "periodSeconds": 1}
    web["spec"]["containers"][0]["readinessProbe"] = probe
    pause = pod("pause", ["sh", "-c", pauses], terminationGracePeriodSeconds=30)
    pause["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 2}}}
    agent.apply(with_host_path(web, seen), with_host_path(pause, seen))
    agent.await_that("web", lambda status: status.get("containerStatuses", [{}])[0].get("ready"))
    eventually((seen / "up").exists)
    assert "stop" not in (seen / "calls").read_text().split()
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    agent.client.delete("default", "web")
    agent.client.delete("default", "pause")
    agent.await_gone("web")
    agent.await_gone("pause")
    port.close()
    assert (seen / "calls").read_text().split().count("stop") == 1
    assert float((seen / "at-term").read_text().split()[0]) - before >= 2


def test_a_pod_ends_at_its_deadline_whatever_its_restart_policy_is(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("late", ["sleep", "1000"], activeDeadlineSeconds=1))
    status = agent.await_phase("late", "Failed")
    assert status["reason"] == "DeadlineExceeded"
    eventually(lambda: not agent.of_pod("late").paths()[0].exists(), details=lambda: agent.details_of("late"))


def test_a_container_restarts_by_its_own_policy_and_rules(up: MakeUp):
    agent = up()
    agent.start()
    mounts = [{"name": "kept", "mountPath": "/mnt"}]
    fails_twice = "echo run >> /mnt/runs; if [ $(wc -l < /mnt/runs) = 1 ]; then exit 42; fi; exit 7"
    ruled = {"restartPolicy": "Never", "restartPolicyRules": [ON_42], "volumeMounts": mounts}
    volumes = [{"name": "kept", "emptyDir": {}}]
    agent.apply(pod("ruled", ["sh", "-c", fails_twice], container=ruled, volumes=volumes))
    status = agent.await_phase("ruled", "Failed")
    (one,) = status["containerStatuses"]
    assert (one["restartCount"], one["state"]["terminated"]["exitCode"]) == (1, 7)


def test_an_ephemeral_volume_lives_as_long_as_its_pod(up: MakeUp):
    agent = up()
    agent.start()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Mi"}}}
    volumes = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]
    mounts = [{"name": "data", "mountPath": "/mnt"}]
    counts = "echo run >> /mnt/runs; wc -l < /mnt/runs; test $(wc -l < /mnt/runs) = 2"
    spec: dict[str, Any] = {"container": {"volumeMounts": mounts}, "volumes": volumes}
    for _ in range(2):
        agent.apply(pod("counts", ["sh", "-c", counts], restartPolicy="OnFailure", **spec))
        status = agent.await_phase("counts", "Succeeded")
        assert status["containerStatuses"][0]["restartCount"] == 1
        await_log(agent, "counts", "2\n")
        agent.client.delete("default", "counts", 0)
        agent.await_gone("counts")


def test_a_container_has_the_users_and_rights_that_it_asks_for(up: MakeUp):
    agent = up()
    agent.start()
    looks = (
        "id -u; id -g; id -G; stat -c %g /mnt; touch /new 2>/dev/null || echo read-only; "
        "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/sys/kernel/shm_rmid_forced"
    )
    context = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    pods_own = {
        "runAsUser": 1234,
        "runAsGroup": 2345,
        "fsGroup": 3456,
        "supplementalGroups": [4567],
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}],
    }
    container = {"securityContext": context, "volumeMounts": [{"name": "data", "mountPath": "/mnt"}]}
    volumes = [{"name": "data", "emptyDir": {}}]
    spec: dict[str, Any] = {"securityContext": pods_own, "volumes": volumes, "restartPolicy": "Never"}
    agent.apply(pod("asks", ["sh", "-c", looks], container=container, **spec))
    agent.await_phase("asks", "Succeeded")

    def seen() -> tuple[str, ...]:
        uid, gid, groups, *rest = agent.cli("logs", "asks").split("\n")
        return uid, gid, " ".join(sorted(groups.split())), *(" ".join(line.split()) for line in rest)

    bind = f"{1 << 10:016x}"
    expected = (
        "1234", "2345", "2345 3456 4567", "3456", "read-only", f"CapEff: {0:016x}", f"CapBnd: {bind}", "NoNewPrivs: 1",
        "Seccomp: 2", "1", "",
    )  # fmt: skip
    eventually(lambda: seen() == expected, details=lambda: str(seen()))


def test_a_privileged_container_has_all_rights_if_the_operator_allows_it(up: MakeUp):
    agent = up("--allowed-host-access=privileged")
    agent.start()
    looks = ["sh", "-c", "grep ^CapEff: /proc/self/status"]
    container = {"securityContext": {"privileged": True}}
    agent.apply(pod("all", looks, container=container, restartPolicy="Never"))
    if agent.containerd is None:
        status = agent.await_phase("all", "Failed")
        assert "privileged: true is not supported" in status["message"]
        return
    agent.await_phase("all", "Succeeded")
    mine = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")
    )
    assert os.geteuid() == 0
    await_log(agent, "all", f"{mine}\n")


def test_each_kind_of_workload_has_its_pods_and_a_finished_job_goes(up: MakeUp):
    agent = up()
    agent.start()

    def template(*command: str, **spec: object) -> dict[str, Any]:
        containers = [{"name": "main", "image": "host", "command": list(command)}]
        body = {"terminationGracePeriodSeconds": 1, "containers": containers, **spec}
        return {"metadata": {"labels": {"app": "web"}}, "spec": body}

    def workload(kind: str, name: str, **spec: object) -> dict[str, Any]:
        version = "batch/v1" if kind == "Job" else "apps/v1"
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}

    def owners() -> list[str]:
        running = [one for one in agent.client.pods() if one["status"].get("phase") == "Running"]
        return sorted(one["metadata"]["ownerReferences"][0]["kind"] for one in running)

    def reasons() -> dict[str, list[str]]:
        return {
            one["metadata"]["name"]: [each["reason"] for each in one["status"].get("conditions", ())]
            for one in agent.client.workloads("jobs", "default")
        }

    selector = {"matchLabels": {"app": "web"}}
    stays, once = template("sleep", "1000"), template("sleep", "1000", restartPolicy="Never")
    agent.apply(
        workload("DaemonSet", "web", selector=selector, template=stays),
        workload("ReplicaSet", "web", replicas=2, selector=selector, template=stays),
        workload("Job", "web", activeDeadlineSeconds=2, template=once),
        workload("Job", "brief", ttlSecondsAfterFinished=1, template=template("true", restartPolicy="Never")),
    )
    eventually(lambda: "DeadlineExceeded" in reasons().get("web", ()), details=lambda: str(reasons()))
    eventually(lambda: list(reasons()) == ["web"], details=lambda: str(reasons()))
    eventually(
        lambda: owners() == ["DaemonSet", "ReplicaSet", "ReplicaSet"],
        details=lambda: f"{owners()}\n{agent.log_tail()}",
    )
    # The Job is gone before its pod has ended.
    eventually(
        lambda: not [one for one in agent.client.pods() if one["metadata"]["name"].startswith("brief")],
        details=agent.log_tail,
    )
