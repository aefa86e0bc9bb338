"""Telling the container runtime what its containers have been given (UpdateContainerResources).

The kernel has it already: the agent writes cgroup files itself, in the order that breaks no promise. But a runtime that
is not told would show, and one day write, what it was told first.
"""

import logging
from collections.abc import Callable

from evenkeel.cgroup.tree import Setting, Version
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.cri.resources import resources
from evenkeel.runtime.cri.table import Table
from evenkeel.runtime.interface import Attempt

log = logging.getLogger(__name__)

_SECONDS = 30.0


class Updates:
    """`has` says which cgroup files this kernel has."""

    def __init__(self, table: Table, version: Version, has: Callable[[str], bool]) -> None:
        self._table = table
        self._version = version
        self._has = has
        self._wanted: dict[Attempt, tuple[Setting, ...]] = {}
        self._telling: set[Attempt] = set()

    def want(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self._wanted[attempt] = settings

    def wanted(self) -> tuple[Attempt, ...]:
        return tuple(self._wanted)

    async def tell(self, attempt: Attempt, connection: Connection) -> None:
        """The last that was wanted, one call at a time; where the runtime is away, it stays wanted."""
        if attempt in self._telling:
            return
        self._telling.add(attempt)
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
            self._telling.discard(attempt)

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
