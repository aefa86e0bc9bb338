"""Evictions in the agent: which containers end, which data stays, and when pods come back."""

import asyncio
import json

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import KubeletConfiguration
from evenkeel.policy.eviction.decide import Eviction
from evenkeel.pressure.intents import Intent, Intents
from evenkeel.pressure.watch.messages import INTENTS_NAME
from evenkeel.pressure.watch.process import INTENT_SLOTS
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.start_errors import StartFailed
from tests.models.agents import Place, pods_of, until
from tests.models.memory_files import (
    PODS,
)


def test_an_intent_from_before_the_pod_came_back_is_not_carried_out(place):
    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running")
            uid = agent.pod("default/web").metadata.uid
        noted = Intents(place.directory, print)
        noted.write(Intent(uid, "long ago", place.now - 1))
        noted.close()
        async with place.agent() as agent:
            assert phase(agent, "web") == "Running"
        assert not Intents(place.directory, print).found

    asyncio.run(story())


@pytest.mark.req("A20", "B16")
@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_a_pod_that_was_asked_to_end_keeps_its_time_if_only_the_intent_is_known(place, grace):
    """Watch and agent were killed in its grace period."""

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running")
        noted = Intents(place.directory, print, INTENTS_NAME, INTENT_SLOTS)
        noted.write(Intent("u-web", "it used too much", place.now, grace))
        noted.close()
        async with place.agent() as agent:
            await until(lambda: phase(agent, "web") == "Failed")
            assert [grace for attempt, grace in place.runtime.stopped if attempt.uid == "u-web"] == [grace]

    asyncio.run(story())


@pytest.mark.req("A20", "E14")
def test_a_pod_that_is_killed_in_its_grace_period_was_evicted_once(place):
    """A soft threshold is met, and then a hard one, before the pod has ended."""

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running")
            recorder, web = agent.watches.memory.recorder, agent.pod("default/web")
            recorder.evicting("u-web", Eviction(web, 30), place.now)
            recorder.evicting("u-web", Eviction(web, 0), place.now + 1)
            await until(lambda: phase(agent, "web") == "Failed")
            recorded = agent.events("default/web")
            assert sum(one.times for one in recorded if one.reason == "Evicted") == 1
            said = [one.message for one in recorded if one.reason == "Killing"]
            assert any(message.startswith("killed before its grace period is over") for message in said)

    asyncio.run(story())


@pytest.mark.req("A20", "E2")
def test_volumes_in_memory_of_a_killed_pod_are_emptied_at_once_and_before_the_pod_is_removed(place):
    uids = ("killed", "asked", "plain")
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": uid, "uid": uid},
            "spec": {
                "containers": [{"name": "main", "image": "host", "command": ["x"]}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "" if uid == "plain" else "Memory"}}],
            },
        }
        for uid in uids
    ]

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})))
            await until(lambda: len(place.runtime.starts) == 3)
            place.runtime.may_empty.clear()
            for uid in uids:
                grace = 30.0 if uid == "asked" else 0.0
                agent.watches.memory.recorder.evict(uid, "for the test", place.now, grace)
            await until(lambda: "plain" in place.runtime.removed)
            assert phase(agent, "killed") == "Failed"
            assert "killed" not in place.runtime.removed
            place.runtime.may_empty.set()
            await until(lambda: "killed" in place.runtime.removed)
            assert place.runtime.emptied == ["killed"]

    asyncio.run(story())


@pytest.mark.req("E16")
def test_an_evicted_pod_comes_back_when_pressure_and_back_off_are_over(place):
    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: place.runtime.running() == {"main"} and len(place.runtime.starts) == 2)
            agent.watches.conditions.set("test", ["MemoryPressure"])
            evict(agent, place, "u-batch")
            await until(lambda: phase(agent, "batch") == "Failed")
            await until(lambda: "BackOff" in reasons(agent, "batch") and "u-batch" in place.runtime.removed)
            place.now += 11
            await look_at_the_clock(agent)
            assert "Returning" not in reasons(agent, "batch")  # the node is still under pressure
            assert phase(agent, "batch") == "Failed"
            agent.watches.conditions.set("test", [])
            await until(lambda: phase(agent, "batch") == "Running")
            assert "Returning" in reasons(agent, "batch")
            # The second time it waits for longer, and a restart of the agent does not change that.
            evict(agent, place, "u-batch")
            await until(lambda: reasons(agent, "batch").count("BackOff") == 2)
        place.runtime.removed.clear()
        async with place.agent() as agent:
            await until(lambda: "u-batch" in place.runtime.removed)
            place.now += 15
            await look_at_the_clock(agent)
            assert phase(agent, "batch") == "Failed"
            place.now += 6
            await look_at_the_clock(agent)
            await until(lambda: phase(agent, "batch") == "Running")

    asyncio.run(story())


