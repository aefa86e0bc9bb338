"""`python -m tests.machines.rounds N SEED PYTEST-ARGUMENTS…`: the same tests N times, on the machine that this runs on.

Each round has a seed, one more than the last: it is EVENKEEL_SEED for storms and crash stories, and the seed of
Hypothesis and of Python's hashes. A round with an odd seed runs beside two processes that use all they get of the
processors, so that a seed says all there is to say of a round.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.machines.ending import as_by_interrupt
from tests.machines.reports import RoundBegan, RoundEnded, line

BUSY_LOOPS = 2
# Each ends by itself then, whatever became of this process.
BUSY_SECONDS = 3600
_LOOP = f"import time\nend = time.monotonic() + {BUSY_SECONDS}\nwhile time.monotonic() < end: pass"


def main(arguments: Sequence[str]) -> int:
    as_by_interrupt()
    rounds, seed, *tests = arguments
    failed = 0
    for number in range(int(rounds)):
        status = one_round(number + 1, int(seed) + number, tests)
        failed += bool(status)
        if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            break  # the next round would say the same
    return 1 if failed else 0


def one_round(number: int, seed: int, tests: Sequence[str]) -> int:
    """Run the tests once; pytest's exit status."""
    is_loaded = seed % 2 == 1
    print(line(RoundBegan(number, seed, is_loaded)), flush=True)
    began = time.monotonic()
    variables = {"EVENKEEL_SEED": str(seed), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-m", "pytest", f"--hypothesis-seed={seed}", *tests]
    with busy_loops(BUSY_LOOPS if is_loaded else 0):
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command], env={**os.environ, **variables}
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:  # it removes what is its own before it goes
            process.terminate()
            process.wait()
            raise
    print(line(RoundEnded(status, time.monotonic() - began)), flush=True)
    return status


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """So many processes that use all they get of the processors; they are gone at the end."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(count):
            command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-S", "-c", _LOOP]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        yield pids


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
