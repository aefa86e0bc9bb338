"""ConfigMaps and Secrets with real containers, of both runtimes."""

import base64
import os
from pathlib import Path

import pytest

from tests.kernel.agents import MakeUp, Up, pod, up
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

PASSWORD = "kept-from-everybody-9431"


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: str) -> dict[str, object]:
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
    told = 'echo "url $URL mode $APP_MODE" | sed s/9431/1349/; exec sleep 1000'
    agent.apply(
        pod(
            "web",
            ["sh", "-c", told],
            container={"env": env, "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "app"}}]},
        )
    )
    eventually(lambda: reason_of(agent, "web") == "CreateContainerConfigError")
    agent.apply(config_map("app", MODE="fast", HOST="here"))
    agent.apply(secret("db", password=PASSWORD))
    agent.await_phase("web", "Running")
    expected = f"url db://{PASSWORD.replace('9431', '1349')}@here mode fast\n"
    eventually(lambda: log_of(agent, "web") == expected)
    agent.kill()
    agent.start()
    assert agent.phase("web") == "Running"
    _assert_nowhere(agent, "web")
    shown = agent.cli("get", "secret", "db", "-o", "yaml")
    assert base64.b64encode(PASSWORD.encode()).decode() in shown, "the operator may ask for it"


def _assert_nowhere(agent: Up, name: str) -> None:
    """The secret is in no file of the agent's, in no arguments, and nothing shows it without being asked for it."""
    word = PASSWORD.encode()
    assert not [path for path in _files(agent.state) if word in path.read_bytes()]
    assert word not in agent.log.read_bytes()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert word not in path.read_bytes(), path
        except (FileNotFoundError, ProcessLookupError):
            continue
    for command in (
        ("describe", "pod", name),
        ("describe", "secret", "db"),
        ("get", "secrets"),
        ("get", "pod", name, "-o", "yaml"),
        ("events", "-o", "json"),
        ("why", name),
    ):
        shown = agent.cli(*command)
        assert PASSWORD not in shown, command
        assert base64.b64encode(word).decode() not in shown, command
    assert PASSWORD not in str(agent.client.get("/view"))


def _files(directory: Path) -> list[Path]:
    """Every file on the disk below the directory, not those of filesystems in memory that are mounted there."""
    device = directory.stat().st_dev
    found = []
    for place, names, files in os.walk(directory):
        names[:] = [name for name in names if Path(place, name).lstat().st_dev == device]
        paths = (Path(place, name) for name in files)
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    assert found
    return found