@pytest.mark.req("B12", "E16")
def test_a_pod_whose_disk_is_limited_comes_back_without_its_old_logs(place):
    storage = '"resources": {"requests": {"ephemeral-storage": "0"}, "limits": {"ephemeral-storage": "4Mi"}}'
    limited = PODS.replace('["x"]}]', f'["x"], {storage}}}]')

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(limited))
            await until(lambda: len(place.runtime.starts) == 2)
            for uid in ("u-batch", "u-web"):
                evict(agent, place, uid)
            await until(lambda: "BackOff" in reasons(agent, "batch") and "BackOff" in reasons(agent, "web"))
            assert place.runtime.removed_logs == []
            place.now += 11
            await look_at_the_clock(agent)
            await until(lambda: len(place.runtime.starts) == 4)
            assert place.runtime.removed_logs == ["u-batch"]  # of the other they may be read for longer

    asyncio.run(story())


@pytest.mark.req("E14")
def test_an_eviction_while_a_container_starts_is_not_taken_for_a_failure_of_its_own(place):
    async def story() -> None:
        async with place.agent() as agent:

            def killed(launch: Launch) -> None:
                if launch.attempt.uid == "u-batch":
                    evict(agent, place, "u-batch")
                    raise StartFailed("its memory limit may be too small")

            place.runtime.on_start = killed
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "batch") == "Failed")
            (failed,) = [one for one in agent.events("default/batch") if one.reason == "Failed"]
            assert failed.message == (
                "cannot start container main: the pod was stopped while it was being set up: Evicted"
            )

    asyncio.run(story())


@pytest.mark.req("A20", "E14")
def test_an_eviction_while_a_container_starts_that_the_watch_has_not_reported_yet_is_an_eviction(tmp_path):
    """The watch writes its intent, kills, and reports. The runtime reports the failed start before that."""
    config = KubeletConfiguration(eviction_hard={"memory.available": "100Mi"})
    place = Place(str(tmp_path), config)
    never = PODS.replace('"spec": {"containers"', '"spec": {"restartPolicy": "Never", "containers"')

    def killed(launch: Launch) -> None:
        if launch.attempt.uid == "u-batch":
            noted = Intents(place.directory, print, INTENTS_NAME, INTENT_SLOTS)
            noted.write(Intent("u-batch", "it used too much", place.now))
            noted.close()
            raise StartFailed("the container's process was killed while it was being set up")

    async def story() -> None:
        async with place.agent() as agent:
            place.runtime.on_start = killed
            await agent.apply(pods_of(never))
            await until(lambda: phase(agent, "batch") == "Failed")
            status = agent.pod("default/batch").status
            assert (status.reason, status.message) == ("Evicted", "it used too much")
            (failed,) = [one for one in agent.events("default/batch") if one.reason == "Failed"]
            assert failed.message == (
                "cannot start container main: the pod was stopped while it was being set up: Evicted"
            )
            await agent.watches.memory.close(end=True)

    asyncio.run(story())


@pytest.mark.req("E16")
def test_an_evicted_pod_that_is_never_restarted_stays_away(place):
    never = PODS.replace('"spec": {"containers"', '"spec": {"restartPolicy": "Never", "containers"')

    async def story() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(never))
            await until(lambda: len(place.runtime.starts) == 2)
            await until(lambda: phase(agent, "batch") == "Running")
            evict(agent, place, "u-batch")
            await until(lambda: phase(agent, "batch") == "Failed")
            place.now += 1000
            await look_at_the_clock(agent)
            assert phase(agent, "batch") == "Failed"
            assert "BackOff" not in reasons(agent, "batch")

    asyncio.run(story())


@pytest.mark.req("B16")
def test_under_memory_pressure_best_effort_pods_wait_and_are_admitted_when_it_is_over(place):
    async def story() -> None:
        async with place.agent() as agent:
            agent.watches.conditions.set("test", ["MemoryPressure"])
            conditions = {one.type: one.status for one in agent.node().status.conditions}
            assert conditions["MemoryPressure"] == "True"
            await agent.apply(pods_of(PODS))
            await until(lambda: phase(agent, "web") == "Running" and phase(agent, "batch") == "Failed")
            agent.watches.conditions.set("test", [])
            await until(lambda: phase(agent, "batch") == "Running")

    asyncio.run(story())


def evict(agent: Agent, place: Place, uid: str) -> None:
    agent.watches.memory.recorder.evict(uid, "for the test", place.now)


async def look_at_the_clock(agent: Agent) -> None:
    """The back-off looks at evicted pods whenever the node's conditions change, in the next turns of the loop."""
    agent.watches.conditions.set("clock", ["PIDPressure"])
    agent.watches.conditions.set("clock", [])
    for _ in range(20):
        await asyncio.sleep(0)


def phase(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    return shown.status.phase if shown else ""


def reasons(agent: Agent, name: str) -> list[str]:
    return [one.reason for one in agent.events(f"default/{name}")]
