"""Ephemeral containers of an agent with real containers of both runtimes: the pods come as from a cluster, and no
control plane is needed."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.agent.startup import start
from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.pod import ContainerState, Pod
from evenkeel.kube.pod_object import read_pod
from evenkeel.policy.node_view import node_view, parse_node
from evenkeel.runtime.sessions import Streams
from tests.kernel.agents import RUNTIMES
from tests.kernel.cgroups import Cgroup
from tests.kernel.live_tree import cgroups_below, content, processes_in
from tests.kernel.waiting import PATIENCE_SECONDS
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd

pytestmark = pytest.mark.cgroup("v1", "v2")

T = TypeVar("T")
UID = "6f8a2c1e-0000-4000-8000-000000000001"
MARK = "50041"  # the seconds that the pod's own program sleeps


class World:
    """Agents that come and go in one state directory."""

    def __init__(self, root: Cgroup, directory: Path, containerd: Containerd | None) -> None:
        self.directory = directory
        self.image = TEST if containerd else "host"
        config = KubeletConfiguration(
            cgroup_root=f"/{root.paths()[0].name}",
            eviction_hard={},
            container_runtime_endpoint=containerd.endpoint if containerd else "",
        )
        self._node = node_view(parse_node("512Mi,2cpu"), config)

    @asynccontextmanager
    async def agent(self, *, is_last: bool = True) -> AsyncIterator[Agent]:
        """Pods run on after one that is not the last."""
        running = await start(self._node, str(self.directory))
        try:
            yield running.agent
        except BaseException:
            is_last = True
            raise
        finally:
            await running.close(stop_pods=is_last)

    def pod(self, *ephemeral: dict[str, Any], **spec: Any) -> Pod:
        main: dict[str, Any] = {"name": "main", "image": self.image, "command": ["sleep", MARK]}
        main["resources"] = {"limits": {"memory": "32Mi", "cpu": "500m"}}
        value = {
            "metadata": {"name": "web", "namespace": "default", "uid": UID},
            "spec": {
                "containers": [main],
                "terminationGracePeriodSeconds": 1,
                "ephemeralContainers": [{"image": self.image, **one} for one in ephemeral],
                **spec,
            },
        }
        found = read_pod(value, Profile.DOCUMENTS, ())
        assert isinstance(found, Pod), found
        return found

    async def run_in(self, agent: Agent) -> None:
        """The pod runs, without ephemeral containers."""
        agent.cluster_pods.put(self.pod())
        await until(agent, is_running)

    def log(self, container: str) -> list[str]:
        path = self.directory / f"logs/default_web_{UID}/{container}/1.log"
        text = path.read_text() if path.exists() else ""
        whole = text.rpartition("\n")[0]  # the last line may be written at this moment
        return [line.split(" ", 3)[3] for line in whole.splitlines()]


@pytest.fixture(params=RUNTIMES)
def cluster_agent(request: pytest.FixtureRequest, cgroup_root: Cgroup, tmp_path: Path) -> World:
    containerd = request.getfixturevalue("containerd") if request.param == "cri" else None
    return World(cgroup_root, tmp_path / "state", containerd)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), 4 * PATIENCE_SECONDS)

    asyncio.run(bounded())


async def until(agent: Agent, holds: Callable[[Pod], object]) -> Pod:
    """The pod once `holds` says so of it. Asked after each step of the agent."""
    while True:
        shown = agent.cluster_pods.shown(UID)
        if shown is not None and holds(shown):
            return shown
        try:
            await asyncio.wait_for(agent.pod_loop.stepped(), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"the pod is {shown and shown.status}") from None


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def state_of(pod: Pod, name: str) -> ContainerState:
    statuses = (one.state for one in pod.status.every_container_status if one.name == name)
    return next(statuses, None) or ContainerState()


async def logged(world: World, container: str, lines: int) -> list[str]:
    await found(lambda: len(world.log(container)) >= lines)
    return world.log(container)


async def found(look: Callable[[], T]) -> T:
    """The first thing that there is where `look` looks."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not (thing := look()):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    return thing


