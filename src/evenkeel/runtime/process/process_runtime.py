"""The agent's side of the process runtime, which runs pods as processes of this machine.

The agent hands each request to the supervisor. A table here holds every attempt that runs, or that has ended and was
not forgotten. The table is read again from the supervisor and from disk whenever a new supervisor starts.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData, takes_secrets
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.processes import replace_placeholder
from evenkeel.cgroup.tree import Naming, Setting
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.disk_usage import Usage
from evenkeel.host.node_figures import host_address
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import base_runtime, memory_mounts, security, syscalls, volumes
from evenkeel.runtime.base_runtime import BaseRuntime
from evenkeel.runtime.environment import wants_addresses, with_addresses
from evenkeel.runtime.interface import (
    Attempt,
    Directories,
    ExecResult,
    Exit,
    Exited,
    Image,
    Launch,
    Placed,
    Pull,
    Readiness,
    Record,
    RuntimeLost,
    StartFailed,
)
from evenkeel.runtime.network_files import ETC, own_files
from evenkeel.runtime.paths import every_attempt, make_directory, read_json, write_json
from evenkeel.runtime.process import process_images, process_refusals, supervisor_link, supervisor_protocol
from evenkeel.runtime.process.attempt_table import AttemptTable, listed, listed_on_disk
from evenkeel.runtime.process.container_images import ContainerImages
from evenkeel.runtime.process.image_config import NO_CONFIG
from evenkeel.runtime.process.launch import Surroundings, entrances, plan_of, surroundings
from evenkeel.runtime.process.pod_networks import PodNetworks
from evenkeel.runtime.process.process_refusals import has_own_network
from evenkeel.runtime.process.process_sessions import ProcessSessions
from evenkeel.runtime.process.seccomp import Filter
from evenkeel.runtime.process.seccomp_profiles import localhost_filter
from evenkeel.runtime.process.supervisor.plan import PRIVATE
from evenkeel.runtime.process.supervisor_connection import (
    SupervisorConnection,
    SupervisorLost,
    SupervisorRefused,
)
from evenkeel.runtime.process.supervisor_link import SupervisorLink
from evenkeel.runtime.process.supervisor_protocol import BadMessage, ExitFile, Message, ProcessFile
from evenkeel.runtime.procfs import MountWatch, Process, process_at
from evenkeel.runtime.sessions import Session, Streams

_THREADS = 16
_KILLED_SECONDS = 10.0  # time for the supervisor to record the end, after the cgroup was killed
_FORGET_SECONDS = 5.0
_EXECUTION_SLACK_SECONDS = 10.0


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
        self._profiles = config.seccomp_profile_root
        self._has_orphans = False  # children of a supervisor that has ended may be our children
        self._networks = PodNetworks(self._paths, config.pod_cidr)
        self._powers = process_refusals.Powers(
            os.geteuid(), os.getegid(), no_network=self._networks.refusal(), granted=self._granted
        )
        self._images = ContainerImages(
            self._paths, config, self._events.put_nowait, self._in_thread, self._starting.keys
        )
        self._around: Surroundings | None = None
        self._mounts = MountWatch()
        self._driver: Driver | None = None
        self._link = SupervisorLink(self._paths.root, self._heard, self._take_up, self._lost, self._tell_loss)
        self._daemon: Process | None = None  # the last supervisor; it may have ended
        self._known = AttemptTable()
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
        self._mounts.close()
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
        return self._networks.addresses(pod.metadata.uid) if has_own_network(pod) else None

    async def prepare(self, pod: Pod, data: PodData = NO_DATA) -> None:
        if pod.spec.volumes or has_own_network(pod):
            await super().prepare(pod, data)

    def _make_volumes(self, pod: Pod, data: PodData) -> None:
        super()._make_volumes(pod, data)
        if has_own_network(pod):
            self._networks.join(pod)

    # Starting

    def _record(self, attempt: Attempt) -> Record | None:
        return self._known.records.get(attempt)

    async def _start(self, launch: Launch) -> Record:
        attempt = launch.attempt
        try:
            image_id = await self._write_plan(launch)
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
        told = None if answer is None else listed(answer)
        if told is not None:
            self._known.note_process(attempt, told.process)
            if told.ended is not None:
                self._note_end(attempt, told.ended)
        ended = self._early.pop(attempt, None)
        if ended is not None:
            self._note_end(attempt, ended)
        self._leave_scope(launch)
        return self._known.records[attempt]._replace(image_id=image_id)

    async def _write_plan(self, launch: Launch) -> str:
        """Returns the image with its digest in the registry; empty if it has none."""
        assert self._driver is not None
        if self._around is None or self._mounts.have_changed():
            self._around = surroundings(self._paths)
        image_directory, stored = await self._images.root_of(launch)
        if wants_addresses(launch.container) or has_own_network(launch.pod):
            own = self.addresses(launch.pod)
            launch = launch._replace(pod=with_addresses(launch.pod, host_address(), own))
        plan = plan_of(
            launch,
            self._paths,
            self._powers,
            procs=entrances(self._driver.files(launch.cgroup), self._driver.version),
            image_directory=image_directory,
            around=self._around,
            limits=self._limits,
            places=self._host_paths.places(launch.attempt.uid),
            network=self._networks.namespace(launch.attempt.uid) if has_own_network(launch.pod) else "",
            config=NO_CONFIG if stored is None else stored.config,
            own_filter=await self._own_filter(launch),
            holder_procs=self._holder_procs(launch, self._driver),
        )
        directory = self._paths.attempt(*launch.attempt)
        make_directory(directory)
        for name in own_files(launch.pod):
            make_directory(f"{directory}/{ETC}")
            volumes.write_network_file(f"{directory}/{ETC}/{name}", name, launch.pod)
        written = plan._asdict()
        if takes_secrets(launch.container):
            # Its arguments and variables may have values of Secrets, which must not be on disk.
            private = self._paths.private(*launch.attempt)
            hidden = {name: written.pop(name) for name in PRIVATE}
            written["private"] = private
            await self._in_thread(partial(memory_mounts.write_private, private, hidden, self._paths))
        write_json(directory, supervisor_protocol.LAUNCH, written)
        return "" if stored is None else stored.repository_digest

    def _holder_procs(self, launch: Launch, driver: Driver) -> tuple[str, ...]:
        if not launch.pod.spec.share_process_namespace or launch.planned is None:
            return ()
        return entrances(driver.files(launch.planned.infrastructure.path), driver.version)

    async def _own_filter(self, launch: Launch) -> Filter | None:
        profile = security.seccomp_profile(launch.pod, launch.container)
        if profile.type != security.LOCALHOST:
            return None
        return await self._in_thread(
            partial(localhost_filter, self._profiles, profile.localhost_profile or "")
        )

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

    # Stopping

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        await self._start_under_way(attempt)
        if not self._known.runs(attempt):
            return
        ended = self._known.end_of(attempt)
        if grace_seconds > 0:
            self._signal(attempt, self._stop_signal(attempt))
            await asyncio.wait([ended], timeout=grace_seconds)
        process = self._known.process(attempt)
        if not ended.done() and process is not None:
            await self._killed(process.cgroup)
            # Its processes may be in another cgroup by now (B13). When the first process of a pid namespace is
            # killed, all processes of the namespace end.
            self._signal(attempt, signal.SIGKILL)
        await asyncio.wait([ended], timeout=_KILLED_SECONDS)
        if not ended.done() and process is not None and not supervisor_protocol.is_running(process):
            # The process has ended. Only the supervisor knows how, and the supervisor hangs.
            self._note_end(attempt, supervisor_protocol.unknown(process.started_at, time.time()))
        elif not ended.done():
            raise EvenkeelError(
                f"container {attempt.container} was killed, and process {process.pid if process else '?'} is still "
                "there",
                hint="it waits for a device or a network filesystem",
            )

    def _stop_signal(self, attempt: Attempt) -> int:
        """The image's stop signal."""
        plan = read_json(self._paths.attempt(*attempt), supervisor_protocol.LAUNCH) or {}
        number = plan.get("stop_signal")
        return number if isinstance(number, int) and 0 < number < signal.NSIG else signal.SIGTERM

    def _signal(self, attempt: Attempt, number: int) -> None:
        """Sends the signal directly, because the supervisor may hang."""
        process = self._known.process(attempt)
        if process is not None:
            supervisor_protocol.send_signal(process, number)

    # Everything else

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None: ...

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        try:
            async with asyncio.timeout(timeout_seconds + _EXECUTION_SLACK_SECONDS):
                supervisor = await self._link.current()
                answer = await supervisor.ask(
                    "execute", attempt=list(attempt), command=list(command), seconds=timeout_seconds
                )
        except SupervisorRefused as error:
            raise StartFailed(error.message, hint=error.hint) from None
        except BadMessage as error:
            raise StartFailed(f"the command cannot be handed on: {error}") from None
        except SupervisorLost:
            raise StartFailed("the supervisor of containers went away before the command had ended") from None
        except TimeoutError:
            return ExecResult(None, "")
        code = answer.get("exit_code")
        return ExecResult(code if isinstance(code, int) else None, str(answer.get("output", "")))

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
            await asyncio.wait_for(self._link.ask("forget", attempt), _FORGET_SECONDS)
        await self._remove_attempt(attempt)

    async def remove(self, uid: str) -> None:
        for attempt in [attempt for attempt in self._known.records if attempt.uid == uid]:
            await self.forget(attempt)
        self._host_paths.forget(uid)
        if self._has_orphans:  # the holder of a shared process namespace ends with its pod
            self._run_task(supervisor_link.reap_strays(self._known.pids))
        await self._in_thread(partial(self._remove_pod, uid))

    def _remove_pod(self, uid: str) -> None:
        self._networks.leave(uid)
        volumes.remove(uid, self._paths)

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
            has_namespaces=bool(hello.get("has_namespaces", True)), no_filter=str(hello.get("no_filter", ""))
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
        kept = {told.attempt: told for told in map(listed, answer["records"]) if told is not None}
        on_disk = (Attempt(*key) for key in every_attempt(self._paths))
        for attempt in dict.fromkeys((*kept, *on_disk)):
            told = kept.get(attempt) or listed_on_disk(attempt, self._paths.attempt(*attempt))
            if told is None:
                continue
            if told.ended is None:
                self._known.note_process(attempt, told.process)
                if attempt not in kept:
                    await supervisor.ask("adopt", attempt=list(attempt))
            elif not self._known.has_ended(attempt):
                self._known.note_dead(attempt, told.process)
                if told.process.has_pid_namespace:
                    self._end(attempt, told.ended)
                else:
                    await self._end_after_kill(attempt, told.process, told.ended)

    def _heard(self, message: Message) -> None:
        if self._sessions.heard(message):
            return
        attempt = Attempt(*message["attempt"])
        if message["event"] == "exited":
            ended = supervisor_protocol.from_json(message["exit"])
            if ended is not None and attempt in self._starting and attempt not in self._known:
                self._early[attempt] = ended
            elif ended is not None:
                self._note_end(attempt, ended)
        elif message["event"] == "ended":
            process = self._known.process(attempt)
            status = None if process is None else supervisor_link.ended_status(process)
            self._run_task(self._finish(attempt, status))

    async def _finish(self, attempt: Attempt, status: int | None) -> None:
        if self._link.connection is not None:
            with suppress(SupervisorLost):
                await self._link.connection.ask("finish", attempt=list(attempt), status=status)

    # Ends

    def _note_end(self, attempt: Attempt, ended: ExitFile) -> None:
        process = self._known.process(attempt)
        if process is None or process.has_pid_namespace:
            self._end(attempt, ended)
        else:
            self._run_task(self._end_after_kill(attempt, process, ended))

    async def _end_after_kill(self, attempt: Attempt, process: ProcessFile, ended: ExitFile) -> None:
        """Without a pid namespace, the other processes do not end with the first one. They are killed here."""
        with suppress(CgroupError):
            await self._killed(process.cgroup)
        self._end(attempt, ended)

    def _end(self, attempt: Attempt, ended: ExitFile) -> None:
        """Records each exit once, and only if the container was known to run.

        Other exits are in the table from the beginning.
        """
        if self._known.note_end(attempt, ended) and attempt not in self._starting:
            self._events.put_nowait(Exited(attempt, Exit(*ended)))
