"""The common part of all runtimes: starts that happen once, volumes and logs in the state directory, killing a cgroup.

Blocking work runs in threads. Work that no caller waits for runs in tasks."""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError
from evenkeel.quantity import Quantity
from evenkeel.runtime import memory_mounts, volumes
from evenkeel.runtime.env_file_reader import with_env_files
from evenkeel.runtime.env_files import file_keys
from evenkeel.runtime.host_paths import HostPaths
from evenkeel.runtime.id_ranges import AgentsOfMachine, IdRanges
from evenkeel.runtime.interface import Attempt, Directories, Launch, Record, RuntimeEvent
from evenkeel.runtime.log_relay import LogLimits
from evenkeel.runtime.memory_mounts import VolumeRefused
from evenkeel.runtime.network_files import ETC
from evenkeel.runtime.paths import StatePaths, state_paths
from evenkeel.runtime.security import Granted
from evenkeel.runtime.start_errors import FAILED_MOUNT, FAILED_SANDBOX, NotPrepared, StartFailed
from evenkeel.runtime.tree_removal import remove_tree

log = logging.getLogger(__name__)

_LOG = ".log"
_REMOVAL_THREADS = 4
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
        if volume.is_scratch
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


def _no_app_armor() -> str:
    """Returns why no container can have an AppArmor profile; empty if one can."""
    try:
        with open("/sys/module/apparmor/parameters/enabled", encoding="ascii") as file:
            is_enabled = file.read().startswith("Y")
    except OSError:
        is_enabled = False
    return "" if is_enabled else "AppArmor is not enabled in this kernel (apparmor=1 security=apparmor)"


T = TypeVar("T")


class BaseRuntime(ABC):
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
        self._host_paths = HostPaths(self._paths.root)
        self._ranges = IdRanges(self._paths, AgentsOfMachine(self._paths.root) if os.geteuid() == 0 else None)
        self._make_driver = make_driver
        self._limits = LogLimits(
            max_bytes=Quantity.parse(config.container_log_max_size).value,
            max_files=config.container_log_max_files,
        )
        self._granted = Granted(
            host_access=config.allowed_host_access,
            no_app_armor=_no_app_armor(),
        )
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._allocatable_memory_bytes = allocatable_memory_bytes or machine
        self._threads = ThreadPoolExecutor(threads, "evenkeel-runtime")
        self._removal_threads = ThreadPoolExecutor(_REMOVAL_THREADS, "evenkeel-removal")
        self._removals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by pod or claim
        self._events: asyncio.Queue[RuntimeEvent] = asyncio.Queue()
        self._starting: dict[Attempt, asyncio.Task[Record]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def may_trace(self) -> bool:
        return False

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        while True:
            yield await self._events.get()

    def take_note(self, pods: Iterable[Pod]) -> None:
        self._host_paths.take_note(pods)

    async def prepare(self, pod: Pod, data: PodData = NO_DATA) -> None:
        try:
            await self._host_paths.prepared(pod)
            await self._in_thread(partial(self._make_volumes, pod, data))
        except EvenkeelError as error:
            event = FAILED_MOUNT if isinstance(error, VolumeRefused) else FAILED_SANDBOX
            raise NotPrepared(error.message, event, hint=error.hint) from None

    def _make_volumes(self, pod: Pod, data: PodData) -> None:
        volumes.prepare(pod, self._paths, allocatable_memory_bytes=self._allocatable_memory_bytes, data=data)

    # Starts

    async def start(self, launch: Launch) -> Record:
        attempt = launch.attempt
        known = self._record(attempt)
        if known is not None:
            return known
        under_way = self._starting.get(attempt)
        if under_way is None:
            # The start has a task of its own. If the caller stops waiting, the start is recorded all the same.
            under_way = asyncio.get_running_loop().create_task(self._begin(launch))
            self._starting[attempt] = under_way
            under_way.add_done_callback(lambda _: self._start_ended(attempt))
            self._track(under_way)
        return await asyncio.shield(under_way)

    async def _begin(self, launch: Launch) -> Record:
        if any(True for _ in file_keys(launch.container)):
            launch = await self._in_thread(partial(with_env_files, launch, self._paths))
        return await self._start(launch)

    @abstractmethod
    def _record(self, attempt: Attempt) -> Record | None:
        """Returns the record of an attempt that was started; None if it was not."""

    @abstractmethod
    async def _start(self, launch: Launch) -> Record:
        """Starts an attempt that was not started before. Raises StartFailed."""

    def _start_ended(self, attempt: Attempt) -> None:
        """Called when `_start` has ended."""
        self._starting.pop(attempt, None)

    async def _start_under_way(self, attempt: Attempt) -> None:
        """Returns when the attempt is not being started any more."""
        under_way = self._starting.get(attempt)
        if under_way is not None:
            await asyncio.wait([under_way])

    # The disk

    async def empty_memory(self, uid: str) -> None:
        # Not in the threads of removals, which may take long: the node is short of this memory.
        await self._in_thread(partial(memory_mounts.empty_memory, uid, self._paths))

    async def remove_logs(self, uid: str) -> None:
        await self._removed(uid, partial(volumes.remove_logs, uid, self._paths))

    async def write_hosts(self, pod: Pod, attempts: Sequence[Attempt]) -> None:
        # Containers of the process runtime have the file in a directory of its own, unless a former agent began them.
        own = [self._paths.attempt(*attempt) for attempt in attempts]
        directories = [*own, *(f"{directory}/{ETC}" for directory in own)]
        await self._in_thread(partial(volumes.rewrite_hosts, pod, directories))

    async def remove_claim(self, namespace: str, name: str) -> None:
        await self._removed(
            f"{namespace}/{name}", partial(volumes.remove_claim, namespace, name, self._paths)
        )

    async def remove_old_logs(self) -> None:
        await self._in_thread(partial(remove_old_logs, self._paths))

    @property
    def storage_path(self) -> str:
        return self._paths.root

    def _make_directories(self) -> None:
        for directory in (self._paths.root, self._paths.pods, self._paths.logs):
            os.makedirs(directory, 0o700, exist_ok=True)

    async def _remove_attempt(self, attempt: Attempt) -> None:
        memory_mounts.remove_private(self._paths.private(*attempt))
        await self._removed(attempt.uid, partial(remove_tree, self._paths.attempt(*attempt)))

    async def _killed(self, cgroup: str) -> None:
        await self._in_thread(partial(self._kill, cgroup))

    def _kill(self, cgroup: str) -> None:
        driver = self._make_driver()
        try:
            driver.kill(cgroup)
        finally:
            driver.close()

    # Threads and tasks

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _removed(self, whose: str, function: Callable[[], T]) -> T:
        """Removes files that a pod made. There may be millions of them. So removals have threads of their own, one at a
        time for each pod, and never hold up the threads in which pods are started and killed."""
        lock = self._removals.get(whose) or asyncio.Lock()
        self._removals[whose] = lock
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._removal_threads, function)

    def _end_threads(self) -> None:
        for threads in (self._threads, self._removal_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _run_task(self, work: Coroutine[Any, Any, Any]) -> None:
        self._track(asyncio.get_running_loop().create_task(work))

    def _track(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StartFailed):
            log.error("%s: %s", type(error).__name__, error)

    async def _end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
