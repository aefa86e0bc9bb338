"""Whole-container OOM kills on cgroup v1, where the agent and not the kernel sees to them (A19, E5)."""

import asyncio

import pytest

from evenkeel.cgroup.tree import Naming, Tree, Version
from evenkeel.host.event_stream import EventStream
from evenkeel.host.whole_containers import kill_whole_containers, watch_containers
from tests.kernel import planned
from tests.kernel.planned import MIB, MakeNode, SmallNode, pod
from tests.kernel.processes import Program
from tests.kernel.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.cgroup("v1")
make_node = planned.make_node

LIMITED = "{limits: {cpu: 500m, memory: 32Mi}}"


def _tree(node: SmallNode) -> Tree:
    return Tree(Version.V1, Naming.CGROUPFS, tuple(node._planned.values()))


def _started(node: SmallNode, container: str) -> Program:
    """One that is in its cgroup."""
    program = node.start(container, "memory")
    program.ask("free")
    return program


async def _watched(node: SmallNode, container: str, *, until_killed: bool) -> list[str]:
    """An eater beyond its container's limit is killed; the paths of the containers whose rest was killed for it."""
    killed: list[str] = []
    async with EventStream() as stream:
        watch_containers(stream, node._driver, _tree(node))
        eater = node.start(container, "memory")
        eater.tell(f"allocate {64 * MIB}")
        assert await asyncio.to_thread(eater.wait) == -9
        patience = PATIENCE_SECONDS if until_killed else 1.0
        try:
            async with asyncio.timeout(patience):
                async for path, error in kill_whole_containers(stream, node._driver):
                    assert error is None
                    killed.append(path)
                    if until_killed:
                        break
        except TimeoutError:
            assert not until_killed, "no container was killed"
    return killed


@pytest.mark.req("A19")
def test_when_one_process_is_oom_killed_the_rest_of_its_container_is_too(make_node: MakeNode) -> None:
    node = make_node()
    node.apply(pod("p", main=LIMITED, other=LIMITED))
    sibling = _started(node, "p/main")
    neighbour = _started(node, "p/other")
    killed = asyncio.run(_watched(node, "p/main", until_killed=True))
    assert killed == [node.planned("p/main").path]
    assert sibling.wait() == -9
    assert neighbour.is_alive()
    eventually(lambda: not node.container("p/main").processes())


@pytest.mark.req("E5")
def test_a_container_can_choose_to_lose_only_the_process(make_node: MakeNode) -> None:
    node = make_node()
    node.apply(pod("p", annotations="{evenkeel.dev/oom-kill.main: process}", main=LIMITED))
    sibling = _started(node, "p/main")
    assert asyncio.run(_watched(node, "p/main", until_killed=False)) == []
    assert planned.oom_kills(node.container("p/main")) == 1
    assert sibling.is_alive()
