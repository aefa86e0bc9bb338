"""Follows the containers of the container runtime: it lists them, and reports the end of each.

It learns of an end from the kernel, through a pidfd of the container's first process, even if the runtime is busy.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import cri_status
from evenkeel.runtime.cri.configs import STATE, attempt_of
from evenkeel.runtime.cri.container_calls import Forgotten
from evenkeel.runtime.cri.container_table import ContainerTable, CriContainer
from evenkeel.runtime.cri.cri_connection import CallFailed, RuntimeAway
from evenkeel.runtime.cri.cri_status import ContainerExits
from evenkeel.runtime.cri.runtime_link import RuntimeLink
from evenkeel.runtime.cri.sandboxes import Sandboxes
from evenkeel.runtime.interface import Attempt, Exit, Exited
from evenkeel.runtime.paths import StatePaths

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2


class ContainerWatch:
    """Keeps `table` equal to the runtime's list. `starting` are attempts whose start is under way: the start itself
    handles them. `run_task` runs work beside the caller, and `report` takes the ends."""

    def __init__(
        self,
        link: RuntimeLink,
        paths: StatePaths,
        table: ContainerTable,
        sandboxes: Sandboxes,
        exits: ContainerExits,
        forgotten: Forgotten,
        starting: Callable[[], Collection[Attempt]],
        run_task: Callable[[Coroutine[Any, Any, Any]], None],
        report: Callable[[Exited], None],
    ) -> None:
        self._link = link
        self._connection = link.connection
        self._paths = paths
        self._table = table
        self._sandboxes = sandboxes
        self._exits = exits
        self._forgotten = forgotten
        self._starting = starting
        self._run_task = run_task
        self._report = report
        self._ending: set[Attempt] = set()
        self._unreadable: set[str] = set()  # IDs of containers whose status the runtime cannot tell

    async def list_all(self) -> None:
        """Lists everything once and updates the table. Raises RuntimeAway and CallFailed."""
        ours = {STATE: self._paths.root}
        before = {container.attempt for container in self._table if container.runs}
        boxes_before = self._sandboxes.ids()
        listed = await self._connection.ask(
            pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=ours)),
            pb.ListContainersResponse,
        )
        boxes = await self._connection.ask(
            pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=ours)),
            pb.ListPodSandboxResponse,
        )
        await self._sandboxes.update(boxes.items, boxes_before)
        # In a task of its own: a runtime may take long for one container, and the others must not wait for it.
        self._run_task(self._forgotten.remove(self._connection))
        inhabited = frozenset(one.pod_sandbox_id for one in listed.containers)
        starting = frozenset(attempt.uid for attempt in self._starting())
        for removal in self._sandboxes.removals_of_left(inhabited, starting):
            self._run_task(removal)
        for one in listed.containers:
            attempt = attempt_of(one.labels)
            if attempt is None or attempt in self._starting():
                continue
            before.discard(attempt)
            await self._update_from(attempt, one)
        for attempt in before:
            container = self._table.get(attempt)
            if container is not None and container.runs:
                self._run_task(self.ended(container, is_listed=True))

    async def inspect(self, id_: str, attempt: Attempt) -> CriContainer | None:
        """Returns the container as the runtime has it; None if it does not know it. Raises RuntimeAway, and CallFailed
        if the runtime cannot tell."""
        assert self._link.info is not None
        return await cri_status.inspect_container(
            self._connection, id_, attempt, self._paths, self._link.info.name
        )

    async def _update_from(self, attempt: Attempt, one: pb.Container) -> None:
        container = self._table.get(attempt)
        if one.state == pb.ContainerState.CONTAINER_CREATED or one.id in self._forgotten:
            return  # the next start of the attempt finds it
        if container is None:
            seen = await self._seen(attempt, one)
            if seen is not None and seen.has_begun and self._table.get(attempt) is None:
                self._table.put(seen)
            return
        if one.id in self._unreadable and container.runs:
            await self._read_again(container)
        if container.runs and one.state != pb.ContainerState.CONTAINER_RUNNING:
            self._run_task(self.ended(container, is_listed=True))

    async def _seen(self, attempt: Attempt, one: pb.Container) -> CriContainer | None:
        """The container with its status, or else as the list has it. Other containers must not wait until the runtime
        can read its status."""
        try:
            return await self.inspect(one.id, attempt)
        except RuntimeAway:
            raise
        except CallFailed as error:
            assert self._link.info is not None
            self._unreadable.add(one.id)
            log.warning("container %s (%s): %s", attempt.container, one.id, str(error))
            return cri_status.listed_container(one, attempt, self._link.info.name, error.message)

    async def _read_again(self, container: CriContainer) -> None:
        """The runtime could not tell the status of the container before. Perhaps it can now."""
        try:
            seen = await self.inspect(container.id, container.attempt)
        except RuntimeAway:
            raise
        except CallFailed:
            return
        self._unreadable.discard(container.id)
        if seen is not None and seen.runs and container.runs:
            container.record, container.cgroup = seen.record, seen.cgroup
            container.layer, container.log = seen.layer, seen.log
            self._table.put(container)

    async def listen(self) -> None:
        """Listens to the events of the runtime, for containers whose process cannot be watched."""
        while True:
            await self._link.available()
            try:
                async for id_ in self._connection.container_events():
                    container = self._table.by_id(id_)
                    if container is not None and container.runs and container.pidfd < 0:
                        self._run_task(self.ended(container))
            except CallFailed as error:
                if error.code == "UNIMPLEMENTED":
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    async def ended(self, container: CriContainer, *, is_listed: bool = False) -> None:
        """Finds out how the container ended, and reports it.

        Its first process has ended, or the runtime reports the end (in its list: `is_listed`), or the runtime has lost
        the container.
        """
        if container.attempt in self._ending or not container.runs:
            return
        self._ending.add(container.attempt)
        try:
            exit_ = await self._exits.exit_of(container, self._connection, is_listed=is_listed)
        finally:
            self._ending.discard(container.attempt)
        if exit_ is not None and self._table.end(container, exit_):
            self._report(Exited(container.attempt, exit_))
            if exit_.signal == signal.SIGKILL and exit_.oom_kills is None and not exit_.is_oom_killed:
                self._run_task(self._ask_for_oom_kill(container, exit_))

    async def _ask_for_oom_kill(self, container: CriContainer, exit_: Exit) -> None:
        """Reports the exit again if the runtime says later that it was an OOM kill."""
        if await self._exits.was_oom_killed(container, self._connection):
            exit_ = exit_._replace(is_oom_killed=True)
            container.record = container.record._replace(exit=exit_)
            self._report(Exited(container.attempt, exit_))
