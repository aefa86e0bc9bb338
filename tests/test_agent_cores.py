"""Exclusive cores in the agent: resized in place, with an event where too few are left."""

import asyncio

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import KubeletConfiguration
from tests.models.agents import Place, pods_of, until

pytestmark = pytest.mark.req("A23")


def whole(name: str, cpu: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, uid: u-{name}}}
spec: {{containers: [{{name: c, image: host, command: [a], resources: {{limits: {{cpu: {cpu}, memory: 64Mi}}}}}}]}}
"""


def test_a_resize_keeps_the_cores_it_can_gives_back_the_others_and_tells_where_too_few_are_left(tmp_path):
    place = Place(str(tmp_path), KubeletConfiguration(eviction_hard={}, cpu_manager_policy="static"))

    def of(name: str, file: str = "cpuset.cpus") -> str:
        return place.kernel.cgroups.get(f"/evenkeel/kubepods/podu-{name}/c", {}).get(file, "")

    async def live(agent: Agent) -> None:
        await agent.apply(pods_of(whole("a", "1") + "---" + whole("b", "1")))
        await until(lambda: (of("a"), of("b")) == ("3", "2"))
        await agent.apply(pods_of(whole("a", "2")))
        await until(lambda: of("a") == "1,3")  # what it had, and one more
        assert of("a", "cpu.max") in ("", "max 100000")  # as the kernel makes it
        await agent.apply(pods_of(whole("a", "500m")))
        await until(lambda: of("a") == "0-1,3")  # shared
        assert of("a", "cpu.max") == "50000 100000"
        await agent.apply(pods_of(whole("a", "1")))
        await until(lambda: of("a") == "3")
        assert "CoresShared" not in [one.reason for one in agent.events()]
        await agent.apply(pods_of(whole("b", "3")))  # one must stay shared
        await until(lambda: of("b") == "0-2")
        assert of("b", "cpu.max") == "300000 100000"
        await until(
            lambda: [one.pod for one in agent.events() if one.reason == "CoresShared"] == ["default/b"]
        )
        assert len(place.runtime.starts) == 2  # all of it in place

    async def run() -> None:
        async with place.agent() as agent:
            await live(agent)

    asyncio.run(run())
