"""Reports of pytest about each test, as lines that another process reads.

As a plugin (`-p tests.machines.reports`) it writes into pytest's own output: a guest has one way out, and a run that is
killed has said what it had done. `read` finds the lines there again.
"""

import json
from typing import NamedTuple

import pytest

# Begins what is for the reader, up to the end of its line; pytest's dots may stand before it.
MARK = "@evenkeel-test "
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Collected(NamedTuple):
    tests: int


class Began(NamedTuple):
    test: str


class Ended(NamedTuple):
    """`text` is what pytest has to say of a failure, with what the test printed."""

    test: str
    outcome: str
    seconds: float
    text: str = ""


class RoundBegan(NamedTuple):
    """One of several runs of the same tests (tests/machines/rounds.py)."""

    number: int
    seed: int
    is_loaded: bool


class RoundEnded(NamedTuple):
    status: int
    seconds: float


Report = Collected | Began | Ended | RoundBegan | RoundEnded
KINDS: dict[str, type[Report]] = {
    kind.__name__: kind for kind in (Collected, Began, Ended, RoundBegan, RoundEnded)
}


def line(report: Report) -> str:
    return f"{MARK}{json.dumps({'is': type(report).__name__, **report._asdict()})}"


def read(said: str) -> Report | None:
    """The report in a line of output, or None if the line is for people."""
    _, mark, written = said.partition(MARK)
    if not mark:
        return None
    fields = json.loads(written)
    return KINDS[fields.pop("is")](**fields)


class Reporter:
    """Writes a report of each test as it ends, whichever of its three phases failed."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._phases: list[pytest.TestReport] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(Collected(len(session.items)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Ended(report.nodeid, FAILED, 0.0, report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._phases = []
        self._write(Began(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcomes = {phase.outcome for phase in self._phases}
        outcome = FAILED if FAILED in outcomes else SKIPPED if SKIPPED in outcomes else PASSED
        texts = [_text(phase) for phase in self._phases if phase.failed]
        self._write(Ended(nodeid, outcome, sum(phase.duration for phase in self._phases), "\n".join(texts)))

    def _write(self, report: Report) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_line(line(report))
        self._terminal.flush()


@pytest.hookimpl(trylast=True)  # after the terminal has its reporter
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    config.pluginmanager.register(Reporter(terminal))


def _text(phase: pytest.TestReport) -> str:
    printed = [f"----- {title} -----\n{content}" for title, content in phase.sections]
    return "\n".join([phase.longreprtext, *printed])
