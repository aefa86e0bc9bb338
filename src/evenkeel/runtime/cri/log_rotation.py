"""Rotates the logs that a container runtime writes, as kubelet does, and keeps them within their limits.

The runtime writes as fast as a container speaks, and no container waits for it. So logs are checked every second, and a
log may be larger than its limit by then. The limit of the rotated logs together is their number times the limit of one
log. The newest may use all of it. If it needs more, its beginning is removed.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from evenkeel.runtime.cri.container_calls import reopen_log
from evenkeel.runtime.cri.container_table import CriContainer
from evenkeel.runtime.cri.cri_connection import Connection
from evenkeel.runtime.log_relay import LogLimits, loss, remove_oldest, rotated_files, stamp_of

_SECONDS = 1.0
_LONGEST_PAUSE = 64  # looks, about a minute: between two attempts to get a missing log made
_TIMESTAMP_BYTES = 64  # more than a time and the space behind it
_COPY_BYTES = 1 << 20
_SHORT = ".short"  # beside the logs of a container
_WHY = "the container says more than is kept"


class LogRotation:
    """The logs of the containers in `table`. `in_thread` calls a function that blocks."""

    def __init__(
        self,
        table: Iterable[CriContainer],
        connection: Connection,
        limits: LogLimits,
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        self._table = table
        self._connection = connection
        self._limits = limits
        self._in_thread = in_thread
        self._missing = MissingLogs()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS)
            logs = {container.log: container for container in self._table if container.runs and container.log}
            large, missing = await self._in_thread(partial(to_rotate, tuple(logs), self._limits))
            for log in (*large, *self._missing.due(missing)):
                await self._rotate(logs[log])

    async def _rotate(self, container: CriContainer) -> None:
        rotated = await self._in_thread(partial(rotate_log, container.log, self._limits))
        if rotated is not None and await reopen_log(self._connection, container, rotated) and rotated:
            await self._in_thread(partial(fit_rotated, rotated, container.log, self._limits))


class MissingLogs:
    """Says when the runtime is asked for a missing log: at once, and less and less often while that does not help."""

    def __init__(self) -> None:
        # By log: looks until the next attempt, and the pause after it.
        self._pauses: dict[str, tuple[int, int]] = {}

    def due(self, missing: Iterable[str]) -> list[str]:
        """The logs to ask for. `missing` are those of the present look. One that is there again is forgotten."""
        before, self._pauses, found = self._pauses, {}, []
        for log in missing:
            left, pause = before.get(log, (0, 1))
            if left == 0:
                found.append(log)
                left, pause = pause, min(2 * pause, _LONGEST_PAUSE)
            self._pauses[log] = (left - 1, pause)
        return found


def to_rotate(logs: tuple[str, ...], limits: LogLimits) -> tuple[list[str], list[str]]:
    """Returns the logs that are too large, and those that are missing."""
    large, missing = [], []
    for log in logs:
        try:
            if os.stat(log).st_size >= limits.max_bytes:
                large.append(log)
        except OSError:
            missing.append(log)
    return large, missing


def rotate_log(path: str, limits: LogLimits) -> str | None:
    """Renames a log of a container runtime if it is too large, as kubelet does, and removes the oldest.

    Returns the new name, or None if there was nothing to do. The log may be missing: an agent renamed it and was
    killed before it called the runtime, or the log was removed (then ""). In both cases the runtime has to open a new
    log.
    """
    directory, name = os.path.split(path)
    try:
        rotated = rotated_files(directory, name)
        if not os.path.exists(path):
            return os.path.join(directory, rotated[-1]) if rotated else ""
        if os.stat(path).st_size < limits.max_bytes:
            return None
        target = f"{path}.{stamp_of(int(time.time()))}"
        if os.path.exists(target):
            return None
        os.rename(path, target)
        remove_oldest(directory, rotated, limits.max_files)
    except OSError:
        return None
    return target


def fit_rotated(newest: str, log: str, limits: LogLimits) -> None:
    """Keeps the rotated logs of a container within the room that they have together. The oldest give way first."""
    room = limits.max_bytes * max(limits.max_files - 1, 1)
    shorten_log(newest, room)
    directory, name = os.path.split(log)
    with suppress(OSError):
        for other in reversed(rotated_files(directory, name)):
            path = os.path.join(directory, other)
            room -= os.stat(path).st_size
            if room < 0 and path != newest:
                os.unlink(path)


def shorten_log(path: str, max_bytes: int) -> None:
    """Leaves the last `max_bytes` of a log to which no process writes any more, from the beginning of an entry on. An
    entry says that something is missing."""
    # The temporary file has a fixed name: if the agent is killed now, the next shortening replaces it.
    short = os.path.join(os.path.dirname(path), _SHORT)
    with suppress(OSError):
        try:
            with open(path, "rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size <= max_bytes:
                    return
                log.seek(size - max_bytes)
                log.readline(max_bytes)  # the rest of an entry
                begins_at = log.tell()
                timestamp = log.read(_TIMESTAMP_BYTES).partition(b" ")[0]
                log.seek(begins_at)
                with open(
                    short, "wb", opener=partial(os.open, mode=os.fstat(log.fileno()).st_mode & 0o777)
                ) as file:
                    file.write(loss(timestamp, begins_at, _WHY))
                    while part := log.read(_COPY_BYTES):
                        file.write(part)
            os.rename(short, path)
        except OSError:
            os.unlink(short)
