"""What follows from memory in queues of sockets: a limit holds for it, and it counts for the pod."""

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.tree import Version
from evenkeel.policy.socket_queues import HeldMemory, above_limit
from evenkeel.pressure import socket_queues
from evenkeel.pressure.socket_readings import Look, PodHeld
from evenkeel.pressure.targets import WatchTargets
from tests.models.agents import Place, drive, pods_of, until

MIB = 1 << 20
POD = """
apiVersion: v1
kind: Pod
metadata: {name: hoards, uid: u1}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: host, command: [a], resources: {limits: {memory: 64Mi}}}
"""
PATH = "/evenkeel/kubepods/burstable/podu1/c"


def held(container: str, charged: int, queues: int, limit: int | None) -> HeldMemory:
    return HeldMemory(container, charged * MIB, queues * MIB, None if limit is None else limit * MIB)


@pytest.mark.req("A19")
@pytest.mark.parametrize(
    ("pod", "containers", "ended"),
    [
        (held("", 30, 40, None), [held("a", 30, 40, 64)], "a"),
        (held("", 24, 40, None), [held("a", 24, 40, 64)], ""),  # exactly its limit
        (held("", 70, 0, 64), [held("a", 70, 0, 64)], ""),  # without queues the kernel sees to it
        (held("", 90, 600, None), [held("a", 90, 600, None)], ""),  # it has no limit
        (held("", 63, 8, None), [held("a", 63, 8, 64)], ""),  # the buffers of a server close to its limit
        (held("", 63, 9, None), [held("a", 63, 9, 64)], "a"),
        (held("", 40, 30, 64), [held("a", 38, 2, None), held("b", 2, 28, None)], "b"),  # of the pod
        (held("", 90, 90, 200), [held("a", 50, 15, 64), held("b", 30, 60, 64)], "b"),  # the worst
    ],
)
def test_a_container_is_ended_whose_memory_and_queues_are_above_a_limit(pod, containers, ended):
    found = above_limit(pod, containers)
    assert (found.container if found is not None else "") == ended


def test_the_reason_has_all_figures():
    found = above_limit(held("", 30, 40, None), [held("a", 30, 40, 64)])
    assert found is not None
    assert found.sentence == (
        "40Mi wait in queues of sockets, which the kernel charges to nobody, beside 30Mi of memory: together 70Mi,"
        " above its memory limit of 64Mi"
    )
    of_pod = above_limit(held("", 40, 30, 64), [held("a", 40, 30, None)])
    assert of_pod is not None
    assert of_pod.sentence.endswith("together 70Mi, above the pod's memory limit of 64Mi")


def seen(queues: int) -> Look:
    return Look({"u1": PodHeld(held("", 30, queues, None), (held("c", 30, queues, 64),))}, 0.0)


@pytest.fixture
def place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Nothing is read but what a test says was found."""
    monkeypatch.setattr(socket_queues.SocketQueues, "_is_due", lambda *_: False)
    return Place(str(tmp_path))


async def running(agent: Agent, place: Place) -> None:
    await agent.apply(pods_of(POD))
    await until(lambda: place.runtime.running() == {"c"})


@pytest.mark.req("A19")
def test_a_limit_that_is_exceeded_at_two_looks_ends_the_container(place: Place):
    async def story(agent: Agent) -> None:
        await running(agent, place)
        agent.watches.queues.found(seen(40))
        agent.watches.queues.found(seen(20))
        agent.watches.queues.found(seen(40))
        assert not any(one.reason == "MemoryLimitExceeded" for one in agent.events())
        agent.watches.queues.found(seen(41))
        await until(lambda: not place.runtime.running())
        (told,) = [one.message for one in agent.events() if one.reason == "MemoryLimitExceeded"]
        assert told.startswith("container c: 41Mi wait in queues of sockets")

    drive(place, story)


def test_the_watch_is_told_whole_mebibytes_and_only_of_pods_that_have_any(place: Place):
    async def story(agent: Agent) -> None:
        await running(agent, place)
        look = seen(20)
        agent.watches.queues.found(look)
        assert agent.watches.memory.queues == {"u1": 20 * MIB}
        little = look.pods["u1"].pod._replace(queue_bytes=MIB - 1)
        agent.watches.queues.found(Look({"u1": PodHeld(little, ())}, 0.0))
        assert agent.watches.memory.queues == {}

    drive(place, story)


def test_on_cgroup_v1_the_kernel_is_told_to_count_buffers_as_soon_as_there_is_a_cgroup(place: Place):
    place.kernel.version = Version.V1
    missing = CgroupError("there is no cgroup", path=PATH, reason="ENOENT")
    place.kernel.refuse = lambda action, path, file: missing if ".tcp." in file and is_late else None
    is_late = True

    async def story(agent: Agent) -> None:
        nonlocal is_late
        await running(agent, place)
        assert "memory.kmem.tcp.limit_in_bytes" not in place.kernel.cgroups[PATH]
        is_late = False
        await until(lambda: place.kernel.cgroups[PATH].get("memory.kmem.tcp.limit_in_bytes") == "-1")

    drive(place, story)


def test_each_look_knows_the_pods_of_the_moment(place: Place, monkeypatch: pytest.MonkeyPatch):
    looked_at: list[frozenset[str]] = []

    def look(targets: WatchTargets) -> Look:
        looked_at.append(frozenset(target.uid for target in targets.pods))
        return Look({}, 0.0)

    monkeypatch.setattr(socket_queues.SocketQueues, "_is_due", lambda *_: True)
    monkeypatch.setattr(socket_queues, "_CALM_SECONDS", 0.01)
    monkeypatch.setattr(socket_queues, "look", look)
    monkeypatch.setattr(place.kernel, "files", lambda path: {"memory": f"/nowhere{path}"})

    async def story(agent: Agent) -> None:
        await running(agent, place)
        await until(lambda: looked_at[-1:] == [{"u1"}])
        await agent.apply(pods_of(POD.replace("hoards", "second").replace("u1", "u2")))
        await until(lambda: looked_at[-1:] == [{"u1", "u2"}])
        await agent.delete("default/hoards", 0)
        await until(lambda: looked_at[-1:] == [{"u2"}])

    drive(place, story)
