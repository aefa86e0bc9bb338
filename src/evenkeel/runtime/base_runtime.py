"""The common part of all runtimes: volumes and logs in the state directory, threads, and killing a cgroup.

The threads are for blocking work.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.host.protection import run_soon
from evenkeel.quantity import Quantity
from evenkeel.runtime import volumes
from evenkeel.runtime.interface import Attempt, Directories, RuntimeEvent
from evenkeel.runtime.log_relay import LogLimits
from evenkeel.runtime.paths import StatePaths, state_paths

_LOG = ".log"
_LOGS_KEPT = 2  # per container: the log of the last attempt, and of the one before


def directories_of(pod: Pod, layers: Iterable[tuple[str, str]], paths: StatePaths) -> Directories:
    """Returns the directories of one pod on disk. `layers` are those of its containers, from the runtime.

    Memory-backed volumes and hostPath volumes do not count as its disk.
    """
    metadata = pod.metadata
    logs = tuple(
        (
            container.name,
            paths.container_logs(metadata.namespace, metadata.name, metadata.uid, container.name),
        )
        for container in pod.spec.every_container
    )
    volumes = tuple(
        (volume.name, paths.volume(metadata.uid, volume.name))
        for volume in pod.spec.volumes
        if volume.empty_dir is not None and not volume.is_in_memory
    )
    return Directories(tuple(layers), logs, volumes)


def remove_old_logs(paths: StatePaths) -> None:
    """Removes rotated log files, and logs of attempts before the last but one."""
    for pod in _names(paths.logs):
        for container in _names(f"{paths.logs}/{pod}"):
            directory = f"{paths.logs}/{pod}/{container}"
            names = _names(directory)
            current = sorted(
                int(number)
                for name in names
                if name.endswith(_LOG) and (number := name.removesuffix(_LOG)).isdecimal()
            )
            kept = {f"{number}{_LOG}" for number in current[-_LOGS_KEPT:]}
            for name in names:
                if name not in kept:
                    _unlink(f"{directory}/{name}")


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone already, or it is not a file


T = TypeVar("T")


class BaseRuntime:
    """The common part of a runtime.

    `make_driver` makes a cgroup driver for one thread. `allocatable_memory_bytes` limits the size of each
    memory-backed volume; without it, the memory of the machine is the limit.
    """

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
        await self._in_thread(partial(remove_old_logs, self._paths))

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
