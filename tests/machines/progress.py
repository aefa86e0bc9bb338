"""The progress of a run's parts, as lines and as a table for people.

Time is given and nothing is printed, so that every line can be tested.
"""

import heapq
import shlex
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from tests.machines.parts import Part
from tests.machines.reports import FAILED, PASSED, SKIPPED, Began, Collected, Ended, Report

# Of what pytest says of a failure; the log of the part has all of it.
SHOWN_LINES = 60
# Of a machine that died, below the table; more of them are where it happened.
LAST_WORDS = 12


class Progress:
    """One part from its start to its end, by the clock of the run, which began at `run_began`; `expected` are the
    seconds that its tests took the last time."""

    def __init__(self, part: Part, run_began: float, began: float, expected: Mapping[str, float]) -> None:
        self.part = part
        self.began = began
        self.took_seconds: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._run_began = run_began
        self._expected = expected
        self._collected: int | None = None
        self._now = ""

    def note(self, report: Report) -> None:
        match report:
            case Collected(tests):
                self._collected = tests
            case Began(test):
                self._now = test
            case Ended(test, outcome, seconds, text):
                self.outcomes[test] = outcome
                if outcome == FAILED:
                    self.reasons[test] = reason_in(text)
                self.took_seconds[test] = seconds
                self._now = ""

    def count(self, outcome: str) -> int:
        return sum(1 for one in self.outcomes.values() if one == outcome)

    @property
    def unfinished(self) -> str:
        """The test that had begun and not ended: where a machine ends before its tests, that is what it died of."""
        return self._now

    @property
    def state(self) -> str:
        """`v2-agents 31 of 61, 1 failed`."""
        if self._collected is None:
            return f"{self.part.name} is getting ready"
        failed = f", {self.count(FAILED)} failed" if self.count(FAILED) else ""
        return f"{self.part.name} {len(self.outcomes)} of {self._collected}{failed}"

    def started(self) -> str:
        return f"{self._head(self.began)} starts"

    def ended(self, now: float) -> str:
        """`12:05  v2-agents  61 passed in 8:40`."""
        counts = [(self.count(outcome), outcome) for outcome in (PASSED, FAILED, SKIPPED)]
        said = ", ".join(f"{count} {outcome}" for count, outcome in counts if count) or "no test has run"
        return f"{self._head(now)} {said} in {_clock(now - self.began)}"

    def failure(self, report: Ended, now: float, python: str) -> str:
        """What pytest says of the failure, and the command that repeats just that test."""
        lines = report.text.splitlines()
        left_out = [f"({len(lines) - SHOWN_LINES} lines more in the log)"] if len(lines) > SHOWN_LINES else []
        shown = [*left_out, *lines[-SHOWN_LINES:]]
        head = f"{self._head(now)} FAILED {report.test}"
        return "\n".join(
            [head, *(f"    {line}" for line in shown), f"  again: {self.repeat(report.test, python)}"]
        )

    def repeat(self, test: str, python: str) -> str:
        part = self.part
        variables = [f"{name}={value}" for name, value in part.variables.items()]
        if not part.needs_kernel:
            return shlex.join([*variables, python, "-m", "pytest", test])
        cpus = ["--cpus", str(part.cpus)] if part.machine != "host" else []
        command = [python, "-m", "tests.machines", "test", part.machine, *cpus, "--", test]
        return shlex.join([*variables, *command])

    def left_seconds(self, now: float) -> float:
        """What the tests still to come took the last time, at the pace of this time. Where that is not known, what the
        part usually takes, by the number of its tests."""
        known_done = sum(self._expected.get(test, 0.0) for test in self.outcomes)
        known_todo = sum(seconds for test, seconds in self._expected.items() if test not in self.outcomes)
        if known_done and known_todo:
            return known_todo * (now - self.began) / known_done
        return self.part.usual_seconds * (1 - len(self.outcomes) / (self._collected or 1))

    def _head(self, now: float) -> str:
        return f"{_clock(now - self._run_began):>6}  {self.part.name:<10}"


