"""How a container ended, once its first process is gone, or the runtime says so, or has lost it."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.tree import Setting, Version
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import cri_status
from evenkeel.runtime.cri import tasks_pb2 as tasks
from evenkeel.runtime.cri.configs import resources
from evenkeel.runtime.cri.container_table import ContainerTable, CriContainer
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Attempt, Exit
from evenkeel.runtime.paths import StatePaths

UNSEEN_SECONDS = 2.0  # after the death of a container that the runtime says nothing of
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.005, 1.0


class Endings:
    """`kill` ends everything in a cgroup, and returns when that is done. `oom_kills` is the kernel's count of a cgroup,
    None if that is gone."""

    def __init__(
        self,
        paths: StatePaths,
        kill: Callable[[str], Awaitable[None]],
        oom_kills: Callable[[str], int | None],
    ) -> None:
        self._paths = paths
        self._kill = kill
        self._oom_kills = oom_kills

    async def exit_of(self, kept: CriContainer, connection: Connection) -> Exit | None:
        """None if it runs after all."""
        # The runtime removes the cgroup, and the count with it, when it has taken note of the death.
        counted = self._counted(kept)
        exit_ = await self._exit_of(kept, connection)
        return exit_._replace(oom_kills=counted) if exit_ is not None else None

    def _counted(self, kept: CriContainer) -> int | None:
        """After its death: the kernel counts before it kills."""
        if not kept.cgroup or kept.record.process is None or cri_status.is_running(kept):
            return None
        return self._oom_kills(kept.cgroup)

    async def _exit_of(self, kept: CriContainer, connection: Connection) -> Exit | None:
        """Nothing says when a runtime has taken note of a death: it is asked again."""
        wait = _FIRST_WAIT_SECONDS
        died_at = 0.0
        while True:
            is_dead = not cri_status.is_running(kept)
            died_at = died_at or (time.monotonic() if is_dead else 0.0)
            try:
                answer = await connection.ask(
                    pb.ContainerStatusRequest(container_id=kept.id), pb.ContainerStatusResponse
                )
            except RuntimeAway as error:
                if is_dead and time.monotonic() - died_at > UNSEEN_SECONDS:
                    return cri_status.unknown_exit(kept, f"how it ended is not known: {error.message}")
            except CallFailed as error:
                if error.is_not_found:
                    return await self._exit_of_lost(kept)
            else:
                status = answer.status
                if status.state == pb.ContainerState.CONTAINER_EXITED:
                    return await asyncio.to_thread(cri_status.exit_of, kept, status, self._paths)
                if status.state == pb.ContainerState.CONTAINER_UNKNOWN:
                    return await self._exit_of_lost(kept)
                if not is_dead or kept.record.process is None:
                    return None
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def is_oom_killed_after_all(self, kept: CriContainer, connection: Connection) -> bool:
        """Whether the runtime says so now. It hears of OOM kills and of ends in two ways, and either may come first."""
        try:
            answer = await connection.ask(
                pb.ContainerStatusRequest(container_id=kept.id), pb.ContainerStatusResponse
            )
        except CallFailed:
            return False
        return cri_status.says_oom_killed(answer.status)

    async def _exit_of_lost(self, kept: CriContainer) -> Exit:
        """The runtime has lost it, and could not end it any more: it ends by its cgroup, before another is started."""
        if kept.cgroup:
            with suppress(CgroupError):
                await self._kill(kept.cgroup)
        return cri_status.unknown_exit(kept, "the container runtime has lost this container")


log = logging.getLogger(__name__)

_SECONDS = 30.0


class Updates:
    """`has` says which cgroup files this kernel has."""

    def __init__(self, table: ContainerTable, version: Version, has: Callable[[str], bool]) -> None:
        self._table = table
        self._version = version
        self._has = has
        self._wanted: dict[Attempt, tuple[Setting, ...]] = {}
        self._event_recorder: set[Attempt] = set()

    def want(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self._wanted[attempt] = settings

    def wanted(self) -> tuple[Attempt, ...]:
        return tuple(self._wanted)

    async def tell(self, attempt: Attempt, connection: Connection) -> None:
        """The last that was wanted, one call at a time; where the runtime is away, it stays wanted."""
        if attempt in self._event_recorder:
            return
        self._event_recorder.add(attempt)
        try:
            while attempt in self._wanted:
                await self._tell(attempt, connection)
        except RuntimeAway:
            pass
        except CallFailed as error:
            self._wanted.pop(attempt, None)
            kept = self._table.get(attempt)
            if kept is not None and kept.runs and not error.is_not_found:
                log.warning("container %s: the runtime did not take note: %s", attempt.container, error)
        finally:
            self._event_recorder.discard(attempt)

    async def _tell(self, attempt: Attempt, connection: Connection) -> None:
        settings = self._wanted[attempt]
        kept = self._table.get(attempt)
        if kept is not None and kept.runs:
            request = pb.UpdateContainerResourcesRequest(
                container_id=kept.id, linux=resources(self._version, settings, is_there=self._has)
            )
            await connection.ask(request, pb.UpdateContainerResourcesResponse, _SECONDS)
        if self._wanted.get(attempt) is settings:
            del self._wanted[attempt]


_REMOVE_SECONDS = 60.0
_FIRST_REMOVAL_WAIT_SECONDS, _LONGEST_REMOVAL_WAIT_SECONDS = 0.1, 10.0


async def removed(connection: Connection, id_: str) -> None:
    """Returns when the container, which is not to run, is gone. Raises RuntimeAway."""
    wait = _FIRST_REMOVAL_WAIT_SECONDS
    while not await is_removed(connection, id_):
        await asyncio.sleep(wait)  # nothing tells when a runtime is done with what it is busy with
        wait = min(2 * wait, _LONGEST_REMOVAL_WAIT_SECONDS)


async def is_removed(connection: Connection, id_: str) -> bool:
    """Whether the runtime has removed it, or does not have it; else it is busy with it. Raises RuntimeAway."""
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
    """What may be alive of it is killed first: containerd deletes no task that runs."""
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
