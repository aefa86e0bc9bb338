"""The runtime that runs pods as containers of containerd or CRI-O.

While the runtime is away, containers run on and none is started. A container that has to end then is killed through its
cgroup. `container_watch` follows the containers to their end."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import Container
from evenkeel.api.data_objects import PodData
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Setting
from evenkeel.errors import EvenkeelError
from evenkeel.host.disk_usage import Usage
from evenkeel.host.oom_scores import runtime_process
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import base_runtime, volumes
from evenkeel.runtime.base_runtime import BaseRuntime
from evenkeel.runtime.cri import (
    container_calls,
    container_table,
    cri_refusals,
    cri_status,
    host_mounts,
    image_pulls,
)
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.container_calls import Forgotten, Updates
from evenkeel.runtime.cri.container_start import Starts
from evenkeel.runtime.cri.container_table import ContainerTable
from evenkeel.runtime.cri.container_watch import ContainerWatch
from evenkeel.runtime.cri.cri_connection import CallFailed
from evenkeel.runtime.cri.cri_sessions import CriSessions
from evenkeel.runtime.cri.cri_status import ContainerExits
from evenkeel.runtime.cri.image_pulls import ImagePulls
from evenkeel.runtime.cri.log_rotation import LogRotation
from evenkeel.runtime.cri.runtime_link import RuntimeLink
from evenkeel.runtime.cri.sandboxes import Sandboxes
from evenkeel.runtime.images.credentials import HostCredentials
from evenkeel.runtime.images.pull_settings import pull_settings
from evenkeel.runtime.interface import (
    Attempt,
    Directories,
    ExecResult,
    Image,
    Launch,
    Placed,
    Pull,
    Readiness,
    Record,
    RuntimeLost,
)
from evenkeel.runtime.procfs import Process, process_at
from evenkeel.runtime.security import reaches_host
from evenkeel.runtime.sessions import Session, SessionRefused, Streams
from evenkeel.runtime.start_errors import StartFailed

_THREADS = 8
_START_PATIENCE_SECONDS = 30.0  # the time that a start waits for a runtime that is away
_ASK_AGAIN_SECONDS = 0.2
_STOP_SLACK_SECONDS = 2.0
_KILLED_SECONDS = 10.0


class CriRuntime(BaseRuntime):
    """Containers of the runtime that listens at `endpoint`."""

    def __init__(
        self,
        endpoint: str,
        state_directory: str,
        make_driver: Callable[[], Driver],
        config: KubeletConfiguration,
        *,
        allocatable_memory_bytes: int | None = None,
    ) -> None:
        super().__init__(state_directory, make_driver, config, _THREADS, allocatable_memory_bytes)
        self._endpoint = endpoint
        self._is_open = False
        self._profiles = config.seccomp_profile_root
        self._pull_settings = pull_settings(config)
        self._table = ContainerTable(lambda container: self._run_task(self._watch.ended(container)))
        self._forgotten = Forgotten()

    def refusal(self, pod: Pod) -> Refusal | None:
        granted = self._granted
        if pod.spec.has_own_users and self._is_open and self._link.info is not None:
            problem = self._link.no_user_namespace(pod.spec.runtime_class_name or "")
            granted = granted._replace(no_user_namespace=problem)
        return cri_refusals.refusal(pod, granted)

    @property
    def may_trace(self) -> bool:
        return reaches_host(self._granted)

    async def open(self) -> None:
        await self._open()
        self._is_open = True

    async def _open(self) -> None:
        self._make_directories()
        self._driver = self._make_driver()
        self._link = RuntimeLink(self._endpoint, self._driver.naming, self._list, self._link_changed)
        self._connection = self._link.connection
        self._updates = Updates(self._table, self._driver.version, self._has)
        self._sandboxes = Sandboxes(self._link, self._paths, self._ranges, self._list)
        self._watch = ContainerWatch(
            self._link,
            self._paths,
            self._table,
            self._sandboxes,
            ContainerExits(self._paths, self._killed, self._oom_kills),
            self._forgotten,
            self._starting.keys,
            self._run_task,
            self._events.put_nowait,
        )
        self._images = ImagePulls(
            self._connection,
            self._paths.root,
            HostCredentials(),
            self._pull_settings,
            self._events.put_nowait,
            self._in_thread,
        )
        self._starts = Starts(
            self._connection,
            self._paths,
            self._sandboxes,
            self._images,
            self._driver.naming,
            self._has,
            self._link.available,
            self._host_paths,
            self._profiles,
        )
        self._sessions = CriSessions(self._connection, self._paths, self._directory, self._run_task)
        for container in container_table.every_container(self._paths):
            self._table.put(container)
        await self._link.connect(may_be_away=lambda: any(container.runs for container in self._table))
        self._run_task(self._sessions.clean_up())
        self._run_task(self._connection.watch())
        self._run_task(self._link.run())
        self._run_task(self._watch.listen())
        self._run_task(LogRotation(self._table, self._connection, self._limits, self._in_thread).run())

    async def close(self) -> None:
        await self._end_tasks()
        self._table.close()
        await self._connection.close()
        self._end_threads()
        self._driver.close()

    @property
    def readiness(self) -> Readiness:
        return self._link.readiness

    def placed(self, uid: str) -> Placed | None:
        infrastructure = self._sandboxes.cgroup(uid)
        return (*self._table.placed(uid), *((("", infrastructure),) if infrastructure else ()))

    def addresses(self, pod: Pod) -> tuple[str, ...] | None:
        return self._sandboxes.addresses(pod) if self._is_open else None

    async def containers(self) -> Mapping[Attempt, Record]:
        return {container.attempt: container.record for container in self._table}

    def _make_volumes(self, pod: Pod, data: PodData) -> None:
        volumes.make_pod_directories(pod, self._paths)
        host_mounts.mount_termination_logs(pod, self._paths)
        super()._make_volumes(pod, data)
        if pod.spec.has_own_users:
            self._ranges.take(pod.metadata.uid)

    # Starting

    def _record(self, attempt: Attempt) -> Record | None:
        container = self._table.get(attempt)
        return container.record if container is not None else None

    async def _start(self, launch: Launch) -> Record:
        try:
            async with asyncio.timeout(_START_PATIENCE_SECONDS):
                await self._link.available()
        except TimeoutError:
            raise StartFailed(f"the container runtime is away: {self._link.why_away}") from None
        id_ = await self._starts.start(launch)
        while True:
            try:
                container = await self._watch.inspect(id_, launch.attempt)
            except CallFailed:
                await asyncio.sleep(_ASK_AGAIN_SECONDS)  # it may answer everything else
                await self._link.available()
                continue
            break
        await self._sandboxes.located(launch.attempt.uid)
        if container is None:
            raise StartFailed("the container runtime started the container, and does not know it any more")
        container.record = container.record._replace(notes=cri_status.score_notes(container, launch))
        self._table.put(container)
        return container.record

    # Stopping

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        await self._start_under_way(attempt)
        container = self._table.get(attempt)
        if container is None or not container.runs:
            return
        ended = self._table.end_of(container)
        asking = asyncio.get_running_loop().create_task(
            container_calls.ask_to_stop(self._connection, container, grace_seconds)
        )
        try:
            await asyncio.wait([ended], timeout=grace_seconds + (_STOP_SLACK_SECONDS if grace_seconds else 0))
            if not ended.done():
                if container.cgroup:
                    await self._killed(container.cgroup)
                await asyncio.wait([ended], timeout=_KILLED_SECONDS)
        finally:
            asking.cancel()
        if not ended.done():
            raise EvenkeelError(
                f"container {attempt.container} ({container.short_id}) was killed, and is still there",
                hint="it waits for a device or a network filesystem, or the container runtime hangs",
            )

    def _has(self, file: str) -> bool:
        """Whether the cgroups of this kernel have the file."""
        return self._driver.lacking(file) is None

    # Everything else

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self._updates.want(attempt, settings)
        await self._updates.send(attempt, self._connection)

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        container = self._table.get(attempt)
        if container is None or not container.runs:
            raise StartFailed(f"container {attempt.container} does not run")
        return await container_calls.execute(self._connection, container, command, timeout_seconds)

    async def open_session(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        container = self._table.get(attempt)
        if container is None or not container.runs:
            raise SessionRefused(f"container {attempt.container} does not run")
        return await self._sessions.open(container, command, wanted)

    async def attach(self, attempt: Attempt, container: Container, wanted: Streams) -> Session:
        found = self._table.get(attempt)
        if found is None or not found.runs:
            raise SessionRefused(f"container {attempt.container} does not run")
        from evenkeel.runtime.cri.cri_attach import attached  # with WebSockets, which only this needs

        return await attached(self._connection, found.id, container, wanted)

    async def forget(self, attempt: Attempt) -> None:
        container = self._table.get(attempt)
        if container is not None and container.runs:
            return
        self._table.pop(attempt)
        if container is not None:
            self._forgotten.add(container.id)
            await self._forgotten.remove(self._connection)
        await self._in_thread(partial(host_mounts.remove_termination_log, *attempt, self._paths))
        await self._remove_attempt(attempt)

    async def remove(self, uid: str) -> None:
        for container in [container for container in self._table if container.attempt.uid == uid]:
            await self.forget(container.attempt)
        await self._sandboxes.remove(uid)
        self._host_paths.forget(uid)
        await self._removed(uid, partial(volumes.remove, uid, self._paths))
        self._ranges.release(uid)

    async def pods(self) -> frozenset[str]:
        return await self._in_thread(partial(volumes.pods, self._paths)) | self._sandboxes.uids()

    def daemon(self) -> Process | None:
        pid = runtime_process(self._endpoint)
        return None if pid is None else process_at(pid)

    # The disk

    @property
    def images_path(self) -> str:
        return self._link.images_path

    async def images_usage(self) -> Usage | None:
        info = await self._connection.ask(pb.ImageFsInfoRequest(), pb.ImageFsInfoResponse)
        used = next(iter(info.image_filesystems), None)  # kubelet uses the first one, too
        return None if used is None else Usage(used.used_bytes.value, used.inodes_used.value)

    def directories(self, pod: Pod) -> Directories:
        uid = pod.metadata.uid
        layers: list[tuple[str, str]] = []
        for one in self._table:
            if one.attempt.uid == uid:
                # The container writes to files in the attempt's directory too, such as /etc/hosts.
                places = (one.layer, self._paths.attempt(*one.attempt))
                layers += [(one.attempt.container, place) for place in places if place]
        return base_runtime.directories_of(pod, layers, self._paths)

    async def images(self) -> tuple[Image, ...]:
        info = self._link.info
        return await image_pulls.list_images(self._connection, info.sandbox_image if info else "")

    def give_up(self, attempt: Attempt) -> None:
        self._images.give_up(attempt)

    def pulls(self) -> tuple[Pull, ...]:
        return ()  # the runtime does not report the progress of a pull

    async def remove_image(self, id_: str) -> None:
        if self._starting:
            raise EvenkeelError("a container is being started, and may need it", hint="try again")
        await image_pulls.remove_image(self._connection, id_)

    async def remove_unused_images(self) -> None:
        info = self._link.info
        if info is not None and not self._starting:
            await image_pulls.remove_unused(self._connection, info.sandbox_image)

    def _link_changed(self, why: str) -> None:
        self._events.put_nowait(RuntimeLost(why, is_back=self._link.is_ready))

    async def _list(self) -> None:
        await self._watch.list_all()
        # It answers again: it gets the settings that could not be sent while it was away.
        for attempt in self._updates.wanted():
            self._run_task(self._updates.send(attempt, self._connection))

    def _directory(self, cgroup: str) -> str:
        """A directory of the cgroup, in any hierarchy."""
        return next(iter(self._driver.files(cgroup).values()), "") if cgroup else ""

    def _oom_kills(self, cgroup: str) -> int | None:
        try:
            return self._driver.statistics(cgroup).oom_kills
        except CgroupError:
            return None
