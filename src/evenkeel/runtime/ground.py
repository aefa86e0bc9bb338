"""What every runtime of ours stands on, whoever runs its containers: the state directory with the pods' volumes and
logs, threads for what blocks, and the kill of a cgroup."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.driver import Driver
from evenkeel.host.protection import run_soon
from evenkeel.quantity import Quantity
from evenkeel.runtime import disk, volumes
from evenkeel.runtime.interface import Attempt, RuntimeEvent
from evenkeel.runtime.logs import LogLimits
from evenkeel.runtime.paths import state_paths

T = TypeVar("T")


class Ground:
    """`make_driver` makes a driver for one thread to use. What memory-backed volumes may have together is at most
    `allocatable_memory_bytes`, as a rule the node's."""

    def __init__(
        self,
        state_directory: str,
        make_driver: Callable[[], Driver],
        config: KubeletConfiguration,
        threads: int,
        allocatable_memory_bytes: int | None,
    ) -> None:
        self._paths = state_paths(state_directory)
        self._make_driver = make_driver
        self._limits = LogLimits(
            max_bytes=Quantity.parse(config.container_log_max_size).value,
            max_files=config.container_log_max_files,
        )
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._allocatable_memory_bytes = allocatable_memory_bytes or machine
        self._threads = ThreadPoolExecutor(threads, "evenkeel-runtime", initializer=run_soon)
        self._events: asyncio.Queue[RuntimeEvent] = asyncio.Queue()

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        while True:
            yield await self._events.get()

    async def empty_memory(self, uid: str) -> None:
        await self._in_thread(partial(volumes.empty_memory, uid, self._paths))

    async def remove_logs(self, uid: str) -> None:
        await self._in_thread(partial(volumes.remove_logs, uid, self._paths))

    async def remove_old_logs(self) -> None:
        await self._in_thread(partial(disk.remove_old_logs, self._paths))

    @property
    def storage_path(self) -> str:
        return self._paths.root

    def _make_directories(self) -> None:
        for directory in (self._paths.root, self._paths.pods, self._paths.logs):
            os.makedirs(directory, 0o700, exist_ok=True)

    async def _remove_attempt(self, attempt: Attempt) -> None:
        await self._in_thread(partial(volumes.remove_tree, self._paths.attempt(*attempt)))

    async def _killed(self, cgroup: str) -> None:
        await self._in_thread(partial(self._kill, cgroup))

    def _kill(self, cgroup: str) -> None:
        driver = self._make_driver()
        try:
            driver.kill(cgroup)
        finally:
            driver.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def _end_threads(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
