"""Images of a real registry on loopback, with TLS and a password, under the agent: pulled, shared, checked, removed."""

import base64
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import READY_SECONDS, MakeUp, Up, up
from tests.kernel.registries import (
    BASE,
    await_waiting,
    layout,
    log_in,
    log_of,
    of_image,
    reasons,
    registry,
    secret,
)
from tests.kernel.secrecy import assert_nowhere
from tests.kernel.waiting import eventually
from tests.machines.container_images import Entry
from tests.machines.lying_registry import LyingRegistry
from tests.machines.oci_images import Layout
from tests.machines.registry import PASSWORD, USER, Registry

__all__ = ["layout", "registry", "up"]

pytestmark = [
    pytest.mark.cgroup("host"),
    pytest.mark.processes_only("a container runtime has a store of its own"),
]


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


def test_a_wrong_password_is_reported_and_tried_again_until_it_is_right(
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
    registry.pause()  # a pull with the password hangs, and can be looked at
    agent.apply(secret("registry", registry))
    eventually(lambda: pulls_from(registry))
    assert_nowhere(agent, PASSWORD, pod="owner", secret="registry")
    registry.resume()
    agent.await_phase("owner", "Succeeded")
    assert_nowhere(agent, PASSWORD, pod="owner", secret="registry")
    agent.apply(other)
    assert "unauthorized" in await_waiting(agent, "other", "ImagePullBackOff")
    registry.stop()
    again = of_image("again", image)
    again["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    agent.apply(again)
    agent.await_phase("again", "Succeeded")


def pulls_from(registry: Registry) -> list[int]:
    """The processes that have the registry among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"skopeo") and any(registry.host.encode() in word for word in words):
                found.append(int(path.parent.name))
    return found


def test_a_moved_tag_other_platforms_and_many_layers(up: MakeUp, registry: Registry, layout: Layout) -> None:
    def says(text: str, *more: list[Entry], **options: Any) -> dict[str, Any]:
        config = {"Cmd": ["/bin/sh", "-c", f"echo {text}"], "Env": ["PATH=/bin"]}
        return layout.image([BASE, *more], config, **options)

    log_in(registry)
    moving = registry.push(layout.named("old", says("old")), "team/moving:1")
    own = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    other = "arm64" if own == "amd64" else "amd64"
    index = layout.index([says("foreign", architecture=other), says("own", architecture=own)])
    platforms = registry.push(layout.named("platforms", index), "team/platforms:1", is_whole=True)
    many = registry.push(
        layout.named("many", says("many", *([Entry(f"etc/layer{number}", b"x")] for number in range(99)))),
        "team/many:1",
    )
    zstd = registry.push(layout.named("zstd", says("zstd", compress=compressed, kind="+zstd")), "team/zstd:1")
    agent = up("--serialize-image-pulls=false")
    agent.start()
    agent.apply(
        of_image("before", moving),
        of_image("platforms", platforms),
        of_image("many", many),
        of_image("zstd", zstd),
    )
    for name, said in (("before", "old"), ("platforms", "own"), ("many", "many"), ("zstd", "zstd")):
        agent.await_phase(name, "Succeeded")
        assert log_of(agent, name) == said
    registry.push(layout.named("new", says("new")), "team/moving:1")
    agent.apply(of_image("present", moving), of_image("always", moving, imagePullPolicy="Always"))
    agent.await_phase("present", "Succeeded")
    agent.await_phase("always", "Succeeded")
    assert log_of(agent, "always") == "new"
    listed = agent.cli("images")
    assert all(image.partition("@")[0] in listed for image in (moving, platforms, many, zstd))


def compressed(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=content, capture_output=True, check=True).stdout


def test_an_agent_that_is_killed_during_a_pull_leaves_nothing_and_the_next_one_pulls(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    image = registry.push(layout.named("app", layout.image([BASE], {"Cmd": ["/bin/id"]})), "team/app:1")
    log_in(registry)
    agent = up()
    agent.start()
    registry.pause()
    agent.apply(of_image("app", image), of_image("gone", image))
    eventually(lambda: "Pulling" in reasons(agent, "app") and pullers(agent))
    agent.client.delete("default", "gone")
    agent.await_gone("gone")  # a pod that ends does not wait for its image
    agent.kill()
    eventually(lambda: not pullers(agent))  # they end with the agent
    assert list((agent.state / "images").glob(".pulling-*"))
    registry.resume()
    agent.start()
    agent.await_phase("app", "Succeeded")
    assert not list((agent.state / "images").glob(".*"))


def pullers(agent: Up) -> list[int]:
    """The processes that pull for an agent: their staging directory is in its state directory, or is their /tmp."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            mounts = (path / "mountinfo").read_text() if b"skopeo" in words else ""
        except OSError:
            continue
        is_ours = os.fsencode(agent.state) in words or f"{agent.state}/images/.pulling-" in mounts
        if is_ours and b"skopeo" in words:
            found.append(int(path.name))
    return found


@pytest.mark.parametrize("stops_midway", [False, True], ids=["lies", "stops midway"])
def test_a_registry_that_sends_other_content_is_not_believed(
    up: MakeUp, registry: Registry, stops_midway: bool
) -> None:
    with LyingRegistry(registry.certificate, registry.directory / "key", stops_midway=stops_midway) as liar:
        agent = up()
        agent.start()
        agent.apply(of_image("victim", f"{liar.host}/team/app:1", command=["/bin/sh"]))
        message = await_waiting(agent, "victim", "ImagePullBackOff")
        assert ("unexpected EOF" if stops_midway else "got sha256:") in message
        assert not list((agent.state / "images").glob(".*"))
        assert not list((agent.state / "images/blobs/sha256").glob("*"))


def test_run_tells_of_the_pull_and_then_runs_the_images_own_program(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    config = {"Entrypoint": ["/bin/sh", "-c", "echo from the image"], "Env": ["PATH=/bin"]}
    image = registry.push(layout.named("app", layout.image([BASE], config)), "team/app:1")
    log_in(registry)
    agent = up()
    agent.start()
    command = [
        sys.executable,
        "-m",
        "evenkeel",
        "run",
        "--rm",
        "--image",
        image,
        "--state-dir",
        str(agent.state),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "from the image\n"), done.stderr
    assert f'Pulling image "{image}"' in done.stderr


def test_a_container_may_write_to_its_own_hosts_file(up: MakeUp, registry: Registry, layout: Layout):
    says = "echo 192.0.2.7 added >> /etc/hosts && cat /etc/hosts"
    config = {"Entrypoint": ["/bin/sh", "-c", says], "Env": ["PATH=/bin"]}
    entries = [*BASE, Entry("bin/cat", link="busybox")]
    image = registry.push(layout.named("app", layout.image([entries], config)), "app:1")
    log_in(registry)
    agent = up()
    agent.start()
    sealed = {"securityContext": {"readOnlyRootFilesystem": True}}
    agent.apply(of_image("writes", image), of_image("sealed", image, **sealed))
    agent.await_phase("writes", "Succeeded")
    assert log_of(agent, "writes").endswith("192.0.2.7 added")
    agent.await_phase("sealed", "Failed")
    assert "added" not in Path("/etc/hosts").read_text()
