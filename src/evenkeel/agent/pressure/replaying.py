"""Every decision in the journal, made again from what it was made on (E14)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evenkeel.agent.journal import Decision as Recorded
from evenkeel.agent.journal import Journal
from evenkeel.agent.journal_text import Unreadable
from evenkeel.agent.pressure import cpu_recording, recording, stall_recording
from evenkeel.agent.pressure.recording import Step


class Again(NamedTuple):
    """One decision as it was and as it is made now. `step` is there where others could be made of it."""

    record: Recorded
    was: Mapping[str, object]
    now: Mapping[str, object] = {}
    unreadable: str = ""
    step: Step | None = None

    @property
    def differs(self) -> tuple[str, ...]:
        """What is not the same."""
        return tuple(name for name, value in self.now.items() if self.was.get(name) != value)


def made_again(journal: Journal, after: int = 0) -> Iterator[Again]:
    """Those after the given number, oldest first."""
    for record in journal.decisions(after=after):
        was = record.decision if isinstance(record.decision, dict) else {}
        try:
            if record.kind == recording.KIND:
                step, now = recording.replayed(record)
                yield Again(record, was, now, step=step)
            elif record.kind == cpu_recording.KIND:
                yield Again(record, was, cpu_recording.replayed(record)[1])
            elif record.kind == stall_recording.KIND:
                yield Again(record, was, stall_recording.replayed(record))
            else:
                yield Again(record, was, unreadable=f"decisions of kind {record.kind} are not known")
        except Unreadable as error:
            yield Again(record, was, unreadable=str(error))
