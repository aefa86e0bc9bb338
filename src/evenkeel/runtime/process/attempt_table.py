"""The table of attempts that the agent knows: each attempt that runs, or that has ended and was not forgotten. And how
attempts end.

An attempt is asked to end, or killed, and each exit is recorded once. A stop does not need the supervisor: the
supervisor may hang, and a container must end all the same."""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from evenkeel.cgroup.driver import CgroupError
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.interface import Attempt, Exit, Exited, Record, RuntimeEvent
from evenkeel.runtime.paths import StatePaths, read_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor_protocol import ExitFile, Message, ProcessFile
from evenkeel.runtime.procfs import Process

_KILLED_SECONDS = 10.0  # time for the supervisor to record the end, after the cgroup was killed


class Listed(NamedTuple):
    """One attempt, as recorded by the supervisor or on disk."""

    attempt: Attempt
    process: ProcessFile
    ended: ExitFile | None


class AttemptTable:
    def __init__(self) -> None:
        self.records: dict[Attempt, Record] = {}
        self._processes: dict[Attempt, ProcessFile] = {}
        self._ends: dict[Attempt, asyncio.Future[None]] = {}

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self.records

    def process(self, attempt: Attempt) -> ProcessFile | None:
        return self._processes.get(attempt)

    def pids(self) -> set[int]:
        return {process.pid for process in self._processes.values()}

    def runs(self, attempt: Attempt) -> bool:
        record = self.records.get(attempt)
        return record is not None and record.exit is None

    def has_ended(self, attempt: Attempt) -> bool:
        record = self.records.get(attempt)
        return record is not None and record.exit is not None

    def end_of(self, attempt: Attempt) -> "asyncio.Future[None]":
        """Returns a future that is done when the attempt, which runs now, has ended."""
        future = self._ends.get(attempt)
        if future is None:
            future = self._ends[attempt] = asyncio.get_running_loop().create_future()
        return future

    def note_process(self, attempt: Attempt, process: ProcessFile) -> None:
        self._processes[attempt] = process
        if attempt not in self.records:
            first = Process(process.pid, process.ticks)
            self.records[attempt] = Record(attempt, first, process.started_at, notes=process.notes)

    def note_end(self, attempt: Attempt, ended: ExitFile) -> bool:
        """Records an exit. Returns whether the attempt was known to run until now: only then is the exit new."""
        if self.has_ended(attempt):
            return False
        before = self.records.get(attempt)
        process = self._processes.get(attempt)
        first = None if process is None else Process(process.pid, process.ticks)
        notes = () if process is None else process.notes
        self.records[attempt] = Record(attempt, first, ended.started_at, Exit(*ended), notes)
        future = self._ends.pop(attempt, None)
        if future is not None and not future.done():
            future.set_result(None)
        return before is not None

    def note_dead(self, attempt: Attempt, process: ProcessFile) -> None:
        """Records the process of an attempt whose exit is recorded next."""
        self._processes[attempt] = process

    def forget(self, attempt: Attempt) -> None:
        self.records.pop(attempt, None)
        self._processes.pop(attempt, None)


def listed_on_disk(attempt: Attempt, directory: str) -> Listed | None:
    """Reads the files of an attempt. Returns None if the attempt was never started."""
    process, ended = supervisor_protocol.read_process(directory), supervisor_protocol.read_exit(directory)
    if process is None and ended is not None:  # the process is no longer needed
        process = ProcessFile(0, 0, "", (), ended.started_at, has_pid_namespace=True)
    return None if process is None else Listed(attempt, process, ended)


def listed(message: Message) -> Listed | None:
    """Reads a record that the supervisor sent; None if the message is not a record."""
    process = supervisor_protocol.process_from(message)
    if process is None:
        return None
    ended = message.get("exit")
    return Listed(
        Attempt(*message["attempt"]), process, supervisor_protocol.from_json(ended) if ended else None
    )


def _is_running(attempt: Attempt, process: ProcessFile) -> bool:
    try:
        return supervisor_protocol.is_running(process)
    except OSError as error:
        raise EvenkeelError(
            f"container {attempt.container} was killed, and its process cannot be looked at: {reason(error)}"
        ) from None


class AttemptEnds:
    """`starting` are the attempts whose start is not answered yet: their exits are recorded after the answer. `kill`
    kills a cgroup, `record` takes events, and `run_task` runs work that no caller waits for."""

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
        if not ended.done() and process is not None and not _is_running(attempt, process):
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
        plan: dict[str, Any] = {}
        with suppress(OSError):  # no descriptor is left to look
            plan = read_json(self._paths.attempt(*attempt), supervisor_protocol.LAUNCH) or {}
        number = plan.get("stop_signal")
        return number if isinstance(number, int) and 0 < number < signal.NSIG else signal.SIGTERM

    def _signal(self, attempt: Attempt, number: int) -> None:
        """Sends the signal directly, because the supervisor may hang."""
        process = self._attempts.process(attempt)
        if process is not None:
            with suppress(OSError):  # no descriptor is left for it; the cgroup is killed in any case
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
