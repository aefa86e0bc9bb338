"""The agent and a container that stalls at memory.high, with figures of the test's own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.scalars import Duration
from evenkeel.journal.store import Journal
from evenkeel.policy.memory_stall import StallSample
from evenkeel.pressure import memory_stalls
from evenkeel.pressure.decision_records import made_again
from tests.models.agents import Place, pods_of, until

pytestmark = pytest.mark.req("C8", "E4")

MIB = 1 << 20
POD = """
apiVersion: v1
kind: Pod
metadata: {name: stuck, uid: u1}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: host, command: [a], resources: {requests: {memory: 8Mi}, limits: {memory: 128Mi}}}
"""
PATH = "/evenkeel/kubepods/burstable/podu1/c"


class Figures:
    """The figures of the container. It uses the given memory, at most its memory.high, and it waits while it is at
    memory.high. Before it `has_begun` it uses nothing."""

    def __init__(self, place: Place) -> None:
        self.has_begun = False
        self.wants_mib = 1000
        self.late_mib = 0  # the memory.high that the kernel still has, whatever was written
        self.looks = 0
        self._kernel = place.kernel

    def __call__(self, directory: str, now: float) -> StallSample | None:
        self.looks += 1
        high = self._kernel.cgroups.get(PATH, {}).get("memory.high", "max")
        if self.late_mib:
            high = str(self.late_mib * MIB)
        mark = -1 if high == "max" else int(high)
        if not self.has_begun:
            return StallSample(now, 0, mark, 0, 0)
        wanted = self.wants_mib * MIB
        used = wanted if mark < 0 else min(wanted, mark)
        return StallSample(now, used, mark, int(now * 1e6) if used == mark else 0, 1)


def placed(tmp_path, monkeypatch: pytest.MonkeyPatch, answer: str) -> tuple[Place, Figures]:
    config = KubeletConfiguration(
        eviction_hard={},
        memory_high_stall=answer,
        memory_high_stall_period=Duration(50_000_000),
        memory_throttling_factor=0.75,
    )
    place = Place(str(tmp_path), config)
    monkeypatch.setattr(place.kernel, "files", lambda path: {"memory": path}, raising=False)
    figures = Figures(place)
    monkeypatch.setattr(memory_stalls, "read_stall_sample", figures)
    return place, figures


def drive(place: Place, figures: Figures, *stories: Callable[[Agent], Awaitable[None]]) -> None:
    """Each with an agent of its own: the next one looks at all containers when it starts. The agent that starts the
    container sees nothing of a stall, however long it takes."""

    async def run() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(POD))
            await until(lambda: place.runtime.running() == {"c"})
        figures.has_begun = True
        for story in stories:
            async with place.agent() as agent:
                await story(agent)

    asyncio.run(run())


def high(place: Place) -> str:
    return place.kernel.cgroups[PATH]["memory.high"]


def test_raise_goes_to_the_limit_in_steps_is_kept_over_restarts_and_ends_when_usage_falls_back(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    place, figures = placed(tmp_path, monkeypatch, "raise")
    marks: list[Any] = []

    async def raised(agent: Agent) -> None:
        assert high(place) == str(96 * MIB)
        await until(lambda: high(place) == "max")
        marks.extend(one.message for one in agent.events() if one.reason == "MemoryHighStall")

    async def kept(agent: Agent) -> None:
        assert high(place) == "max"
        figures.wants_mib = 50
        await until(lambda: high(place) == str(96 * MIB))
        await until(lambda: "MemoryHighRestored" in [one.reason for one in agent.events()])
        assert "DriftRepaired" not in [one.reason for one in agent.events()]

    drive(place, figures, raised, kept)
    with Journal.read(f"{place.directory}/journal.db") as journal:
        recorded = list(made_again(journal))
    assert not [one for one in recorded if one.unreadable or one.differs]
    assert all(one.now["stall"] for one in recorded)
    assert len(recorded) == 4
    assert [message.rpartition("; ")[2] for message in marks][:3] == [
        f"memory.high is raised to {mark}Mi, towards 128Mi" for mark in (104, 112, 120)
    ]


def test_a_mark_is_not_raised_again_before_the_kernel_has_the_last_one(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    place, figures = placed(tmp_path, monkeypatch, "raise")
    figures.late_mib = 96

    async def late(agent: Agent) -> None:
        def stalls() -> int:
            return sum(one.times for one in agent.events() if one.reason == "MemoryHighStall")

        await until(lambda: stalls() == 1)
        looks = figures.looks
        await until(lambda: figures.looks > looks + 30)  # three periods
        assert (stalls(), high(place)) == (1, str(104 * MIB))

    drive(place, figures, late)


def test_a_stall_found_in_the_last_moment_of_an_agent_is_known_to_the_next(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    place, figures = placed(tmp_path, monkeypatch, "report")

    async def interrupted(_: Agent) -> None:
        main, looks = asyncio.current_task(), figures.looks
        has_looked = asyncio.Event()

        def last_look(directory: str, now: float) -> StallSample | None:
            """The agent is ended here, as by its `close`, and nothing follows this look."""
            for task in asyncio.all_tasks() - {main}:
                task.cancel()
            has_looked.set()
            return figures(directory, now + 1)  # for longer than a period

        await until(lambda: figures.looks > looks + 1)
        monkeypatch.setattr(memory_stalls, "read_stall_sample", last_look)
        await has_looked.wait()
        monkeypatch.setattr(memory_stalls, "read_stall_sample", figures)
        figures.has_begun = False  # the next agent is not to find it again

    async def known(agent: Agent) -> None:
        assert [one.reason for one in agent.events()].count("MemoryHighStall") == 1

    drive(place, figures, interrupted, known)


def test_kill_ends_the_container_at_once_and_the_restart_policy_decides(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    place, figures = placed(tmp_path, monkeypatch, "kill")

    async def killed(agent: Agent) -> None:
        await until(lambda: bool(place.runtime.stopped))
        ((_, grace),) = place.runtime.stopped
        assert grace == 0
        await until(lambda: phase(agent) == "Failed")

    drive(place, figures, killed)
    assert len(place.runtime.starts) == 1


def test_report_tells_once_and_tells_of_the_end(tmp_path, monkeypatch: pytest.MonkeyPatch):
    place, figures = placed(tmp_path, monkeypatch, "report")

    async def reported(agent: Agent) -> None:
        def reasons() -> list[str]:
            return [one.reason for one in agent.events()]

        await until(lambda: "MemoryHighStall" in reasons())
        looks = figures.looks
        await until(lambda: figures.looks > looks + 30)  # three periods
        figures.wants_mib = 50
        await until(lambda: "MemoryHighStallOver" in reasons())
        assert reasons().count("MemoryHighStall") == 1
        assert (high(place), phase(agent)) == (str(96 * MIB), "Running")

    drive(place, figures, reported)


def phase(agent: Agent) -> str:
    pod = agent.pod("default/stuck")
    return pod.status.phase if pod is not None else ""
