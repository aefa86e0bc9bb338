"""The agent's side of the process runtime, which runs pods as processes of this machine.

The agent hands each request to the supervisor. A table here holds every attempt that runs, or that has ended and was
not forgotten. The table is read again from the supervisor and from disk whenever a new supervisor starts.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.drivers.processes import replace_placeholder
from evenkeel.cgroup.tree import Naming, Setting
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.disk_usage import Usage
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import base_runtime, syscalls, volumes
from evenkeel.runtime.base_runtime import BaseRuntime
from evenkeel.runtime.interface import (
    Attempt,
    Directories,
    ExecResult,
    Exited,
    Image,
    Launch,
    Placed,
    Pull,
    Readiness,
    Record,
    RuntimeLost,
)
from evenkeel.runtime.paths import every_attempt
from evenkeel.runtime.process import process_images, process_refusals, supervisor_link, supervisor_protocol
from evenkeel.runtime.process.attempt_table import AttemptEnds, AttemptTable, listed, listed_on_disk
from evenkeel.runtime.process.container_images import ContainerImages
from evenkeel.runtime.process.plan_writer import PlanWriter, own_addresses
from evenkeel.runtime.process.pod_networks import PodNetworks
from evenkeel.runtime.process.process_refusals import has_own_network
from evenkeel.runtime.process.process_sessions import ProcessSessions
from evenkeel.runtime.process.supervisor_connection import (
    SupervisorConnection,
    SupervisorLost,
    SupervisorRefused,
)
from evenkeel.runtime.process.supervisor_link import SupervisorLink
from evenkeel.runtime.process.supervisor_protocol import ExitFile, Message, ProcessFile
from evenkeel.runtime.process.user_namespaces import UserNamespaces
from evenkeel.runtime.procfs import Process, process_at
from evenkeel.runtime.sessions import Session, Streams
from evenkeel.runtime.start_errors import StartFailed

_THREADS = 16
_FORGET_SECONDS = 5.0


class ProcessRuntime(BaseRuntime):
    """Containers as processes that the supervisor started."""

    def __init__(
        self,
        state_directory: str,
        make_driver: Callable[[], Driver],
        config: KubeletConfiguration,
        *,
        allocatable_memory_bytes: int | None = None,
    ) -> None:
        super().__init__(state_directory, make_driver, config, _THREADS, allocatable_memory_bytes)
        self._has_orphans = False  # children of a supervisor that has ended may be our children
        self._networks = PodNetworks(self._paths, config.pod_cidr)
        self._users = UserNamespaces(self._paths, self._ranges)
        self._powers = process_refusals.Powers(
            os.geteuid(), os.getegid(), no_network=self._networks.refusal(), granted=self._granted
        )
        self._images = ContainerImages(
            self._paths, config, self._events.put_nowait, self._in_thread, self._starting.keys
        )
        self._plans = PlanWriter(
            self._paths,
            self._images,
            self._networks,
            self._users,
            self._host_paths,
            self._in_thread,
            limits=self._limits,
            profiles=config.seccomp_profile_root,
        )
        self._driver: Driver | None = None
        self._link = SupervisorLink(self._paths.root, self._heard, self._take_up, self._lost, self._tell_loss)
        self._daemon: Process | None = None  # the last supervisor; it may have ended
        self._known = AttemptTable()
        self._ends = AttemptEnds(
            self._paths, self._known, self._starting, self._killed, self._events.put_nowait, self._run_task
        )
        self._sessions = ProcessSessions(self._link.current, self._known)
        self._early: dict[Attempt, ExitFile] = {}  # exits that arrived before the start was recorded

    def refusal(self, pod: Pod) -> Refusal | None:
        return process_refusals.refusal(pod, self._powers)

    async def open(self) -> None:
        self._make_directories()
        syscalls.set_child_subreaper()
        self._driver = self._make_driver()
        await self._in_thread(self._networks.take_up)
        await self._images.open()
        await self._link.open()

    async def close(self) -> None:
        await self._images.close()
        await self._link.close()
        await self._end_tasks()
        self._end_threads()
        self._plans.close()
        if self._driver is not None:
            self._driver.close()

    @property
    def readiness(self) -> Readiness:
        problem = self._link.problem
        return Readiness(not problem, problem or "pods are processes of this machine")

    def placed(self, uid: str) -> Placed | None:  # noqa: ARG002
        return None

    async def containers(self) -> Mapping[Attempt, Record]:
        await self._link.current()
        return dict(self._known.records)

    def addresses(self, pod: Pod) -> tuple[str, ...] | None:
        return own_addresses(pod, self._networks)

    async def prepare(self, pod: Pod, data: PodData = NO_DATA) -> None:
        if pod.spec.volumes or has_own_network(pod) or pod.spec.has_own_users:
            await super().prepare(pod, data)

    def _make_volumes(self, pod: Pod, data: PodData) -> None:
        super()._make_volumes(pod, data)
        uid = pod.metadata.uid
        if pod.spec.has_own_users:
            self._users.prepare(uid)
        if has_own_network(pod):
            self._networks.join(pod, self._users.path(uid) if pod.spec.has_own_users else "")

    # Starting

    def _record(self, attempt: Attempt) -> Record | None:
        return self._known.records.get(attempt)

    async def _start(self, launch: Launch) -> Record:
        attempt = launch.attempt
        assert self._driver is not None
        try:
            image_id = await self._plans.write(launch, self._driver, self._powers)
        except StartFailed:
            raise
        except EvenkeelError as error:
            raise StartFailed(error.message, hint=error.hint) from None
        except OSError as error:
            raise StartFailed(
                f"the start cannot be written down in {self._paths.attempt(*attempt)}: {reason(error)}"
            ) from None
        try:
            answer = await self._link.ask("start", attempt, lambda: attempt in self._known)
        except SupervisorRefused as error:
            if error.is_known:
                await self._read_anew(await self._link.current())
                if attempt in self._known:
                    return self._known.records[attempt]
            await self._remove_attempt(attempt)
            raise StartFailed(error.message, hint=error.hint) from None
        except SupervisorLost:
            raise StartFailed("the supervisor of containers ends whenever it is started") from None
        record = None if answer is None else listed(answer)
        if record is not None:
            self._known.note_process(attempt, record.process)
            if record.ended is not None:
                self._ends.note(attempt, record.ended)
        ended = self._early.pop(attempt, None)
        if ended is not None:
            self._ends.note(attempt, ended)
        self._leave_scope(launch)
        return self._known.records[attempt]._replace(image_id=image_id)

    def give_up(self, attempt: Attempt) -> None:
        self._images.give_up(attempt)

    def _start_ended(self, attempt: Attempt) -> None:
        """Reports an exit that followed the start at once. The caller of `start` gets its answer before the event."""
        super()._start_ended(attempt)
        record = self._known.records.get(attempt)
        if record is not None and record.exit is not None:
            asyncio.get_running_loop().call_soon(self._events.put_nowait, Exited(record.attempt, record.exit))

    def _leave_scope(self, launch: Launch) -> None:
        """Under systemd a placeholder process kept the scope alive. The container's process now takes its place."""
        process = self._known.process(launch.attempt)
        if process is not None and self._driver is not None and self._driver.naming == Naming.SYSTEMD:
            self._run_task(self._in_thread(partial(self._replace_placeholder, process)))

    def _replace_placeholder(self, process: ProcessFile) -> None:
        with closing(self._make_driver()) as driver:
            replace_placeholder(driver, process.cgroup, process.pid)

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        await self._start_under_way(attempt)
        await self._ends.stop(attempt, grace_seconds)

    # Everything else

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None: ...

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        return await self._sessions.execute(attempt, command, timeout_seconds)

    async def open_session(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        return await self._sessions.open(attempt, command, wanted)

    async def attach(self, attempt: Attempt, container: Container, wanted: Streams) -> Session:  # noqa: ARG002
        return await self._sessions.attach(attempt, wanted)

    async def forget(self, attempt: Attempt) -> None:
        if self._known.runs(attempt):
            return
        self._known.forget(attempt)
        # The supervisor itself forgets an attempt that has no directory.
        with suppress(SupervisorLost, TimeoutError):
            async with asyncio.timeout(_FORGET_SECONDS):
                await self._link.ask("forget", attempt)
        await self._remove_attempt(attempt)

    async def remove(self, uid: str) -> None:
        for attempt in [attempt for attempt in self._known.records if attempt.uid == uid]:
            await self.forget(attempt)
        self._host_paths.forget(uid)
        if self._has_orphans:  # the holder of a shared process namespace ends with its pod
            self._run_task(supervisor_link.reap_strays(self._known.pids))
        await self._removed(uid, partial(self._remove_pod, uid))

    def _remove_pod(self, uid: str) -> None:
        self._networks.leave(uid)
        volumes.remove(uid, self._paths)
        self._ranges.release(uid)

    async def pods(self) -> frozenset[str]:
        return await self._in_thread(partial(volumes.pods, self._paths))

    def daemon(self) -> Process | None:
        return self._daemon

    # The disk

    @property
    def images_path(self) -> str:
        return self._paths.images

    async def images_usage(self) -> Usage | None:
        return await self._images.usage()

    def directories(self, pod: Pod) -> Directories:
        return base_runtime.directories_of(pod, process_images.layers_of(pod, self._paths), self._paths)

    async def images(self) -> tuple[Image, ...]:
        return await self._images.listed()

    def pulls(self) -> tuple[Pull, ...]:
        return self._images.pulls()

    async def remove_image(self, id_: str) -> None:
        await self._images.remove(id_)

    async def remove_unused_images(self) -> None:
        await self._images.remove_unused()

    # The supervisor

    async def _take_up(self, supervisor: SupervisorConnection, hello: Message) -> None:
        self._powers = self._powers._replace(
            has_namespaces=bool(hello.get("has_namespaces", True)),
            has_user_namespaces=bool(hello.get("has_user_namespaces")),
            enters_namespaces=bool(hello.get("enters_namespaces")),
            no_filter=str(hello.get("no_filter", "")),
        )
        pid = hello.get("pid")
        self._daemon = process_at(pid) if isinstance(pid, int) else None
        await self._read_anew(supervisor)

    def _lost(self) -> None:
        self._sessions.supervisor_lost()
        self._has_orphans = True
        self._run_task(supervisor_link.reap_strays(self._known.pids))

    def _tell_loss(self, why: str) -> None:
        self._events.put_nowait(RuntimeLost(why))

    async def _read_anew(self, supervisor: SupervisorConnection) -> None:
        """Reads the table again: from the supervisor, and from disk.

        The disk has exits, and containers of an earlier supervisor.
        """
        answer = await supervisor.ask("list")
        listed_now = {one.attempt: one for one in map(listed, answer["records"]) if one is not None}
        on_disk = (Attempt(*key) for key in every_attempt(self._paths))
        for attempt in dict.fromkeys((*listed_now, *on_disk)):
            record = listed_now.get(attempt) or listed_on_disk(attempt, self._paths.attempt(*attempt))
            if record is None:
                continue
            if record.ended is None:
                self._known.note_process(attempt, record.process)
                if attempt not in listed_now:
                    await supervisor.ask("adopt", attempt=list(attempt))
            elif not self._known.has_ended(attempt):
                await self._ends.note_found(attempt, record.process, record.ended)

    def _heard(self, message: Message) -> None:
        if self._sessions.heard(message):
            return
        attempt = Attempt(*message["attempt"])
        if message["event"] == "exited":
            ended = supervisor_protocol.from_json(message["exit"])
            if ended is not None and attempt in self._starting and attempt not in self._known:
                self._early[attempt] = ended
            elif ended is not None:
                self._ends.note(attempt, ended)
        elif message["event"] == "ended":
            self._run_task(self._finish(attempt, self._known.process(attempt)))

    async def _finish(self, attempt: Attempt, process: ProcessFile | None) -> None:
        """Tells the supervisor how an orphan ended. It waits for that for a while."""
        status = None if process is None else await supervisor_link.orphan_status(process)
        if self._link.connection is not None:
            with suppress(SupervisorLost):
                await self._link.connection.ask("finish", attempt=list(attempt), status=status)
