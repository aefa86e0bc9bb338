"""Lifecycle hooks, and the names that a pod looks up, with real containers of both runtimes."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenkeel.quantity import Quantity
from tests.kernel.agents import MakeUp, pod, up, with_host_path
from tests.kernel.sessions import done
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


def shell(text: str) -> dict[str, object]:
    return {"exec": {"command": ["sh", "-c", text]}}


def test_hooks_run_after_the_start_and_before_the_stop(up: MakeUp, tmp_path: Path):
    seen = tmp_path / "seen"
    seen.mkdir()
    agent = up()
    agent.start()
    main = f'trap "cat {seen}/stopping > {seen}/at-term; exit 0" TERM; while :; do sleep 0.1; done'
    lifecycle = {
        "postStart": shell(f"echo $WORD > {seen}/started"),
        "preStop": shell(f"echo stopping > {seen}/stopping"),
    }
    container = {"lifecycle": lifecycle, "env": [{"name": "WORD", "value": "hello"}]}
    good = pod("good", ["sh", "-c", main], container=container, terminationGracePeriodSeconds=30)
    bad = pod("bad", ["sleep", "1000"], container={"lifecycle": {"postStart": shell("echo no; exit 3")}})
    agent.apply(with_host_path(good, seen), bad)
    agent.await_phase("good", "Running")
    eventually(lambda: (seen / "started").exists() and (seen / "started").read_text() == "hello\n")
    eventually(lambda: "ended with 3: no" in agent.cli("events", "bad"))
    eventually(lambda: agent.status("bad")["containerStatuses"][0]["restartCount"] >= 1)
    assert "FailedPostStartHook" in agent.cli("events", "bad")
    agent.client.delete("default", "good")
    agent.await_gone("good")
    assert (seen / "at-term").read_text() == "stopping\n", "the hook ran before SIGTERM"


def test_a_post_start_hook_holds_back_the_next_container(up: MakeUp, tmp_path: Path):
    seen = tmp_path / "seen"
    seen.mkdir()
    agent = up()
    agent.start()
    waits = f"touch {seen}/hooked; while ! test -e {seen}/go; do sleep 0.05; done"
    made = pod("web", ["sleep", "1000"], container={"lifecycle": {"postStart": shell(waits)}})
    manifest = with_host_path(made, seen)
    (first,) = manifest["spec"]["containers"]
    second = {**first, "name": "second", "command": ["sh", "-c", f"touch {seen}/second; sleep 1000"]}
    del second["lifecycle"]
    manifest["spec"]["containers"].append(second)
    agent.apply(manifest)
    eventually((seen / "hooked").exists)
    eventually(lambda: "started container main" in agent.cli("events", "web"))
    statuses = {one["name"]: one for one in agent.status("web")["containerStatuses"]}
    assert statuses["main"]["state"]["waiting"]["reason"] == "ContainerCreating"
    assert not statuses["main"]["ready"]
    assert not (seen / "second").exists()
    assert agent.status("web")["phase"] == "Pending"
    (seen / "go").touch()
    agent.await_phase("web", "Running")
    eventually((seen / "second").exists)
    eventually(lambda: all(one["ready"] for one in agent.status("web")["containerStatuses"]))


def test_a_limit_that_is_not_set_is_what_the_node_can_give(up: MakeUp):
    agent = up()
    agent.start()
    reference = {"resourceFieldRef": {"resource": "limits.memory", "containerName": "main"}}
    file = {"path": "limit", "resourceFieldRef": reference["resourceFieldRef"]}
    volumes = [{"name": "about", "downwardAPI": {"items": [file]}}]
    container = {
        "env": [{"name": "LIMIT", "valueFrom": reference}],
        "volumeMounts": [{"name": "about", "mountPath": "/about"}],
    }
    reported = ["sh", "-c", "echo $LIMIT; cat /about/limit"]
    agent.apply(pod("web", reported, container=container, volumes=volumes, restartPolicy="Never"))
    agent.await_phase("web", "Succeeded")
    node = json.loads(agent.cli("get", "node", "-o", "json"))
    expected = Quantity.parse(node["status"]["allocatable"]["memory"]).value
    # A container runtime may know of the end before it has written the last line.
    eventually(
        lambda: agent.cli("logs", "web") == f"{expected}\n{expected}",
        details=lambda: agent.cli("logs", "web"),
    )


def test_a_pod_has_the_names_and_nameservers_that_it_asks_for(up: MakeUp):
    agent = up()
    agent.start()
    spec: dict[str, Any] = {
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["database.example"]}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.53"], "searches": ["shop.example"]},
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 4711},
    }
    fields = {"POD": "status.podIP", "HOST": "status.hostIP", "ACCOUNT": "spec.serviceAccountName"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    reported = (
        'grep database /etc/hosts; cat /etc/resolv.conf; echo $ACCOUNT; test -n "$POD" && test -n "$HOST"'
    )
    agent.apply(pod("web", ["sh", "-c", reported], container={"env": env}, **spec))
    agent.await_phase("web", "Succeeded")
    said = "10.1.2.3\tdatabase.example\nnameserver 10.0.0.53\nsearch shop.example\ndefault\n"
    # A container runtime may know of the end before it has written the last line.
    eventually(lambda: agent.cli("logs", "web") == said, details=lambda: agent.cli("logs", "web"))


def test_an_exit_code_restarts_all_containers_with_their_volumes(up: MakeUp):
    """Init containers run again, and what was in a volume is there still."""
    agent = up()
    agent.start()
    mounts = [{"name": "kept", "mountPath": "/mnt"}]
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    asks = "if [ $(wc -l < /mnt/init) = 1 ]; then until test -e /mnt/other; do sleep 0.05; done; exit 42; fi"

    def container(name: str, text: str, **more: object) -> dict[str, object]:
        return {"name": name, "image": "host", "command": ["sh", "-c", text], "volumeMounts": mounts, **more}

    manifest = pod("again", ["true"], restartPolicy="Never", volumes=[{"name": "kept", "emptyDir": {}}])
    manifest["spec"]["initContainers"] = [container("first", "echo init >> /mnt/init")]
    manifest["spec"]["containers"] = [
        container("asks", f"{asks}; sleep 1000", restartPolicy="Never", restartPolicyRules=[rule]),
        container("other", "echo other >> /mnt/other; sleep 1000"),
    ]
    agent.apply(manifest)

    def restarts() -> dict[str, int]:
        status = agent.status("again")
        every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return {one["name"]: one["restartCount"] for one in every if one["ready"]}

    eventually(lambda: restarts() == {"first": 1, "asks": 1, "other": 1})
    assert agent.phase("again") == "Running"

    def kept() -> list[bytes]:
        return done(
            agent, "exec", "again", "-c", "other", "--", "cat", "/mnt/init", "/mnt/other"
        ).stdout.split()

    # A container runs a moment before its shell has written.
    eventually(lambda: kept() == [b"init", b"init", b"other", b"other"], details=lambda: str(kept()))
    assert "all containers restart" in agent.cli("events", "again")
