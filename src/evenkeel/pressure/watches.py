"""The watches for pressure together: over memory, disk, CPU and stalls, with the objects that they share."""

from collections.abc import Coroutine

from evenkeel.cgroup.tree import Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.cpu_pressure import CpuPressure
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.eviction_backoff import EvictionBackoff
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.memory_pressure import MemoryPressure
from evenkeel.pressure.memory_stalls import MemoryStalls


class Watches(NamedTuple):
    intents: Intents
    conditions: NodeConditions
    memory: MemoryPressure
    disk: DiskPressure
    cpu: CpuPressure
    stalls: MemoryStalls
    backoff: EvictionBackoff

    def take_up(self) -> None:
        """Continues what a former agent has begun. Call it when all containers are adopted."""
        self.stalls.take_up()
        self.cpu.take_up()

    async def open(self) -> None:
        """From now on, pods are evicted when memory, disk or process numbers run short."""
        await self.memory.open()
        self.disk.open()

    def loops(self, version: Version) -> list[Coroutine[object, object, None]]:
        """What runs in the event loop until the agent ends."""
        loops = [self.backoff.run()]
        if version == Version.V2:
            loops.append(self.stalls.run())
        if self.cpu.is_on:
            loops.append(self.cpu.run())
        return loops