LOOK = {
    "name": "look",
    "targetContainerName": "main",
    # The capability is what kubectl debug asks for.
    "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    "command": [
        "sh",
        "-c",
        "tr '\\0' ' ' < /proc/1/cmdline; echo; grep CapEff /proc/self/status; exec sleep 50042",
    ],
}


def test_it_sees_its_target_within_the_limits_of_the_pod_and_outlives_the_agent(
    cluster_agent: World, cgroup_root: Cgroup
):
    def cgroups(name: str) -> list[Path]:
        """The directories of the pod's cgroups, in the hierarchy of memory, that have the process."""
        top = next(path for path in cgroup_root.paths() if (path / "kubepods").is_dir())
        of_pod = [path for path in cgroups_below(top) if f"pod{UID}" in str(path)]
        return [path for path in of_pod if name in _commands(path)]

    async def body() -> None:
        async with cluster_agent.agent(is_last=False) as agent:
            await cluster_agent.run_in(agent)
            await found(lambda: cgroups(MARK))  # a runtime may say that it runs before it is executed
            agent.cluster_pods.put(cluster_agent.pod(LOOK))
            shown = await until(agent, lambda pod: state_of(pod, "look").running is not None)
            seen, capabilities = await logged(cluster_agent, "look", 2)
            assert seen.split() == ["sleep", MARK]
            assert not int(capabilities.split()[1], 16) & 1 << 19, "SYS_PTRACE"
            # A process that executes a program has no command for a moment.
            (own,), (of_main,) = await found(lambda: cgroups("50042")), await found(lambda: cgroups(MARK))
            assert own != of_main
            assert own.parent == of_main.parent, "both are below the pod's cgroup, which has the limits"
            assert shown.status.phase == "Running"
        async with cluster_agent.agent() as agent:
            again = await until(agent, is_running)
            assert again.status.ephemeral_container_statuses == shown.status.ephemeral_container_statuses
            agent.cluster_pods.end(UID, 1.0)
            while agent.cluster_pods.get(UID) is not None:
                await asyncio.wait_for(agent.pod_loop.stepped(), PATIENCE_SECONDS)
            assert not cgroups("50042")

    run(body)


def test_it_is_started_once_and_its_end_is_not_the_pods(cluster_agent: World):
    async def body() -> None:
        async with cluster_agent.agent() as agent:
            await cluster_agent.run_in(agent)
            fails = {"name": "fails", "command": ["sh", "-c", "exit 7"]}
            agent.cluster_pods.put(cluster_agent.pod(fails))
            shown = await until(agent, lambda pod: state_of(pod, "fails").terminated is not None)
            ended = state_of(shown, "fails").terminated
            assert ended is not None
            assert ended.exit_code == 7
            stays = {"name": "stays", "command": ["sleep", "50043"]}
            agent.cluster_pods.put(cluster_agent.pod(fails, stays))
            shown = await until(agent, lambda pod: state_of(pod, "stays").running is not None)
            assert state_of(shown, "fails").terminated == ended
            assert shown.status.phase == "Running"

    run(body)


def test_commands_run_in_it_and_its_own_streams_are_reached(cluster_agent: World):
    async def body() -> None:
        async with cluster_agent.agent() as agent:
            await cluster_agent.run_in(agent)
            reads = {
                "name": "reads",
                "stdin": True,
                "command": ["sh", "-c", "read word; echo got $word; exit 4"],
            }
            agent.cluster_pods.put(cluster_agent.pod(reads))
            await until(agent, lambda pod: state_of(pod, "reads").running is not None)
            executed = await agent.open_exec("default/web", "reads", ("sh", "-c", "exit 9"), Streams())
            assert (await executed.ended()).exit_code == 9
            await executed.close()
            attached = await agent.open_attach("default/web", "reads", Streams(stdin=True))
            os.write(attached.stdin, b"this\n")
            shown = await until(agent, lambda pod: state_of(pod, "reads").terminated is not None)
            await attached.close()
            ended = state_of(shown, "reads").terminated
            assert ended is not None
            assert ended.exit_code == 4
            assert await logged(cluster_agent, "reads", 1) == ["got this"]

    run(body)


def _commands(cgroup: Path) -> str:
    """What the processes of the cgroup execute."""
    return "\0".join(content(Path(f"/proc/{pid}/cmdline")) or "" for pid in processes_in(cgroup))
