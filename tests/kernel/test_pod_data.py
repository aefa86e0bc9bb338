"""ConfigMaps and Secrets with real containers, of both runtimes."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import MakeUp, Up, pod, up
from tests.kernel.secrecy import assert_nowhere
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

PASSWORD = "kept-from-everybody-9431"


def config_map(name: str, **data: Any) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: Any) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def log_of(agent: Up, name: str) -> str:
    return agent.cli("logs", name)


def reason_of(agent: Up, name: str) -> str:
    statuses = agent.status(name).get("containerStatuses") or [{}]
    reason: str = statuses[0].get("state", {}).get("waiting", {}).get("reason", "")
    return reason


def test_variables_come_from_objects_and_no_secret_is_left_anywhere(up: MakeUp):
    agent = up()
    agent.start()
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        {"name": "URL", "value": "db://$(PASSWORD)@$(APP_HOST)"},
    ]
    reported = 'echo "url $URL mode $APP_MODE" | sed s/9431/1349/; exec sleep 1000'
    agent.apply(
        pod(
            "web",
            ["sh", "-c", reported],
            container={"env": env, "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "app"}}]},
        )
    )
    eventually(lambda: reason_of(agent, "web") == "CreateContainerConfigError")
    agent.apply(config_map("app", MODE="fast", HOST="here"))
    agent.apply(secret("db", password=PASSWORD))
    agent.await_phase("web", "Running")
    expected = f"url db://{PASSWORD.replace('9431', '1349')}@here mode fast\n"
    _await_log(agent, "web", expected)
    agent.kill()
    agent.start()
    assert agent.phase("web") == "Running"
    assert_nowhere(agent, PASSWORD, pod="web", secret="db")
    shown = agent.cli("get", "secret", "db", "-o", "yaml")
    assert base64.b64encode(PASSWORD.encode()).decode() in shown, "the operator may ask for it"


def _await_log(agent: Up, name: str, expected: str) -> None:
    eventually(
        lambda: log_of(agent, name) == expected,
        details=lambda: f"it said {log_of(agent, name)!r} and not {expected!r}",
    )


def test_volumes_have_the_files_of_objects_and_follow_their_changes(up: MakeUp):
    agent = up()
    agent.start()
    sources = [
        {"secret": {"name": "db", "items": [{"key": "password", "path": "deep/password", "mode": 0o400}]}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    volumes = [
        {"name": "app", "configMap": {"name": "app"}},
        {"name": "both", "projected": {"sources": sources, "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts = [
        {"name": "app", "mountPath": "/data/app"},
        {"name": "app", "mountPath": "/data/one", "subPath": "mode"},
        {"name": "both", "mountPath": "/data/both"},
        {"name": "scratch", "mountPath": "/data/mine", "subPathExpr": "of/$(NAME)"},
    ]
    reported = (
        "cat /data/app/mode /data/one /data/both/name; stat -Lc %a:%u:%g /data/both/deep/password /data/both/name;"
        " sum() { sha256sum < /data/both/deep/password; }; sum;"
        " for f in /data/app/x /data/both/x /data/one; do { echo x > $f; } 2>/dev/null && echo wrote $f; done;"
        " echo mine > /data/mine/file;"
        " until grep -q slow /data/app/mode; do sleep 0.1; done;"
        " cat /data/app/mode /data/one; readlink /data/app/mode; exec sleep 1000"
    )
    env = [{"name": "NAME", "value": "web"}]
    spec: dict[str, Any] = {"volumes": volumes, "securityContext": {"fsGroup": 4711}}
    web = pod("web", ["sh", "-c", reported], container={"volumeMounts": mounts, "env": env}, **spec)
    agent.apply(web, config_map("app", mode="fast\n"))
    eventually(lambda: any("FailedMount" in line for line in agent.cli("events", "web").splitlines()))
    assert reason_of(agent, "web") == "ContainerCreating"
    agent.apply(secret("db", password=PASSWORD))
    agent.await_phase("web", "Running")
    checksum = f"{hashlib.sha256(PASSWORD.encode()).hexdigest()}  -\n"
    expected = f"fast\nfast\nweb440:0:4711\n440:0:4711\n{checksum}"
    _await_log(agent, "web", expected)
    agent.kill()
    agent.start()
    assert_nowhere(agent, PASSWORD, pod="web", secret="db")
    agent.apply(config_map("app", mode="slow\n"))
    _await_log(agent, "web", f"{expected}slow\nfast\n..data/mode\n")
    uid = agent.pod("web")["metadata"]["uid"]
    scratch = agent.state / "pods" / uid / "volumes" / "scratch" / "of" / "web" / "file"
    assert scratch.read_text() == "mine\n"
    agent.client.delete("default", "web")
    agent.await_gone("web")
    mounted = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(agent.state) in line
    ]
    assert not [line for line in mounted if uid in line]


def test_variables_come_from_a_file_that_an_init_container_writes(up: MakeUp):
    agent = up()
    agent.start()

    def with_file(name: str, script: str, key: str, **selector: Any) -> dict[str, Any]:
        source = {"fileKeyRef": {"volumeName": "made", "path": "app.env", "key": key, **selector}}
        setup = {
            "name": "setup",
            "image": "host",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "made", "mountPath": "/tmp/made"}],
        }
        one = pod(name, ["sh", "-c", 'echo "got ${V-nothing}"; ls /tmp'], restartPolicy="Never")
        one["spec"]["containers"][0]["env"] = [{"name": "V", "valueFrom": source}]
        return one | {
            "spec": {
                **one["spec"],
                "initContainers": [setup],
                "volumes": [{"name": "made", "emptyDir": {}}],
            }
        }

    write = "printf \"A='one\\ntwo'\\n\" > /tmp/made/app.env"
    agent.apply(
        with_file("has", write, "A"),
        with_file("optional", write, "B", optional=True),
        with_file("lacks", write, "B"),
        with_file("leads-out", "ln -s /etc/hostname /tmp/made/app.env", "A"),
    )
    agent.await_phase("has", "Succeeded")
    assert log_of(agent, "has") == "got one\ntwo\n"
    agent.await_phase("optional", "Succeeded")
    assert log_of(agent, "optional") == "got nothing\n"
    eventually(lambda: reason_of(agent, "lacks") == "CreateContainerConfigError")
    eventually(lambda: reason_of(agent, "leads-out") == "CreateContainerConfigError")
    assert "leads out of the volume" in agent.cli("events", "leads-out")
    uid = agent.pod("lacks")["metadata"]["uid"]
    (agent.state / "pods" / uid / "volumes" / "made" / "app.env").write_text("B='late'\n")
    agent.await_phase("lacks", "Succeeded")
    assert log_of(agent, "lacks") == "got late\n"
    assert agent.status("lacks")["containerStatuses"][0]["restartCount"] == 0


def test_a_container_that_would_be_root_and_must_not_waits_and_is_no_restart(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        pod("careful", ["true"], restartPolicy="Never", securityContext={"runAsNonRoot": True}),
        pod("other", ["true"], restartPolicy="Never", securityContext={"runAsNonRoot": True, "runAsUser": 7}),
    )
    agent.await_phase("other", "Succeeded")
    eventually(lambda: reason_of(agent, "careful") == "CreateContainerConfigError")
    status = agent.status("careful")
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Pending", 0)
    assert "runAsNonRoot is true" in status["containerStatuses"][0]["state"]["waiting"]["message"]


def test_a_sub_path_of_a_hostile_container_reaches_no_file_of_the_host(up: MakeUp, tmp_path: Path):
    kept = tmp_path / "kept"
    kept.write_text("host's own")
    agent = up()
    agent.start()
    volumes = [{"name": "shared", "emptyDir": {}}]
    hostile = {
        "name": "hostile",
        "image": "host",
        "command": ["sh", "-c", f"ln -s {kept} /shared/link; ln -s ../../../../../../etc /shared/up"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    for name, path in (("link", "link"), ("up", "up/passwd")):
        mounts = [{"name": "shared", "mountPath": "/data", "subPath": path}]
        agent.apply(
            pod(
                name,
                ["cat", "/data"],
                volumes=volumes,
                initContainers=[hostile],
                restartPolicy="Never",
                container={"volumeMounts": mounts},
            )
        )
        status = agent.await_phase(name, "Failed")
        message = status["containerStatuses"][0]["state"]["terminated"]["message"]
        assert "leads out of the volume" in message


def test_a_pod_waits_for_a_directory_of_the_host_whatever_its_restart_policy_is(up: MakeUp, tmp_path: Path):
    agent = up()
    agent.start()
    late = tmp_path / "late"
    waits = pod("waits", ["true"], restartPolicy="Never")
    waits["spec"]["volumes"] = [{"name": "late", "hostPath": {"path": str(late), "type": "Directory"}}]
    waits["spec"]["containers"][0]["volumeMounts"] = [{"name": "late", "mountPath": "/mnt"}]
    agent.apply(waits)

    def said() -> list[str]:
        events = agent.client.lines("/events", pod="default/waits")
        return [event["message"] for event in events if event["reason"] == "FailedMount"]

    assert f"hostPath {late} is not there" in eventually(said)[0]
    assert (agent.phase("waits"), reason_of(agent, "waits")) == ("Pending", "ContainerCreating")
    assert agent.status("waits")["containerStatuses"][0]["restartCount"] == 0
    late.mkdir()
    agent.await_phase("waits", "Succeeded")
