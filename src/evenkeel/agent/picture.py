"""Everything that is shown of the node, of one moment: what readers get together, so that it fits together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.agent.counts import Counts
from evenkeel.agent.journal import JournalError
from evenkeel.agent.parts import Parts
from evenkeel.agent.pressure.node_pressure import NodePressure
from evenkeel.agent.records import Happening
from evenkeel.agent.sweep import Sweep, Sweeper
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.snapshot import PodFigures
from evenkeel.policy.node import NodeView

# And whatever the node's conditions tell.
NOTABLE = frozenset({"Evicted", "OOMKilling", "OOMKilled", "MemoryHighStall", "CPUShortage", "DriftRepaired"})

_MOST_NOTABLE = 200
_LOOK_BACK = 5000  # happenings, for those that are notable
_DISK_SECONDS = 30.0  # a walk through pods' directories is dear
_DISK_WAIT_SECONDS = 1.0


class Picture(NamedTuple):
    sweep: Sweep
    view: NodeView
    node: Node
    pods: tuple[Pod, ...]
    disk: Mapping[str, PodFigures]  # by UID, as it was at most half a minute before
    notable: tuple[Happening, ...]  # oldest first
    counts: Counts  # goes on counting
    since: float  # when the agent was started


class Pictures:
    def __init__(
        self,
        parts: Parts,
        sweeper: Sweeper,
        pressure: NodePressure,
        node: Callable[[], Node],
        pods: Callable[[], tuple[Pod, ...]],
    ) -> None:
        self._view = parts.node
        self._sweeper = sweeper
        self._pressure = pressure
        self._journal = parts.journal
        self._node = node
        self._pods = pods
        self._counts = parts.telling.counts
        self._since = parts.clock()
        self._disk: Mapping[str, PodFigures] = MappingProxyType({})
        self._disk_at = -_DISK_SECONDS
        self._walking: asyncio.Task[None] | None = None
        self._notable: deque[Happening] = deque(maxlen=_MOST_NOTABLE)
        self._last_number = 0
        self._told: tuple[Happening, ...] = ()

    async def picture(self) -> Picture:
        sweep = await self._sweeper.sweep()
        await self._measure()
        return Picture(
            sweep,
            self._view,
            self._node(),
            self._pods(),
            self._disk,
            self._latest(),
            self._counts,
            self._since,
        )

    async def close(self) -> None:
        if self._walking is not None:
            self._walking.cancel()
            await asyncio.gather(self._walking, return_exceptions=True)

    async def _measure(self) -> None:
        """Not waited for where it takes long: then the figures are those from before."""
        if self._walking is None and time.monotonic() - self._disk_at > _DISK_SECONDS:
            self._disk_at = time.monotonic()
            self._walking = asyncio.create_task(self._walk())
            await asyncio.wait([self._walking], timeout=_DISK_WAIT_SECONDS)

    async def _walk(self) -> None:
        try:
            measured = await self._pressure.measured()
            if measured is not None:
                self._disk = measured.pods
        except (OSError, EvenkeelError):
            pass  # the watch tells of it
        finally:
            self._walking = None

    def _latest(self) -> tuple[Happening, ...]:
        try:
            new = self._journal.happenings(most=_LOOK_BACK, after=self._last_number)
        except JournalError:
            return self._told
        if new:
            self._last_number = new[-1].number
            self._notable.extend(one for one in new if is_notable(one))
            self._told = tuple(self._notable)
        return self._told


def is_notable(happening: Happening) -> bool:
    return happening.reason in NOTABLE or happening.reason.startswith("NodeHas")
