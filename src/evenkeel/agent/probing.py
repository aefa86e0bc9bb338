"""The probes of every container that runs, and what their results make of its life."""

from evenkeel.agent.holdings import Holdings
from evenkeel.agent.sync import Sync
from evenkeel.agent.telling import Telling
from evenkeel.runtime.interface import Runtime


class Probing:
    def __init__(self, runtime: Runtime, holdings: Holdings, sync: Sync, telling: Telling) -> None:
        self._runtime = runtime
        self._holdings = holdings
        self._sync = sync
        self._telling = telling

    async def run(self) -> None:
        import asyncio

        await asyncio.Event().wait()
