"""Images of a real registry through a container runtime: the credentials are handed on, and policies are kubelet's."""

import pytest

from tests.kernel.agents import MakeUp, up
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
from tests.machines.oci_images import Layout
from tests.machines.registry import PASSWORD, Registry

__all__ = ["layout", "registry", "up"]

pytestmark = [pytest.mark.cgroup("host"), pytest.mark.parametrize("up", ["cri"], indirect=True)]


def test_credentials_of_pods_and_of_the_machine_are_handed_to_the_runtime(
    up: MakeUp, registry: Registry, layout: Layout
) -> None:
    config = {"Cmd": ["/bin/sh", "-c", "echo pulled"], "Env": ["PATH=/bin"]}
    image = registry.push(layout.named("app", layout.image([BASE], config)), "team/app:1")
    agent = up("--max-container-restart-period", "3s")
    assert agent.containerd is not None
    agent.containerd.trust(registry.host, registry.certificate)
    agent.start()
    owner, other = of_image("owner", image), of_image("other", image)
    owner["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    agent.apply(owner)
    await_waiting(agent, "owner", "ImagePullBackOff")
    agent.apply(secret("registry", registry))
    agent.await_phase("owner", "Succeeded")
    assert_nowhere(agent, PASSWORD, pod="owner", secret="registry")
    # A container runtime may know of the end before it has written the last line.
    eventually(lambda: log_of(agent, "owner") == "pulled")
    assert {"Pulling", "Failed", "BackOff", "Pulled"} <= set(reasons(agent, "owner"))
    agent.apply(other)
    await_waiting(agent, "other", "ImagePullBackOff")  # the image is there, and not for this pod
    log_in(registry)
    agent.await_phase("other", "Succeeded")
    assert image in agent.cli("images")
