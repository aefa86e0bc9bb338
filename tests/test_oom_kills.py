"""A container ends by SIGKILL. Several sources say whether that was an OOM kill, in any order (A17, A20)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.agent.node.oom_kills import NOT_KNOWN, WAIT_SECONDS
from evenkeel.agent.step_requests import OomKilled
from evenkeel.host.node_figures import machine_oom_kills
from evenkeel.runtime.interface import Attempt, Launch
from evenkeel.runtime.start_errors import StartFailed
from tests.models.agents import Place, pods_of, until

pytestmark = pytest.mark.req("A17", "A20")

BATCH = """
apiVersion: v1
kind: Pod
metadata: {name: batch, uid: u-batch}
spec:
  containers: [{name: main, image: host, command: [x]}]
  restartPolicy: Never
"""
MAIN = Attempt("u-batch", "main", 1)
CGROUP = "/evenkeel/kubepods/besteffort/podu-batch/main"
KILLED = (137, 9)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


def drive(place: Place, story: Callable[[Agent], Awaitable[None]]) -> None:
    async def main() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(BATCH))
            await until(lambda: phase(agent) == "Running")
            await story(agent)

    asyncio.run(main())


def phase(agent: Agent) -> str:
    shown = agent.pod("default/batch")
    return shown.status.phase if shown else ""


def outcome_of(agent: Agent) -> tuple[str, str]:
    """Why the pod is over, and how its container ended."""
    status = agent.pod("default/batch").status
    return status.reason, status.container_statuses[0].state.terminated.reason


def logs_kill(agent: Agent) -> None:
    """Reports an OOM kill, as `KernelEvents` does when it has found the container of the process."""
    agent.steps.report(OomKilled(MAIN))


def remove_cgroup(place: Place) -> None:
    """Removes the cgroup, as a container runtime does after the end. Some process was OOM-killed on the machine."""
    place.kernel.gone.add(CGROUP)
    place.machine_oom_kills += 1


async def unexplained(agent: Agent) -> None:
    await agent.pod_loop.stepped()  # it may have been asked for before the end
    agent.steps.want_step()
    await agent.pod_loop.stepped()
    assert phase(agent) == "Running"


def test_the_runtime_tells_the_end_first_and_the_kernels_log_the_oom_kill(place):
    async def story(agent: Agent) -> None:
        remove_cgroup(place)
        place.runtime.end(MAIN, *KILLED)
        await unexplained(agent)
        logs_kill(agent)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("Evicted", "OOMKilled")

    drive(place, story)


def test_the_kernels_log_tells_the_oom_kill_first_and_the_runtime_the_end(place):
    async def story(agent: Agent) -> None:
        remove_cgroup(place)
        logs_kill(agent)
        place.runtime.end(MAIN, *KILLED)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("Evicted", "OOMKilled")

    drive(place, story)


def test_the_runtime_tells_the_end_first_and_the_oom_kill_when_it_has_learnt_of_it(place):
    async def story(agent: Agent) -> None:
        remove_cgroup(place)
        place.runtime.end(MAIN, *KILLED)
        await unexplained(agent)
        place.runtime.end(MAIN, *KILLED, is_oom_killed=True)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("Evicted", "OOMKilled")

    drive(place, story)


@pytest.mark.parametrize("counted, reasons", [(1, ("Evicted", "OOMKilled")), (0, ("", "Error"))])
def test_a_count_that_was_read_after_the_end_decides_at_once(place, counted, reasons):
    async def story(agent: Agent) -> None:
        remove_cgroup(place)
        place.runtime.end(MAIN, *KILLED, oom_kills=counted)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == reasons

    drive(place, story)


def test_the_count_of_its_own_cgroup_counts_and_not_that_of_a_pod_in_which_another_was_killed(place):
    async def story(agent: Agent) -> None:
        place.kernel.oom_kills[CGROUP] = 1
        place.runtime.end(MAIN, 1, oom_kills=0)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("", "Error")

    drive(place, story)


@pytest.mark.parametrize("kills, reason", [(1, "Evicted"), (0, "")])
def test_a_process_that_the_kernel_kills_while_it_is_being_set_up_is_killed_for_memory_too(
    place, kills, reason
):
    def killed(_: Launch) -> None:
        place.kernel.oom_kills[CGROUP] = kills
        raise StartFailed("the container's process was killed while it was being set up")

    async def story() -> None:
        async with place.agent() as agent:
            place.runtime.on_start = killed
            await agent.apply(pods_of(BATCH))
            await until(lambda: phase(agent) == "Failed")
            assert outcome_of(agent) == (reason, "StartError")
            events = [one.reason for one in agent.events("default/batch")]
            assert events.count("Evicted") == kills

    asyncio.run(story())


def test_without_a_report_in_time_the_cause_is_unknown(place):
    async def story(agent: Agent) -> None:
        remove_cgroup(place)
        place.runtime.end(MAIN, *KILLED)
        await unexplained(agent)
        place.now += WAIT_SECONDS
        agent.steps.want_step()
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("", "ContainerStatusUnknown")
        assert agent.pod("default/batch").status.container_statuses[0].state.terminated.message == NOT_KNOWN

    drive(place, story)


def test_where_the_machine_has_killed_nothing_for_want_of_memory_it_was_somebody_else(place):
    async def story(agent: Agent) -> None:
        place.kernel.gone.add(CGROUP)
        place.runtime.end(MAIN, *KILLED)
        await until(lambda: phase(agent) == "Failed")
        assert outcome_of(agent) == ("", "Error")

    drive(place, story)


def test_a_kill_that_was_asked_for_needs_no_explanation(place):
    async def stop(attempt: Attempt, grace_seconds: float) -> None:
        remove_cgroup(place)
        place.runtime.end(attempt, *KILLED)

    place.runtime.stop = stop

    async def story(agent: Agent) -> None:
        await agent.delete("default/batch")
        await until(lambda: agent.pod("default/batch") is None)

    drive(place, story)


def test_an_agent_that_is_killed_while_it_waits_leaves_the_end_to_the_next_one(place):
    async def first(agent: Agent) -> None:
        remove_cgroup(place)
        place.runtime.end(MAIN, *KILLED)
        await unexplained(agent)

    drive(place, first)
    assert MAIN in place.runtime.records, "the runtime was told to forget an end that is not written down"

    async def second() -> None:
        async with place.agent() as agent:
            await unexplained(agent)
            logs_kill(agent)
            await until(lambda: phase(agent) == "Failed")
            assert outcome_of(agent) == ("Evicted", "OOMKilled")

    asyncio.run(second())


@pytest.mark.parametrize("text, count", [("pgfault 5\noom_kill 3\n", 3), ("pgfault 5\n", None)])
def test_the_machines_count_of_oom_kills_is_read_where_the_kernel_has_one(tmp_path, text, count):
    (tmp_path / "vmstat").write_text(text)
    assert machine_oom_kills(str(tmp_path)) == count
    assert machine_oom_kills(str(tmp_path / "none")) is None
