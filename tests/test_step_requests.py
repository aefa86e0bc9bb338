"""Requests for steps: several of them lead to one step, and none is lost."""

import asyncio

from evenkeel.agent.step_requests import Cleaned, StepRequests


async def is_step_wanted(steps: StepRequests) -> bool:
    waiting = asyncio.create_task(steps.wait())
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    return waiting.done()


def test_a_pod_that_a_step_asks_for_before_it_looks_at_pods_needs_no_other_step():
    async def story() -> None:
        steps = StepRequests()
        steps.want_step("first")
        await steps.wait()
        steps.take_outcomes()
        steps.take_room()
        steps.want_step("admitted")
        assert steps.take_uids() == {"first", "admitted"}
        assert not await is_step_wanted(steps)
        steps.want_step("later")
        assert await is_step_wanted(steps)

    asyncio.run(story())


def test_an_outcome_or_room_that_a_step_has_not_taken_brings_another_step():
    async def story(ask) -> None:
        steps = StepRequests()
        steps.want_step()
        await steps.wait()
        steps.take_outcomes()
        steps.take_room()
        ask(steps)
        steps.take_uids()
        assert await is_step_wanted(steps)

    asyncio.run(story(lambda steps: steps.report(Cleaned("pod"))))
    asyncio.run(story(lambda steps: steps.room_appeared()))
