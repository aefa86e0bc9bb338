"""How attempts end: they are asked to, they are killed, and each exit is recorded once.

A stop needs no supervisor. It may hang, and a container must end all the same.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from evenkeel.cgroup.driver import CgroupError
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.interface import Attempt, Exit, Exited, RuntimeEvent
from evenkeel.runtime.paths import StatePaths, read_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.attempt_table import AttemptTable
from evenkeel.runtime.process.supervisor_protocol import ExitFile, ProcessFile

_KILLED_SECONDS = 10.0  # time for the supervisor to record the end, after the cgroup was killed


class AttemptEnds:
    """`starting` are the attempts whose start is not answered yet: their exits are recorded after the answer. `kill`
    kills a cgroup, `record` takes events, and `run_task` runs what nobody waits for."""

    def __init__(
        self,
        paths: StatePaths,
        attempts: AttemptTable,
        starting: Collection[Attempt],
        kill: Callable[[str], Coroutine[Any, Any, None]],
        record: Callable[[RuntimeEvent], None],
        run_task: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._paths = paths
        self._attempts = attempts
        self._starting = starting
        self._kill = kill
        self._record = record
        self._run_task = run_task

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        """Raises EvenkeelError if its process cannot be killed."""
        if not self._attempts.runs(attempt):
            return
        ended = self._attempts.end_of(attempt)
        if grace_seconds > 0:
            self._signal(attempt, self._stop_signal(attempt))
            await asyncio.wait([ended], timeout=grace_seconds)
        process = self._attempts.process(attempt)
        if not ended.done() and process is not None:
            await self._kill(process.cgroup)
            # Its processes may be in another cgroup by now (B13). When the first process of a pid namespace is
            # killed, all processes of the namespace end.
            self._signal(attempt, signal.SIGKILL)
        await asyncio.wait([ended], timeout=_KILLED_SECONDS)
        if not ended.done() and process is not None and not supervisor_protocol.is_running(process):
            # The process has ended. Only the supervisor knows how, and the supervisor hangs.
            self.note(attempt, supervisor_protocol.unknown(process.started_at, time.time()))
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
        process = self._attempts.process(attempt)
        if process is not None:
            supervisor_protocol.send_signal(process, number)

    def note(self, attempt: Attempt, ended: ExitFile) -> None:
        """Takes an exit that the supervisor reported."""
        process = self._attempts.process(attempt)
        if process is None or process.has_pid_namespace:
            self._record_once(attempt, ended)
        else:
            self._run_task(self._record_after_kill(attempt, process, ended))

    async def note_found(self, attempt: Attempt, process: ProcessFile, ended: ExitFile) -> None:
        """Takes an exit from a time when there was no agent. Returns when it is recorded."""
        self._attempts.note_dead(attempt, process)
        if process.has_pid_namespace:
            self._record_once(attempt, ended)
        else:
            await self._record_after_kill(attempt, process, ended)

    async def _record_after_kill(self, attempt: Attempt, process: ProcessFile, ended: ExitFile) -> None:
        """Without a pid namespace, the other processes do not end with the first one. They are killed here."""
        with suppress(CgroupError):
            await self._kill(process.cgroup)
        self._record_once(attempt, ended)

    def _record_once(self, attempt: Attempt, ended: ExitFile) -> None:
        """Records each exit once, and only if the container was known to run.

        Other exits are in the table from the beginning.
        """
        if self._attempts.note_end(attempt, ended) and attempt not in self._starting:
            self._record(Exited(attempt, Exit(*ended)))