def reason_in(text: str) -> str:
    """The line of what pytest says of a failure that says most: its first `E`, or the last one of any kind."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    return (marked[:1] or lines[-1:] or ["no word of why"])[0]


def line(
    passed_seconds: float, left_seconds: float, running: Sequence[Progress], waiting: Sequence[Part]
) -> str:
    """`7:00  about 13 min left: host 134 of 401, 2 failed; systemd 1 of 95; then v1, host-alone`."""
    said = [progress.state for progress in running]
    if waiting:
        said.append(f"then {', '.join(part.name for part in waiting)}")
    return f"{_clock(passed_seconds):>6}  about {_rough(left_seconds)} left: {'; '.join(said)}"


class Lane(NamedTuple):
    """Parts that run beside each other in `places`: the seconds that running parts still need, and those that waiting
    parts will take, in their order."""

    running: Sequence[float]
    waiting: Sequence[float]
    places: int

    def left_seconds(self) -> float:
        busy = [*self.running, *[0.0] * (self.places - len(self.running))]
        heapq.heapify(busy)
        for seconds in self.waiting:
            heapq.heappush(busy, heapq.heappop(busy) + seconds)
        return max(busy)


def whole_left_seconds(lanes: Sequence[Lane], alone: Sequence[float]) -> float:
    """How long it takes until all parts have ended: those of the lanes, and those that then run alone, one after the
    other."""
    return max(lane.left_seconds() for lane in lanes) + sum(alone)


class Result(NamedTuple):
    """`note` says why a part ended that has not run its tests, `last` are the last lines that it said then."""

    progress: Progress
    seconds: float
    status: int
    note: str
    last: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        if self.note:
            return self.note
        return "passed" if self.status == 0 else "failed"


def table(results: Sequence[Result], seconds: float) -> str:
    """One row for each part, what failed and why in a line each, and a last line as pytest's own.

    The end of a log is what people look at first, and at times all that they are given of it.
    """
    rows: list[tuple[str, ...]] = [("machine", "passed", "failed", "skipped", "time", "verdict")]
    for result in results:
        counts = (str(result.progress.count(outcome)) for outcome in (PASSED, FAILED, SKIPPED))
        rows.append((result.progress.part.name, *counts, _clock(result.seconds), result.verdict))
    failures = [line for result in results for line in failures_of(result)]
    return "\n".join([*aligned(rows, right=range(1, 5)), *failures, closing(results, seconds)])


def failures_of(result: Result) -> list[str]:
    """`FAILED v2-agents tests/kernel/test_x.py::test_y: assert 1 == 2`; of a machine that died, its last words."""
    name = result.progress.part.name
    tests = [f"FAILED {name} {test}: {reason}" for test, reason in result.progress.reasons.items()]
    words = [f"    {line}" for line in result.last[-LAST_WORDS:]]
    return [*tests, *([f"ENDED {name}, its last words:", *words] if words else [])]


def aligned(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Rows of a table with their columns below each other, those of `right` by their right edge, the last as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for *cells, last in rows:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join([*padded, last]))
    return lines


def closing(results: Sequence[Result], seconds: float) -> str:
    """`1203 passed, 2 failed, 3 skipped in 852.10s (0:14:12)`, and what ended without its tests."""
    totals = {
        outcome: sum(result.progress.count(outcome) for result in results)
        for outcome in (PASSED, FAILED, SKIPPED)
    }
    said = [f"{count} {outcome}" for outcome, count in totals.items() if count or outcome == PASSED]
    broken = [
        result.progress.part.name for result in results if result.status and not result.progress.count(FAILED)
    ]
    if broken:
        said.append(
            f"{len(broken)} machine{'s' if len(broken) > 1 else ''} ended early ({', '.join(broken)})"
        )
    whole = int(seconds)
    return f"{', '.join(said)} in {seconds:.2f}s ({whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02})"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _rough(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds >= 90 else f"{max(10, round(seconds, -1)):.0f} s"
