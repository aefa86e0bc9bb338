"""The table of attempts that the agent knows: each attempt that runs, or that has ended and was not forgotten."""

import asyncio

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.interface import Attempt, Exit, Record
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor_protocol import ExitFile, Message, ProcessFile
from evenkeel.runtime.procfs import Process


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
