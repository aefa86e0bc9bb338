"""The runtime that runs pods as containers of containerd or CRI-O: the agent's side of it.

What the runtime has is known from listing it, and from the kernel: the end of a container's first process is heard of
through a descriptor of it, whatever the runtime is doing. While the runtime is away containers run on, nothing is
started, and what has to end ends by its cgroup.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Setting
from evenkeel.errors import EvenkeelError
from evenkeel.host.disk_usage import Usage
from evenkeel.host.oom_scores import runtime_process
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import base_runtime, volumes
from evenkeel.runtime.base_runtime import BaseRuntime
from evenkeel.runtime.cri import configs, container_table, cri_images, cri_status
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import STATE, attempt_of
from evenkeel.runtime.cri.container_calls import Endings, Updates, is_removed
from evenkeel.runtime.cri.container_start import Starts
from evenkeel.runtime.cri.container_table import ContainerTable, CriContainer
from evenkeel.runtime.cri.cri_connection import CallFailed, RuntimeAway
from evenkeel.runtime.cri.runtime_link import RuntimeLink
from evenkeel.runtime.cri.sandboxes import Sandboxes
from evenkeel.runtime.interface import (
    Attempt,
    Directories,
    ExecResult,
    Exit,
    Exited,
    Launch,
    Placed,
    Readiness,
    Record,
    RuntimeLost,
    StartFailed,
)
from evenkeel.runtime.paths import UnsafeName
from evenkeel.runtime.procfs import Process, process_at

log = logging.getLogger(__name__)

_THREADS = 8
_START_PATIENCE_SECONDS = 30.0  # with a runtime that is away, before a start is given up
_RETRY_SECONDS = 0.2
_STOP_SLACK_SECONDS = 2.0
_KILLED_SECONDS = 10.0
_EXECUTION_SLACK_SECONDS = 10.0
_OUTPUT_BYTES = 4096
_ROTATION_SECONDS = 10.0
_SECOND_WORD_SECONDS = (0.05, 0.2, 0.75)  # after the end; together less than who decides about it waits


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
        self._table = ContainerTable(lambda kept: self._keep(self._ended(kept)))
        self._starting: dict[Attempt, asyncio.Task[Record]] = {}
        self._endings = Endings(self._paths, self._killed, self._oom_kills)
        self._ending: set[Attempt] = set()
        self._removing: set[str] = set()  # pods whose sandboxes are being removed
        self._being_removed: set[str] = set()
        self._to_remove: set[str] = set()  # containers that are forgotten, and not gone yet
        self._tasks: set[asyncio.Task[Any]] = set()

    def refusal(self, pod: Pod) -> Refusal | None:
        return configs.refusal(pod)

    async def open(self) -> None:
        self._make_directories()
        self._driver = self._make_driver()
        self._presence = RuntimeLink(self._endpoint, self._driver.naming, self._look, self._changed)
        self._connection = self._presence.connection
        self._updates = Updates(self._table, self._driver.version, self._has)
        self._sandboxes = Sandboxes(self._connection, self._paths, self._look)
        self._starts = Starts(
            self._connection,
            self._paths,
            self._sandboxes,
            self._driver.naming,
            self._has,
            self._presence.available,
        )
        for kept in container_table.every_container(self._paths):
            self._table.put(kept)
        await self._presence.first_hello(may_be_away=lambda: any(kept.runs for kept in self._table))
        self._keep(self._connection.watch())
        self._keep(self._presence.run())
        self._keep(self._listen())
        self._keep(self._rotate_logs())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._table.close()
        await self._connection.close()
        self._end_threads()
        self._driver.close()

    @property
    def readiness(self) -> Readiness:
        return self._presence.readiness

    def placed(self, uid: str) -> Placed | None:
        infrastructure = self._sandboxes.cgroup(uid)
        return (*self._table.placed(uid), *((("", infrastructure),) if infrastructure else ()))

    async def containers(self) -> Mapping[Attempt, Record]:
        return {kept.attempt: kept.record for kept in self._table}

    async def prepare(self, pod: Pod) -> None:
        allocatable = self._allocatable_memory_bytes

        def make() -> None:
            volumes.make_pod_directories(pod, self._paths)
            volumes.prepare(pod, self._paths, allocatable_memory_bytes=allocatable)

        try:
            await self._in_thread(make)
        except EvenkeelError as error:
            raise StartFailed(error.message, hint=error.hint) from None

    # Starting

    async def start(self, launch: Launch) -> Record:
        attempt = launch.attempt
        kept = self._table.get(attempt)
        if kept is not None:
            return kept.record
        under_way = self._starting.get(attempt)
        if under_way is None:
            # A task of its own: whoever asked may stop waiting, and the start is known all the same.
            under_way = asyncio.get_running_loop().create_task(self._start(launch))
            self._starting[attempt] = under_way
            under_way.add_done_callback(lambda _: self._starting.pop(attempt, None))
            self._hold(under_way)
        return await asyncio.shield(under_way)

    async def _start(self, launch: Launch) -> Record:
        try:
            async with asyncio.timeout(_START_PATIENCE_SECONDS):
                await self._presence.available()
        except TimeoutError:
            raise StartFailed(f"the container runtime is away: {self._presence.why_away}") from None
        id_ = await self._starts.begin(launch)
        while True:
            try:
                kept = await self._seen(id_, launch.attempt)
            except RuntimeAway:
                await self._presence.available()
                continue
            break
        await self._sandboxes.learnt(launch.attempt.uid)
        if kept is None:
            raise StartFailed("the container runtime started the container, and does not know it any more")
        kept.record = kept.record._replace(notes=cri_status.score_notes(kept, launch))
        self._table.put(kept)
        return kept.record

    # Stopping

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        under_way = self._starting.get(attempt)
        if under_way is not None:
            await asyncio.wait([under_way])
        kept = self._table.get(attempt)
        if kept is None or not kept.runs:
            return
        ended = self._table.end_of(kept)
        asking = asyncio.get_running_loop().create_task(self._ask_to_stop(kept, grace_seconds))
        try:
            await asyncio.wait([ended], timeout=grace_seconds + (_STOP_SLACK_SECONDS if grace_seconds else 0))
            if not ended.done():
                if kept.cgroup:
                    await self._killed(kept.cgroup)
                await asyncio.wait([ended], timeout=_KILLED_SECONDS)
        finally:
            asking.cancel()
        if not ended.done():
            raise EvenkeelError(
                f"container {attempt.container} ({kept.short_id}) was killed, and is still there",
                hint="it waits for a device or a network filesystem, or the container runtime hangs",
            )

    async def _ask_to_stop(self, kept: CriContainer, grace_seconds: float) -> None:
        """Through the runtime, which knows the signal that the image wants; where it does not answer, by ourselves."""
        whole = -int(-grace_seconds // 1)
        request = pb.StopContainerRequest(container_id=kept.id, timeout=whole)
        try:
            await self._connection.ask(request, pb.StopContainerResponse, grace_seconds + _KILLED_SECONDS)
        except CallFailed:
            if kept.pidfd >= 0:
                with suppress(OSError):
                    signal.pidfd_send_signal(kept.pidfd, signal.SIGTERM)

    def _has(self, file: str) -> bool:
        """Whether this kernel has such a file of cgroups."""
        return self._driver.lacking(file) is None

    # Everything else

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self._updates.want(attempt, settings)
        await self._updates.tell(attempt, self._connection)

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        kept = self._table.get(attempt)
        if kept is None or not kept.runs:
            raise StartFailed(f"container {attempt.container} does not run")
        request = pb.ExecSyncRequest(
            container_id=kept.id, cmd=command, timeout=max(1, -int(-timeout_seconds // 1))
        )
        began_at = time.monotonic()
        try:
            answer = await self._connection.ask(
                request, pb.ExecSyncResponse, timeout_seconds + _EXECUTION_SLACK_SECONDS
            )
        except CallFailed as error:
            took = time.monotonic() - began_at
            if timeout_seconds <= took < timeout_seconds + _EXECUTION_SLACK_SECONDS and (
                error.code == "DEADLINE_EXCEEDED" or "timeout" in error.message
            ):
                return ExecResult(None, "")
            raise StartFailed(error.message) from None
        output = (answer.stdout + answer.stderr)[:_OUTPUT_BYTES].decode(errors="replace")
        return ExecResult(answer.exit_code, output)

    async def forget(self, attempt: Attempt) -> None:
        kept = self._table.get(attempt)
        if kept is not None and kept.runs:
            return
        self._table.pop(attempt)
        if kept is not None:
            self._to_remove.add(kept.id)
            await self._remove_forgotten()
        await self._remove_attempt(attempt)

    async def _remove_forgotten(self) -> None:
        for id_ in tuple(self._to_remove):
            if id_ in self._being_removed:
                continue
            self._being_removed.add(id_)
            try:
                if await is_removed(self._connection, id_):  # else the next look tries again
                    self._to_remove.discard(id_)
            except RuntimeAway:
                return
            finally:
                self._being_removed.discard(id_)

    async def remove(self, uid: str) -> None:
        for kept in [kept for kept in self._table if kept.attempt.uid == uid]:
            await self.forget(kept.attempt)
        await self._remove_sandboxes(uid, self._sandboxes.remove(uid))
        await self._in_thread(partial(volumes.remove, uid, self._paths))

    async def pods(self) -> frozenset[str]:
        return await self._in_thread(partial(volumes.pods, self._paths)) | self._sandboxes.uids()

    def daemon(self) -> Process | None:
        pid = runtime_process(self._endpoint)
        return None if pid is None else process_at(pid)

    # The disk

    @property
    def images_path(self) -> str:
        return self._presence.images_path

    async def images_usage(self) -> Usage | None:
        info = await self._connection.ask(pb.ImageFsInfoRequest(), pb.ImageFsInfoResponse)
        used = next(iter(info.image_filesystems), None)  # kubelet takes the first, too
        return None if used is None else Usage(used.used_bytes.value, used.inodes_used.value)

    def directories(self, pod: Pod) -> Directories:
        uid = pod.metadata.uid
        layers: list[tuple[str, str]] = []
        for one in self._table:
            if one.attempt.uid == uid:
                # The container writes to files in the attempt's directory too: its termination log, /etc/hosts.
                places = (one.layer, self._paths.attempt(*one.attempt))
                layers += [(one.attempt.container, place) for place in places if place]
        return base_runtime.directories_of(pod, layers, self._paths)

    async def remove_unused_images(self) -> None:
        said = self._presence.said
        if said is not None and not self._starting:
            await cri_images.remove_unused(self._connection, said.sandbox_image)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(_ROTATION_SECONDS)
            for kept in self._table:
                if kept.runs and kept.log:
                    await self._rotate(kept)

    async def _rotate(self, kept: CriContainer) -> None:
        rotated = await self._in_thread(partial(cri_status.rotate, kept.log, self._limits))
        if rotated is None:
            return
        request = pb.ReopenContainerLogRequest(container_id=kept.id)
        try:
            await self._connection.ask(request, pb.ReopenContainerLogResponse)
        except CallFailed:
            # It writes on to the file that it has: that is put back, unless there is a new one after all.
            with suppress(OSError):
                if rotated and not os.path.lexists(kept.log):
                    os.rename(rotated, kept.log)

    # What the runtime has

    def _changed(self, why: str) -> None:
        self._events.put_nowait(RuntimeLost(why, is_back=self._presence.is_ready))
        if self._presence.is_ready:
            for attempt in self._updates.wanted():
                self._keep(self._updates.tell(attempt, self._connection))

    async def _look(self) -> None:
        """One listing. Raises RuntimeAway and CallFailed."""
        ours = {STATE: self._paths.root}
        before = {kept.attempt for kept in self._table if kept.runs}
        listed = await self._connection.ask(
            pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=ours)),
            pb.ListContainersResponse,
        )
        boxes = await self._connection.ask(
            pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=ours)),
            pb.ListPodSandboxResponse,
        )
        await self._sandboxes.note(boxes.items)
        await self._remove_forgotten()
        self._remove_left(frozenset(one.pod_sandbox_id for one in listed.containers))
        for one in listed.containers:
            attempt = attempt_of(one.labels)
            if attempt is None or attempt in self._starting:
                continue
            before.discard(attempt)
            await self._note(attempt, one)
        for attempt in before:
            kept = self._table.get(attempt)
            if kept is not None and kept.runs:
                self._keep(self._ended(kept))

    def _remove_left(self, inhabited: frozenset[str]) -> None:
        """Sandboxes of pods that are gone, and those that were never made whole: somebody had asked for them who was
        killed before the answer."""
        for uid in self._sandboxes.uids() - {attempt.uid for attempt in self._starting} - self._removing:
            with suppress(UnsafeName):  # none of ours
                if not os.path.isdir(self._paths.pod(uid)):
                    self._keep(self._remove_sandboxes(uid, self._sandboxes.remove(uid)))
                elif ids := self._sandboxes.unready(uid) - inhabited:
                    self._keep(self._remove_sandboxes(uid, self._sandboxes.discard(uid, ids)))

    async def _remove_sandboxes(self, uid: str, removal: Awaitable[None]) -> None:
        self._removing.add(uid)
        try:
            await removal
        finally:
            self._removing.discard(uid)

    async def _seen(self, id_: str, attempt: Attempt) -> CriContainer | None:
        assert self._presence.said is not None
        return await cri_status.seen(self._connection, id_, attempt, self._paths, self._presence.said.name)

    async def _note(self, attempt: Attempt, one: pb.Container) -> None:
        kept = self._table.get(attempt)
        if one.state == pb.ContainerState.CONTAINER_CREATED or one.id in self._to_remove:
            return  # who starts it again finds it
        if kept is None:
            seen = await self._seen(one.id, attempt)
            if seen is not None and seen.has_begun and self._table.get(attempt) is None:
                self._table.put(seen)
        elif kept.runs and one.state != pb.ContainerState.CONTAINER_RUNNING:
            self._keep(self._ended(kept))

    async def _listen(self) -> None:
        """Where the runtime tells of ends itself, its word comes as soon as the kernel's."""
        while True:
            await self._presence.available()
            try:
                async for id_ in self._connection.container_events():
                    kept = self._table.by_id(id_)
                    if kept is not None and kept.runs and kept.pidfd < 0:
                        self._keep(self._ended(kept))
            except CallFailed as error:
                if error.code == "UNIMPLEMENTED":
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    # Ends

    async def _ended(self, kept: CriContainer) -> None:
        """Its first process has ended, or the runtime says so, or has lost it: how it ended."""
        if kept.attempt in self._ending or not kept.runs:
            return
        self._ending.add(kept.attempt)
        try:
            exit_ = await self._endings.exit_of(kept, self._connection)
        finally:
            self._ending.discard(kept.attempt)
        if exit_ is not None and self._table.end(kept, exit_):
            self._events.put_nowait(Exited(kept.attempt, exit_))
            if exit_.signal == signal.SIGKILL and exit_.oom_kills is None and not exit_.is_oom_killed:
                self._keep(self._ask_for_oom_kill(kept, exit_))

    async def _ask_for_oom_kill(self, kept: CriContainer, exit_: Exit) -> None:
        """The end is told again if the runtime says later that it was an OOM kill."""
        for wait in _SECOND_WORD_SECONDS:
            await asyncio.sleep(wait)  # it tells of nothing that it learns after the end
            if await self._endings.is_oom_killed_after_all(kept, self._connection):
                exit_ = exit_._replace(is_oom_killed=True)
                kept.record = kept.record._replace(exit=exit_)
                self._events.put_nowait(Exited(kept.attempt, exit_))
                return

    def _oom_kills(self, cgroup: str) -> int | None:
        try:
            return self._driver.statistics(cgroup).oom_kills
        except CgroupError:
            return None

    # Tasks

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._hold(asyncio.get_running_loop().create_task(work))

    def _hold(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, StartFailed)
        ):
            log.error("%s: %s", type(error).__name__, error)
