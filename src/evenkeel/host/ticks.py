"""The ticks of the agent's loop: what looks every second does so in one wake-up, and not in one for each."""

import asyncio


async def next_tick(seconds: float) -> None:
    """Sleeps until the loop's clock shows the next multiple of `seconds`: at most so long."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds - now % seconds)
