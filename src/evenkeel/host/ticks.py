"""Ticks of the agent's event loop: tasks that run every second share one wake-up."""

import asyncio


async def next_tick(seconds: float) -> None:
    """Sleeps until the loop's clock shows the next multiple of `seconds`, which is `seconds` away at most."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds - now % seconds)
