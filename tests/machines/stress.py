"""`make stress`: chosen tests many times on one machine, a line a round, the log of each round that failed, a table.

A test that fails once in twenty is a defect of the code or of the test, and a busy machine is when it shows.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.machines import PROJECT
from tests.machines.progress import aligned
from tests.machines.reports import FAILED, PASSED, Began, Ended, RoundBegan, RoundEnded, read
from tests.machines.run import Request

KEPT = PROJECT / ".cache" / "stress"


class Round(NamedTuple):
    """`failed` are its tests that failed, or in which it ended."""

    seed: int
    is_loaded: bool
    failed: tuple[str, ...]
    log: Path | None


def run_stress(request: Request, tests: Sequence[str], *, rounds: int, seed: int) -> int:
    """Run `tests` so often and show what failed; 0 if nothing did. The seeds begin with `seed`."""
    directory = KEPT / f"{request.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = command_of(request, tests, rounds, seed)
    watched = Watched(rounds, directory, sys.stdout)
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", *command],
        cwd=PROJECT,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # ^C is for us
    ) as process:
        assert process.stdout
        try:
            watched.read(process.stdout)
        except (KeyboardInterrupt, SystemExit):
            print("interrupted: the round that was under way does not count", flush=True)
            process.terminate()
            process.stdout.read()  # to its end: it removes what is its own before it goes
        else:
            watched.end()
        status = process.wait()
    print(f"\n{table(watched.rounds)}", flush=True)
    return status or (0 if watched.rounds else 1)


def command_of(request: Request, tests: Sequence[str], rounds: int, seed: int) -> list[str]:
    return [
        sys.executable, "-m", "tests.machines", "rounds", request.machine, "--name", request.name,
        "--time-limit", str(request.time_limit_seconds), "--memory", str(request.memory_mib),
        "--cpus", str(request.cpus), "--rounds", str(rounds), "--seed", str(seed), "--", *tests,
    ]  # fmt: skip


class Watched:
    """Reads the output of rounds, says a line of each, and keeps what a failing one said below `directory`."""

    def __init__(self, rounds: int, directory: Path, shown: TextIO) -> None:
        self.rounds: list[Round] = []
        self._of = rounds
        self._directory = directory
        self._shown = shown
        self._began: RoundBegan | None = None
        self._said: list[str] = []
        self._outcomes: dict[str, str] = {}

    def read(self, output: Iterable[str]) -> None:
        for said in output:
            said = said.rstrip("\r\n")
            match read(said):
                case None if self._began:
                    self._said.append(said)
                case None:  # before the first round and after the last: what the machine says of itself
                    self._show(said)
                case RoundBegan() as began:
                    self._began, self._said, self._outcomes = began, [], {}
                case Began(test):
                    self._outcomes[test] = FAILED  # until it has ended
                case Ended(test, outcome, _, text):
                    self._outcomes[test] = outcome
                    self._said += [f"{outcome}: {test}", *text.splitlines()]
                case RoundEnded(status, seconds):
                    self._end_round(status, f"in {seconds:.0f} s")

    def end(self) -> None:
        """The output has ended; a round that had not is one that failed."""
        if self._began:
            self._end_round(1, "and ended before its tests did")

    def _end_round(self, status: int, how: str) -> None:
        began = self._began
        assert began
        log = self._keep(began) if status else None
        self._show(
            f"{self._counted(began, status)} {how}{f', log {os.path.relpath(log, PROJECT)}' if log else ''}"
        )
        failed = tuple(test for test, outcome in self._outcomes.items() if outcome == FAILED)
        self.rounds.append(Round(began.seed, began.is_loaded, failed, log))
        self._began = None

    def _counted(self, began: RoundBegan, status: int) -> str:
        counts = Counter(self._outcomes.values())
        load = "beside load" if began.is_loaded else "alone"
        said = f"round {began.number} of {self._of}, seed {began.seed}, {load}: {counts[PASSED]} passed"
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            return f"{said}, no test fits this machine (name another with MACHINE=…)"
        return f"{said}, {counts[FAILED]} failed" if status else said

    def _keep(self, began: RoundBegan) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / f"round-{began.number}-seed-{began.seed}.txt"
        log.write_text("\n".join([*self._said, ""]))
        return log

    def _show(self, line: str) -> None:
        print(line, file=self._shown, flush=True)


def table(rounds: Sequence[Round]) -> str:
    """Each test that failed, how often alone and beside load, and the seeds of those rounds."""
    loaded = [one for one in rounds if one.is_loaded]
    alone = [one for one in rounds if not one.is_loaded]
    rows: list[tuple[str, ...]] = [("failed", "alone", "beside load", "seeds")]
    for test in sorted({test for one in rounds for test in one.failed}):
        failed = [one for one in rounds if test in one.failed]
        counts = (f"{sum(one in failed for one in some)} of {len(some)}" for some in (alone, loaded))
        rows.append((test, *counts, " ".join(str(one.seed) for one in failed)))
    lines = aligned(rows, right=()) if len(rows) > 1 else []
    where = sorted({os.path.relpath(one.log.parent, PROJECT) for one in rounds if one.log})
    if where:
        lines.append(f"the logs of the rounds that failed are in {', '.join(where)}")
    failed_rounds = sum(1 for one in rounds if one.log)
    return "\n".join([*lines, f"{len(rounds) - failed_rounds} rounds passed, {failed_rounds} failed"])
