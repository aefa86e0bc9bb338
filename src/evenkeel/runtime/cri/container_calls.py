"""Calls about one container: new resources while it runs, and its removal."""

import asyncio
import logging
import signal
from collections.abc import Callable

from evenkeel.cgroup.tree import Setting, Version
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import tasks_pb2 as tasks
from evenkeel.runtime.cri.configs import resources
from evenkeel.runtime.cri.container_table import ContainerTable
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Attempt

log = logging.getLogger(__name__)

_UPDATE_SECONDS = 30.0
_REMOVE_SECONDS = 60.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 10.0


class Updates:
    """Tells the runtime of new settings, so that it does not restore old ones. `has` says which cgroup files this
    kernel has."""

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
        """Sends the settings that were wanted last, one call at a time. If the runtime is away, they stay wanted."""
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


async def removed(connection: Connection, id_: str) -> None:
    """Returns when the runtime has removed the container. Raises RuntimeAway."""
    wait = _FIRST_WAIT_SECONDS
    while not await is_removed(connection, id_):
        await asyncio.sleep(wait)  # a runtime does not say when it has finished what it is busy with
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


async def is_removed(connection: Connection, id_: str) -> bool:
    """Whether the container is gone now; if not, the runtime is busy with it. Raises RuntimeAway."""
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
    """Kills the task first: containerd deletes no task that runs."""
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
