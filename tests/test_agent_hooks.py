"""Lifecycle hooks on a model machine: when they run, what counts within the grace period, and what a failure does."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.runtime.interface import Attempt, ExecResult
from tests.models.agents import Place, TableRuntime, pods_of, until

FIRST = Attempt("u-web", "main", 1)


class HookRuntime(TableRuntime):
    """Commands end as a test says, and each is noted with whether its container was running and had been stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[Attempt, tuple[str, ...], float, bool]] = []
        self.exit_code: int | None = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        self.commands.append((attempt, command, timeout_seconds, bool(self.stopped)))
        await self.may_end.wait()
        return ExecResult(self.exit_code, "said why")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(str(tmp_path))
    place.runtime = HookRuntime()
    place.runtime.clock = lambda: place.now
    return place


def drive(place: Place, story: Callable[[Agent], Awaitable[None]]) -> None:
    async def main() -> None:
        runtime = place.runtime
        assert isinstance(runtime, HookRuntime)
        runtime.may_end = asyncio.Event()
        runtime.may_end.set()
        async with place.agent() as agent:
            await story(agent)

    asyncio.run(main())


def web(**lifecycle: object) -> str:
    container = {"name": "main", "image": "host", "command": ["x"], "lifecycle": lifecycle}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 7}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u-web"}, "spec": spec}
    )


async def running(agent: Agent, manifest: str) -> None:
    await agent.apply(pods_of(manifest))
    await until(lambda: (pod := agent.pod("default/web")) is not None and pod.status.phase == "Running")


def reasons(agent: Agent) -> list[str]:
    return [event.reason for event in agent.events("default/web")]


def test_a_pre_stop_hook_runs_before_the_stop_and_its_time_counts(place):
    async def story(agent: Agent) -> None:
        await running(agent, web(preStop={"exec": {"command": ["say", "bye"]}}))
        await agent.delete("default/web")
        await until(lambda: agent.pod("default/web") is None)
        assert "FailedPreStopHook" not in reasons(agent)

    drive(place, story)
    ((attempt, command, timeout, was_stopped),) = place.runtime.commands
    assert (attempt, command, timeout, was_stopped) == (FIRST, ("say", "bye"), 7.0, False)
    ((stopped, grace),) = place.runtime.stopped
    assert stopped == FIRST
    assert 2.0 <= grace <= 7.0


def test_a_failed_pre_stop_hook_is_recorded_and_the_container_is_stopped(place):
    async def story(agent: Agent) -> None:
        place.runtime.exit_code = 3
        await running(agent, web(preStop={"exec": {"command": ["x"]}}))
        await agent.delete("default/web")
        await until(lambda: agent.pod("default/web") is None)
        (failed,) = [event for event in agent.events("default/web") if event.reason == "FailedPreStopHook"]
        assert failed.message == "preStop hook of container main: the command ended with 3: said why"

    drive(place, story)
    assert [attempt for attempt, _ in place.runtime.stopped] == [FIRST]


def test_a_pre_stop_hook_that_does_not_end_is_given_up_with_the_grace_period(place):
    async def story(agent: Agent) -> None:
        await running(agent, web(preStop={"exec": {"command": ["x"]}}))
        place.runtime.may_end.clear()
        await agent.delete("default/web", 0.05)
        await until(lambda: agent.pod("default/web") is None)
        assert "FailedPreStopHook" in reasons(agent)

    drive(place, story)
    assert place.runtime.stopped == [(FIRST, 2.0)]


def test_without_a_grace_period_no_hook_runs(place):
    async def story(agent: Agent) -> None:
        await running(agent, web(preStop={"exec": {"command": ["x"]}}))
        await agent.delete("default/web", 0)
        await until(lambda: agent.pod("default/web") is None)

    drive(place, story)
    assert not place.runtime.commands


def test_a_container_that_ends_meanwhile_ends_its_hook(place):
    async def story(agent: Agent) -> None:
        await running(agent, web(preStop={"sleep": {"seconds": 5}}))
        await agent.delete("default/web")
        await until(lambda: "Killing" in reasons(agent))
        place.runtime.end(FIRST)
        await until(lambda: agent.pod("default/web") is None)
        assert "FailedPreStopHook" not in reasons(agent)

    drive(place, story)


def test_a_post_start_hook_runs_in_the_started_container(place):
    async def story(agent: Agent) -> None:
        await running(agent, web(postStart={"exec": {"command": ["hello"]}}))
        await until(lambda: bool(place.runtime.commands))

    drive(place, story)
    assert [(attempt, command) for attempt, command, _, _ in place.runtime.commands] == [(FIRST, ("hello",))]
    assert not place.runtime.stopped


def test_a_post_start_hook_holds_back_the_next_container_and_the_readiness(place):
    def status(agent: Agent, name: str):
        pod = agent.pod("default/web")
        assert pod is not None
        return next(one for one in pod.status.container_statuses if one.name == name)

    async def story(agent: Agent) -> None:
        place.runtime.may_end.clear()
        manifest = json.loads(web(postStart={"exec": {"command": ["hello"]}}))
        second = {"name": "second", "image": "host", "command": ["y"]}
        manifest["spec"]["containers"].append(second)
        await agent.apply(pods_of(json.dumps(manifest)))
        await until(lambda: bool(place.runtime.commands))
        agent.steps.want_step("u-web")
        await agent.pod_loop.stepped()
        main = status(agent, "main")
        assert main.state.waiting.reason == "ContainerCreating"
        assert not main.ready
        assert not main.started
        assert agent.pod("default/web").status.phase == "Pending"
        assert place.runtime.starts == [FIRST]
        place.runtime.may_end.set()
        await until(lambda: agent.pod("default/web").status.phase == "Running")
        assert status(agent, "main").ready
        assert status(agent, "second").ready

    drive(place, story)


def test_a_failed_post_start_hook_is_a_stop_with_an_event_that_says_why(place):
    async def story(agent: Agent) -> None:
        place.runtime.exit_code = 3
        await agent.apply(pods_of(web(postStart={"exec": {"command": ["x"]}})))
        await until(lambda: bool(place.runtime.stopped))
        (killing,) = [event for event in agent.events("default/web") if event.reason == "Killing"]
        assert killing.message.startswith("stopping container main: postStart hook failed: ")

    drive(place, story)


def test_a_hook_that_a_killed_agent_left_is_not_run_again_and_holds_back_no_container(place):
    async def first(agent: Agent) -> None:
        place.runtime.may_end.clear()
        await agent.apply(pods_of(web(postStart={"exec": {"command": ["hello"]}})))
        await until(lambda: bool(place.runtime.commands))

    async def second(agent: Agent) -> None:
        await until(lambda: agent.pod("default/web").status.phase == "Running")
        assert agent.pod("default/web").status.container_statuses[0].ready

    drive(place, first)
    drive(place, second)
    assert len(place.runtime.commands) == 1


def test_a_failed_post_start_hook_stops_the_container_and_the_restart_policy_decides(place):
    async def story(agent: Agent) -> None:
        place.runtime.exit_code = 1
        await agent.apply(pods_of(web(postStart={"exec": {"command": ["hello"]}})))
        await until(lambda: len(place.runtime.starts) >= 2)
        assert "FailedPostStartHook" in reasons(agent)

    drive(place, story)
    assert place.runtime.stopped[0] == (FIRST, 7.0)
