"""Pods with images of a registry of the tests, as the tests of both runtimes use them."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import READY_SECONDS, Up, pod
from tests.kernel.waiting import eventually
from tests.machines.container_images import Entry
from tests.machines.oci_images import Layout
from tests.machines.registry import PASSWORD, USER, Registry

BUSYBOX = Entry("bin/busybox", Path("/bin/busybox").read_bytes() if Path("/bin/busybox").exists() else b"")
ACCOUNTS = [
    Entry(
        "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234:app:/home/app:/bin/sh\n", mode=0o644
    ),
    Entry("etc/group", b"root:x:0:\napp:x:1234:\nextra:x:4321:app\n", mode=0o644),
]
BASE = [BUSYBOX, Entry("bin/sh", link="busybox"), Entry("bin/id", link="busybox"), *ACCOUNTS]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))  # its Docker configuration is not this machine's
    with Registry(tmp_path / "registry", has_password=True) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        yield made


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def log_in(registry: Registry, password: str = PASSWORD) -> None:
    """Writes the password to a Docker configuration, as `docker login` does."""
    directory = Path(os.environ["HOME"]) / ".docker"
    directory.mkdir(exist_ok=True)
    pair = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": pair}}}))


def of_image(name: str, image: str, **container: Any) -> dict[str, Any]:
    one = pod(name, [], container={"image": image, **container}, restartPolicy="Never")
    if "command" not in container:
        del one["spec"]["containers"][0]["command"]
    return one


def waiting(agent: Up, name: str) -> dict[str, Any]:
    statuses = agent.status(name).get("containerStatuses") or [{}]
    return statuses[0].get("state", {}).get("waiting") or {}


def await_waiting(agent: Up, name: str, reason: str) -> str:
    """Returns the message too, because the next attempt has another message."""

    def found() -> dict[str, Any] | None:
        seen = waiting(agent, name)
        return seen if seen.get("reason") == reason else None

    seen = eventually(found, within_seconds=READY_SECONDS, details=lambda: agent.details_of(name))
    return str(seen.get("message", ""))


def log_of(agent: Up, name: str) -> str:
    return agent.cli("logs", name).strip()


def reasons(agent: Up, name: str) -> list[str]:
    return [event["reason"] for event in agent.client.lines("/events", pod=f"default/{name}")]


def secret(name: str, registry: Registry, password: str = PASSWORD) -> dict[str, Any]:
    auths = {registry.host: {"username": USER, "password": password}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps({"auths": auths})},
    }
