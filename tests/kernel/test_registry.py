"""Images of a real registry on loopback, with TLS and a password, under the agent: pulled, shared, checked, removed."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import READY_SECONDS, MakeUp, Up, pod, up
from tests.kernel.waiting import eventually
from tests.machines.container_images import Entry
from tests.machines.oci_images import Layout
from tests.machines.registry import PASSWORD, USER, Registry

__all__ = ["up"]

pytestmark = [
    pytest.mark.cgroup("host"),
    pytest.mark.processes_only("a container runtime has a store of its own"),
]

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
    """As `docker login` does."""
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
    def is_so() -> bool:
        return waiting(agent, name).get("reason") == reason

    try:
        eventually(is_so, within_seconds=READY_SECONDS)
    except AssertionError:
        raise AssertionError(f"{agent.status(name)}\n{agent.log.read_text()[-3000:]}") from None
    return str(waiting(agent, name).get("message", ""))


def log_of(agent: Up, name: str) -> str:
    return agent.cli("logs", name).strip()


def reasons(agent: Up, name: str) -> list[str]:
    return [event["reason"] for event in agent.client.lines("/events", pod=f"default/{name}")]


def test_an_image_is_pulled_with_the_machines_password_and_its_configuration_is_honoured(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    says = "echo $GREETING $PWD $(id -u):$(id -g) $(id -G) $0 $1"
    config = {
        "Entrypoint": ["/bin/sh", "-c", says, "zero"],
        "Cmd": ["one"],
        "Env": ["GREETING=hello", "PATH=/bin"],
        "WorkingDir": "/not/there/yet",
        "User": "app",
    }
    made = layout.image([BASE], config)
    image = registry.push(layout.named("app", made), "team/app:1")
    log_in(registry)
    agent = up()
    agent.start()

    agent.apply(of_image("first", image))
    status = agent.await_phase("first", "Succeeded")
    assert log_of(agent, "first") == "hello /not/there/yet 1234:1234 1234 4321 zero one"
    found = reasons(agent, "first")
    assert found.index("Pulling") < found.index("Pulled") < found.index("Started")
    assert status["containerStatuses"][0]["imageID"] == f"{registry.host}/team/app@{made['digest']}"

    registry.stop()  # what is there needs no registry
    agent.apply(of_image("second", image, args=["two"]))
    agent.await_phase("second", "Succeeded")
    assert log_of(agent, "second").endswith("zero two")
    assert "Pulling" not in reasons(agent, "second")
    assert len([path for path in (agent.state / "images").iterdir() if len(path.name) == 64]) == 1
    assert not list((agent.state / "images").glob(".*"))


def test_a_wrong_password_is_told_and_tried_again_until_it_is_right(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    image = registry.push(layout.named("app", layout.image([BASE], {"Cmd": ["/bin/id"]})), "team/app:1")
    log_in(registry, "wrong")
    agent = up("--max-container-restart-period", "3s")
    agent.start()
    agent.apply(of_image("denied", image), of_image("never", image, imagePullPolicy="Never"))
    agent.apply(of_image("misspelt", "Team/App:1"))
    message = await_waiting(agent, "denied", "ImagePullBackOff")
    assert "unauthorized" in message
    assert "imagePullSecrets" in message
    assert await_waiting(agent, "never", "ErrImageNeverPull")
    assert "lower case" in await_waiting(agent, "misspelt", "InvalidImageName")
    log_in(registry)
    agent.await_phase("denied", "Succeeded")
    assert {"Pulling", "Failed", "BackOff", "Pulled"} <= set(reasons(agent, "denied"))
    whole = subprocess.run(
        [
            "grep",
            "-rlE",
            f"{PASSWORD}|{base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}",
            agent.state,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert whole.stdout == ""
    assert PASSWORD not in agent.log.read_text()


def secret(name: str, registry: Registry, password: str = PASSWORD) -> dict[str, Any]:
    auths = {registry.host: {"username": USER, "password": password}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps({"auths": auths})},
    }


def test_a_pods_own_secret_pulls_an_image_that_other_pods_cannot_use_without_it(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    image = registry.push(layout.named("app", layout.image([BASE], {"Cmd": ["/bin/id"]})), "team/app:1")
    agent = up("--max-container-restart-period", "3s")
    agent.start()
    owner, other = of_image("owner", image), of_image("other", image)
    owner["spec"]["imagePullSecrets"] = [{"name": "registry"}, {"name": "missing"}]
    agent.apply(owner)
    assert "unauthorized" in await_waiting(agent, "owner", "ImagePullBackOff")
    agent.apply(secret("registry", registry))
    agent.await_phase("owner", "Succeeded")
    agent.apply(other)
    assert "unauthorized" in await_waiting(agent, "other", "ImagePullBackOff")
    registry.stop()
    again = of_image("again", image)
    again["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    agent.apply(again)
    agent.await_phase("again", "Succeeded")
