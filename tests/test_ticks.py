"""Loops that look every second wake up together."""

import asyncio

from evenkeel.host.ticks import next_tick


def test_a_tick_is_at_a_multiple_of_its_seconds_and_at_most_so_long_away(monkeypatch):
    async def story(now) -> list[float]:
        slept = []

        async def sleep(seconds):
            slept.append(seconds)

        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await next_tick(3.0)
        monkeypatch.undo()
        return slept

    assert asyncio.run(story(10.0)) == [2.0]
    assert asyncio.run(story(11.5)) == [0.5]
    assert asyncio.run(story(12.0)) == [3.0]
