"""Containers that a real containerd does not remove when it is asked to, because of a task it takes to be there."""

import asyncio

import pytest

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.container_calls import removed
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection
from tests.kernel.cgroups import Cgroup
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd

pytestmark = pytest.mark.cgroup("v1", "v2")


def test_a_container_with_a_task_that_cri_does_not_know_is_removed_with_what_runs_in_it(
    containerd: Containerd, cgroup_root: Cgroup
):
    """As when its first process or its client dies while it is being started."""
    asyncio.run(_remove_with_a_task(containerd, f"/{cgroup_root.paths()[0].name}"))
    assert not containerd.containers()


async def _remove_with_a_task(containerd: Containerd, parent: str) -> None:
    connection = Connection(containerd.endpoint)
    try:
        namespaces = pb.NamespaceOption(network=pb.NamespaceMode.NODE)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="one", namespace="default", uid="u-1"),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=parent,
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=namespaces),
            ),
        )
        box = await connection.ask(
            pb.RunPodSandboxRequest(config=config), pb.RunPodSandboxResponse, seconds=60
        )
        made = await connection.ask(
            pb.CreateContainerRequest(
                pod_sandbox_id=box.pod_sandbox_id,
                config=pb.ContainerConfig(
                    metadata=pb.ContainerMetadata(name="main"),
                    image=pb.ImageSpec(image=TEST),
                    command=["sleep", "100000"],
                    linux=pb.LinuxContainerConfig(
                        security_context=pb.LinuxContainerSecurityContext(namespace_options=namespaces)
                    ),
                ),
                sandbox_config=config,
            ),
            pb.CreateContainerResponse,
            seconds=60,
        )
        # Behind the back of CRI, for which it was never started.
        containerd.ctr("tasks", "start", "--detach", made.container_id)
        with pytest.raises(CallFailed) as refused:
            await connection.ask(
                pb.RemoveContainerRequest(container_id=made.container_id),
                pb.RemoveContainerResponse,
                seconds=60,
            )
        assert refused.value.has_task
        await removed(connection, made.container_id)
        for request, response in (
            (pb.StopPodSandboxRequest(pod_sandbox_id=box.pod_sandbox_id), pb.StopPodSandboxResponse),
            (pb.RemovePodSandboxRequest(pod_sandbox_id=box.pod_sandbox_id), pb.RemovePodSandboxResponse),
        ):
            await connection.ask(request, response, seconds=60)
    finally:
        await connection.close()
