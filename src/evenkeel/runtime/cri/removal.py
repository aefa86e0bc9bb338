"""The removal of a container, also of one whose first process died while containerd was making it.

The kernel's OOM killer, an eviction, or the end of whoever asked for the start may come between containerd's making of
a container and its taking note of the process in it. containerd 1.6 then has a task that is "created" for ever, says
through CRI that the container has ended, and refuses to remove it because of the task. Its own interface lets the task
be deleted, and then the container.
"""

import asyncio
import logging
import signal

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import tasks_pb2 as tasks
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway

log = logging.getLogger(__name__)

_REMOVE_SECONDS = 60.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 10.0


async def removed(connection: Connection, id_: str) -> None:
    """Returns when the container, which is not to run, is gone. Raises RuntimeAway."""
    wait = _FIRST_WAIT_SECONDS
    while not await is_removed(connection, id_):
        await asyncio.sleep(wait)  # nothing tells when a runtime is done with what it is busy with
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


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
