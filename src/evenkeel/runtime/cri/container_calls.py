"""Calls to the container runtime about one container: new settings, its stop, commands, a new log, and removal."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from evenkeel.cgroup.tree import Setting, Version
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import tasks_pb2 as tasks
from evenkeel.runtime.cri.configs import resources
from evenkeel.runtime.cri.container_table import ContainerTable, CriContainer
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Attempt, ExecResult
from evenkeel.runtime.start_errors import StartFailed

log = logging.getLogger(__name__)

_UPDATE_SECONDS = 30.0
_STOP_SLACK_SECONDS = 10.0
_EXECUTION_SLACK_SECONDS = 10.0
_OUTPUT_BYTES = 4096
_REMOVE_SECONDS = 60.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 10.0


class Updates:
    """Sends new settings to the runtime, so that it does not restore old ones.

    `has` returns whether this kernel has a cgroup file.
    """

    def __init__(self, table: ContainerTable, version: Version, has: Callable[[str], bool]) -> None:
        self._table = table
        self._version = version
        self._has = has
        self._wanted: dict[Attempt, tuple[Setting, ...]] = {}
        self._sending: set[Attempt] = set()

    def want(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self._wanted[attempt] = settings

    def wanted(self) -> tuple[Attempt, ...]:
        return tuple(self._wanted)

    async def send(self, attempt: Attempt, connection: Connection) -> None:
        """Sends the latest settings, one call at a time. If the runtime is away, they are sent later."""
        if attempt in self._sending:
            return
        self._sending.add(attempt)
        try:
            while attempt in self._wanted:
                await self._send(attempt, connection)
        except RuntimeAway:
            pass
        except CallFailed as error:
            self._wanted.pop(attempt, None)
            container = self._table.get(attempt)
            if container is not None and container.runs and not error.is_not_found:
                log.warning(
                    "container %s: the runtime did not take the new settings: %s", attempt.container, error
                )
        finally:
            self._sending.discard(attempt)

    async def _send(self, attempt: Attempt, connection: Connection) -> None:
        settings = self._wanted[attempt]
        container = self._table.get(attempt)
        if container is not None and container.runs:
            request = pb.UpdateContainerResourcesRequest(
                container_id=container.id, linux=resources(self._version, settings, is_there=self._has)
            )
            await connection.ask(request, pb.UpdateContainerResourcesResponse, _UPDATE_SECONDS)
        if self._wanted.get(attempt) is settings:
            del self._wanted[attempt]


async def ask_to_stop(connection: Connection, container: CriContainer, grace_seconds: float) -> None:
    """Stops the container through the runtime, which knows the image's stop signal.

    If the runtime does not answer, SIGTERM is sent directly.
    """
    whole = -int(-grace_seconds // 1)
    request = pb.StopContainerRequest(container_id=container.id, timeout=whole)
    try:
        await connection.ask(request, pb.StopContainerResponse, grace_seconds + _STOP_SLACK_SECONDS)
    except CallFailed:
        if container.pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(container.pidfd, signal.SIGTERM)


async def execute(
    connection: Connection, container: CriContainer, command: tuple[str, ...], timeout_seconds: float
) -> ExecResult:
    """Runs a command in the container. Raises StartFailed."""
    request = pb.ExecSyncRequest(
        container_id=container.id, cmd=command, timeout=max(1, -int(-timeout_seconds // 1))
    )
    began_at = time.monotonic()
    try:
        answer = await connection.ask(
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


async def reopen_log(connection: Connection, container: CriContainer, rotated: str) -> bool:
    """Lets the runtime write to a new log, after the old one was renamed to `rotated` (empty: it was removed). Returns
    whether it does so now."""
    request = pb.ReopenContainerLogRequest(container_id=container.id)
    try:
        await connection.ask(request, pb.ReopenContainerLogResponse)
    except CallFailed:
        # The runtime still writes to the renamed file. The file gets its name back, unless there is a new file.
        with suppress(OSError):
            if rotated and not os.path.lexists(container.log):
                os.rename(rotated, container.log)
        return False
    return True


class Forgotten:
    """Containers that the agent has forgotten, and that the runtime still has."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._being_removed: set[str] = set()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def add(self, id_: str) -> None:
        self._ids.add(id_)

    async def remove(self, connection: Connection) -> None:
        """Removes them. Those that the runtime is busy with are left for the next call."""
        for id_ in tuple(self._ids):
            if id_ in self._being_removed:
                continue
            self._being_removed.add(id_)
            try:
                if await is_removed(connection, id_):
                    self._ids.discard(id_)
            except RuntimeAway:
                return
            finally:
                self._being_removed.discard(id_)


async def removed(connection: Connection, id_: str) -> None:
    """Returns when the runtime has removed the container. Raises RuntimeAway."""
    wait = _FIRST_WAIT_SECONDS
    while not await is_removed(connection, id_):
        await asyncio.sleep(wait)  # a runtime does not report when its present work is done
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


async def is_removed(connection: Connection, id_: str) -> bool:
    """Returns whether the container is removed now. If not, the runtime is busy with it. Raises RuntimeAway."""
    refusal = await _refusal(connection, id_)
    if refusal is not None and refusal.has_task:
        await _delete_task(connection, id_)
        refusal = await _refusal(connection, id_)
    return refusal is None


async def _refusal(connection: Connection, id_: str) -> CallFailed | None:
    try:
        await connection.ask(
            pb.RemoveContainerRequest(container_id=id_), pb.RemoveContainerResponse, _REMOVE_SECONDS
        )
    except RuntimeAway:
        raise
    except CallFailed as error:
        return None if error.is_not_found else error
    return None


async def _delete_task(connection: Connection, id_: str) -> None:
    """Deletes the task. It is killed first, because containerd deletes no running task."""
    kill = tasks.KillRequest(container_id=id_, signal=signal.SIGKILL, all=True)
    delete = tasks.DeleteTaskRequest(container_id=id_)
    try:
        await connection.ask_containerd("Kill", kill, tasks.KillResponse, _REMOVE_SECONDS)
    except RuntimeAway:
        raise
    except CallFailed as error:  # its process is gone
        log.debug("the task of container %s: %s", id_, error)
    try:
        await connection.ask_containerd("Delete", delete, tasks.DeleteResponse, _REMOVE_SECONDS)
    except RuntimeAway:
        raise
    except CallFailed as error:  # the next removal tries again
        log.debug("the task of container %s: %s", id_, error)
