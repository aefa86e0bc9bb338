"""How a container ended, once its first process is gone, or the runtime says so, or has lost it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from evenkeel.cgroup.driver import CgroupError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import notes
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.cri.table import Kept
from evenkeel.runtime.interface import Exit
from evenkeel.runtime.paths import StatePaths

UNSEEN_SECONDS = 2.0  # after the death of a container that the runtime says nothing of
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.005, 1.0


class Endings:
    """`kill` ends everything in a cgroup, and returns when that is done."""

    def __init__(self, paths: StatePaths, kill: Callable[[str], Awaitable[None]]) -> None:
        self._paths = paths
        self._kill = kill

    async def exit_of(self, kept: Kept, connection: Connection) -> Exit | None:
        """None if it runs after all. Nothing says when a runtime has taken note of a death: it is asked again."""
        wait = _FIRST_WAIT_SECONDS
        died_at = 0.0
        while True:
            is_dead = not notes.is_running(kept)
            died_at = died_at or (time.monotonic() if is_dead else 0.0)
            try:
                answer = await connection.ask(
                    pb.ContainerStatusRequest(container_id=kept.id), pb.ContainerStatusResponse
                )
            except RuntimeAway as error:
                if is_dead and time.monotonic() - died_at > UNSEEN_SECONDS:
                    return notes.unknown_exit(kept, f"how it ended is not known: {error.message}")
            except CallFailed as error:
                if error.is_not_found:
                    return await self._exit_of_lost(kept)
            else:
                status = answer.status
                if status.state == pb.ContainerState.CONTAINER_EXITED:
                    return await asyncio.to_thread(notes.exit_of, kept, status, self._paths)
                if status.state == pb.ContainerState.CONTAINER_UNKNOWN:
                    return await self._exit_of_lost(kept)
                if not is_dead or kept.record.process is None:
                    return None
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _exit_of_lost(self, kept: Kept) -> Exit:
        """The runtime has lost it, and could not end it any more: it ends by its cgroup, before another is started."""
        if kept.cgroup:
            with suppress(CgroupError):
                await self._kill(kept.cgroup)
        return notes.unknown_exit(kept, "the container runtime has lost this container")
