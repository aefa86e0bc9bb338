"""The state of a container, from its CRI status and from the kernel, and how it ended."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from evenkeel.cgroup.driver import CgroupError
from evenkeel.errors import raise_shortage, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import MESSAGE_POLICY
from evenkeel.runtime.cri.container_table import CriContainer, save_container
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import UNKNOWN_EXIT, Attempt, Exit, Launch, Record
from evenkeel.runtime.paths import TERMINATION_LOG, StatePaths
from evenkeel.runtime.procfs import is_alive, process_at
from evenkeel.runtime.termination_messages import termination_message

_SLICE, _SCOPE = ".slice", ".scope"
_UPPER = "upperdir="
_NANOSECONDS = 1e9
_SIGNALLED = 128
_NO_LOOK = "RESOURCE_EXHAUSTED"  # as gRPC calls it
_SIGNALS = 64
_OOM_KILLED = "OOMKilled"
_FIRST_PID, _MOST_PIDS = 1, 1 << 22  # init is no container; the kernel's PID_MAX_LIMIT
UNSEEN_SECONDS = 2.0  # how long a runtime that is away is asked about a dead container
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.005, 1.0
# In sum less than the time after which the agent decides about the exit.
_ASK_AGAIN_SECONDS = (0.05, 0.2, 0.75)


async def inspect_container(
    connection: Connection, id_: str, attempt: Attempt, paths: StatePaths, runtime: str
) -> CriContainer | None:
    """Reads the container from the runtime and saves it in the state directory.

    Returns None if the runtime does not have it. Raises RuntimeAway, and CallFailed if the runtime cannot tell or no
    descriptor is left to look at its process.
    """
    try:
        answer = await connection.ask(
            pb.ContainerStatusRequest(container_id=id_, verbose=True), pb.ContainerStatusResponse
        )
    except CallFailed as error:
        if error.is_not_found:
            return None
        raise
    status, (pid, cgroup) = answer.status, location(answer.info, attempt.uid)
    try:
        process = process_at(pid) if pid else None
        layer = written_layer(pid) if process else ""
    except OSError as error:
        raise CallFailed(f"its process {pid} cannot be looked at: {reason(error)}", _NO_LOOK) from None
    record = Record(attempt, process, status.started_at / _NANOSECONDS, id=f"{runtime}://{id_}")
    container = CriContainer(id_, record, cgroup, layer, status.log_path)
    if status.state == pb.ContainerState.CONTAINER_EXITED:
        container.record = record._replace(exit=exit_of(container, status, paths))
    else:
        save_container(container, paths)
    return container


def listed_container(one: pb.Container, attempt: Attempt, runtime: str, why: str) -> CriContainer:
    """The container as the list has it, which is all that is known of it: the runtime cannot tell its status. `why` is
    what it answered."""
    record = Record(attempt, None, one.created_at / _NANOSECONDS, id=f"{runtime}://{one.id}")
    container = CriContainer(one.id, record, "")
    if one.state == pb.ContainerState.CONTAINER_EXITED:
        container.record = record._replace(exit=unknown_exit(container, f"how it ended is not known: {why}"))
    return container


class ContainerExits:
    """Finds out how containers ended.

    `kill` kills all processes in a cgroup and returns when that is done. `oom_kills` reads the kernel's count of a
    cgroup; None if the cgroup is gone.
    """

    def __init__(
        self,
        paths: StatePaths,
        kill: Callable[[str], Awaitable[None]],
        oom_kills: Callable[[str], int | None],
    ) -> None:
        self._paths = paths
        self._kill = kill
        self._oom_kills = oom_kills

    async def exit_of(
        self, container: CriContainer, connection: Connection, *, is_listed: bool
    ) -> Exit | None:
        """Returns how the container ended; None if it still runs. `is_listed` says that the runtime's list has its end,
        or does not have it any more."""
        # The count is read first. When the runtime learns of the end, it removes the cgroup with the count.
        counted = self._counted(container)
        exit_ = await self._exit_of(container, connection, is_listed=is_listed)
        return exit_._replace(oom_kills=counted) if exit_ is not None else None

    def _counted(self, container: CriContainer) -> int | None:
        """Returns the count of OOM kills after the end of the first process. The kernel counts before it kills."""
        if not container.cgroup or container.record.process is None or is_running(container):
            return None
        return self._oom_kills(container.cgroup)

    async def _exit_of(
        self, container: CriContainer, connection: Connection, *, is_listed: bool
    ) -> Exit | None:
        """Asks the runtime until it knows of the end, because it sends no message about the end."""
        wait = _FIRST_WAIT_SECONDS
        died_at = 0.0
        while True:
            is_dead = not is_running(container)
            died_at = died_at or (time.monotonic() if is_dead else 0.0)
            try:
                answer = await connection.ask(
                    pb.ContainerStatusRequest(container_id=container.id), pb.ContainerStatusResponse
                )
            except RuntimeAway as error:
                if is_dead and time.monotonic() - died_at > UNSEEN_SECONDS:
                    return unknown_exit(container, f"how it ended is not known: {error.message}")
            except CallFailed as error:
                if error.is_not_found:
                    return await self._exit_of_lost(container)
                if container.record.process is None and not is_listed:
                    return None  # neither the kernel nor the runtime says that it has ended
                if is_dead and time.monotonic() - died_at > UNSEEN_SECONDS:
                    return unknown_exit(container, f"how it ended is not known: {error.message}")
            else:
                status = answer.status
                if status.state == pb.ContainerState.CONTAINER_EXITED:
                    return await asyncio.to_thread(exit_of, container, status, self._paths)
                if status.state == pb.ContainerState.CONTAINER_UNKNOWN:
                    return await self._exit_of_lost(container)
                if not is_dead or container.record.process is None:
                    return None
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def was_oom_killed(self, container: CriContainer, connection: Connection) -> bool:
        """Returns whether the runtime reports within a second that the ended container was OOM-killed.

        The runtime learns of the end and of the kill separately, in either order, and sends no event for the kill.
        """
        for wait in _ASK_AGAIN_SECONDS:
            await asyncio.sleep(wait)
            with suppress(CallFailed):
                answer = await connection.ask(
                    pb.ContainerStatusRequest(container_id=container.id), pb.ContainerStatusResponse
                )
                if says_oom_killed(answer.status):
                    return True
        return False

    async def _exit_of_lost(self, container: CriContainer) -> Exit:
        """Ends a container that the runtime has lost. The runtime cannot end it any more.

        Its cgroup is killed before the next attempt starts.
        """
        if container.cgroup:
            with suppress(CgroupError):
                await self._kill(container.cgroup)
        return unknown_exit(container, "the container runtime has lost this container")


def exit_of(container: CriContainer, status: pb.ContainerStatus, paths: StatePaths) -> Exit:
    """Converts a CRI status. Blocks for a moment."""
    code = status.exit_code
    number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + _SIGNALS else 0
    policy = status.annotations.get(MESSAGE_POLICY, "")
    path = paths.termination_log(*container.attempt)
    if not os.path.exists(path):  # a container of an older agent
        path = f"{paths.attempt(*container.attempt)}/{TERMINATION_LOG}"
    message = termination_message(path, status.log_path, policy, is_error=code != 0)
    return Exit(
        code,
        number,
        status.started_at / _NANOSECONDS,
        status.finished_at / _NANOSECONDS,
        message=message,
        is_oom_killed=says_oom_killed(status),
    )


def says_oom_killed(status: pb.ContainerStatus) -> bool:
    return status.reason == _OOM_KILLED


def unknown_exit(container: CriContainer, why: str) -> Exit:
    return Exit(UNKNOWN_EXIT, 0, container.record.started_at, time.time(), is_known=False, message=why)


def is_running(container: CriContainer) -> bool:
    """Returns whether the first process of the container runs, and its PID does not belong to another process. It is a
    zombie until the runtime learns of its end."""
    process = container.record.process
    try:
        return process is not None and is_alive(process.pid, process.start_ticks)
    except OSError:  # no descriptor is left to look: nothing says that it has ended
        return True


def score_notes(container: CriContainer, launch: Launch) -> tuple[str, ...]:
    """Returns a note if the OOM score is not the planned one: some runtimes give no score below their own."""
    process, wanted = container.record.process, launch.oom_score_adj
    if process is None or wanted is None:
        return ()
    try:
        with open(f"/proc/{process.pid}/oom_score_adj", encoding="ascii") as file:
            has = int(file.read())
    except (OSError, ValueError):
        return ()
    if has == wanted:
        return ()
    return (f"oom_score_adj is {has} and not {wanted}: the container runtime gave it that",)


class Location(NamedTuple):
    """The first process of a container or sandbox, and the path of its cgroup; 0 and "" if they are not known."""

    pid: int
    cgroup: str


def location(info: Mapping[str, str], uid: str) -> Location:
    """Reads the location from the verbose part of a status, which containerd and CRI-O both fill with JSON.

    A cgroup counts only if it is one of the pod with this UID, because the agent kills and changes what is in it.
    """
    try:
        status: Any = json.loads(info.get("info", "{}"))
    except (ValueError, RecursionError):
        return Location(0, "")
    path = _member(_member(_member(status, "runtimeSpec"), "linux"), "cgroupsPath")
    cgroup = cgroup_path(path) if isinstance(path, str) else ""
    pid = _member(status, "pid")
    is_pid = isinstance(pid, int) and _FIRST_PID < pid < _MOST_PIDS and pid != os.getpid()
    return Location(pid if isinstance(pid, int) and is_pid else 0, cgroup if _is_of_pod(cgroup, uid) else "")


def _is_of_pod(cgroup: str, uid: str) -> bool:
    """Whether the path is that of a cgroup directly below the pod's, whose name has the pod's UID."""
    if not uid or not cgroup.startswith("/") or "\0" in cgroup:
        return False
    *above, parent, own = cgroup.split("/")
    is_plain = own not in ("", ".", "..") and ".." not in above
    is_slice = parent.endswith(f"-pod{uid.replace('-', '_')}{_SLICE}")
    return is_plain and (parent == f"pod{uid}" or is_slice)


def cgroup_path(cgroups_path: str) -> str:
    """Converts an OCI `cgroupsPath`: a path already, or `slice:prefix:name` for a scope of systemd."""
    if cgroups_path.count(":") == 2 and "/" not in cgroups_path:
        parent, prefix, name = cgroups_path.split(":")
        return (
            f"{_slice_path(parent)}/{prefix}-{name}{_SCOPE}"
            if prefix
            else f"{_slice_path(parent)}/{name}{_SCOPE}"
        )
    return cgroups_path.rstrip("/") if cgroups_path.startswith("/") else ""


def _slice_path(name: str) -> str:
    """Returns the path of a slice. A slice is inside the slices that its name begins with: `/a.slice/a-b.slice`."""
    parts = name.removesuffix(_SLICE).split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}{_SLICE}" for depth in range(len(parts)))


def written_layer(pid: int) -> str:
    """Returns the directory to which the container's root filesystem writes, if it is an overlay; else empty. Raises
    OSError if no descriptor is left to look."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split()[4] == "/" and rest.startswith("overlay "):
                    options = rest.split()[2].split(",")
                    return next((one.removeprefix(_UPPER) for one in options if one.startswith(_UPPER)), "")
    except OSError as error:
        raise_shortage(error)
    except IndexError:
        pass
    return ""


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None
