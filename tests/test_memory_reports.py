"""Reports of the watch over memory, as the agent records them. With a real watch: tests/kernel/test_watch.py."""

import json
from typing import Any

import pytest

from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.snapshot import NodeFigures, Snapshot
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.memory.memory_reports import MemoryReports
from evenkeel.pressure.watch.messages import Message, step_plain
from tests.models.memory_files import IgnoredReports


class Records(IgnoredReports):
    """Counts the decisions that are recorded. `fails`: the journal cannot be written."""

    def __init__(self) -> None:
        self.steps = 0
        self.fails = False

    def stepped(self, *_: object) -> None:
        self.steps += 1

    def commit(self) -> None:
        if self.fails:
            raise JournalError("the disk is full")


def report(number: int, began_at: float) -> Message:
    snapshot, settings = Snapshot(1.0, NodeFigures(), ()), Settings()
    step = Step(State(), snapshot, (), settings, decide(State(), snapshot, (), settings)[1])
    message: dict[str, Any] = {
        "event": "report",
        "number": number,
        "kind": "stepped",
        "step": step_plain(step, {}),
        "timing": [began_at, None, False],
    }
    return json.loads(json.dumps(message))


@pytest.mark.req("E14")
def test_a_report_that_is_repeated_to_the_same_agent_is_recorded_once(tmp_path):
    records = Records()
    heard: list[int] = []
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        made: Any = records
        reports = MemoryReports(journal, made, made, made, made, made, heard.append)
        reports.take(report(1, 5.0))
        reports.take(report(2, 6.0))
        reports.take(report(1, 5.0))  # the connection was lost before the watch had read that it was heard
        assert (records.steps, heard) == (2, [1, 2, 1])
        records.fails = True
        reports.take(report(3, 7.0))
        records.fails = False
        reports.take(report(3, 7.0))  # it is not in the journal yet
        assert (records.steps, heard) == (4, [1, 2, 1, 3])
