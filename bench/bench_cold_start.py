"""`evenkeel explain` from a cold shell, beside the same interpreter that does nothing at all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.figure import Figure, against, failed, ratio_at_most

ROUNDS = 25
NAME = "evenkeel explain from a cold shell, against python3 -c pass"
TARGET = ratio_at_most(6)

# The script beside the interpreter, not resolved: a virtual environment's python is a link out of it.
INTERPRETER = Path(sys.executable)
EXPLAIN = [str(INTERPRETER.with_name("evenkeel")), "explain", "-f", "examples/", "--node", "32Gi,8cpu"]
PASS = [str(INTERPRETER), "-c", "pass"]
ROOT = Path(__file__).parent.parent
# An installed program has its modules compiled; where that is forbidden the compiler would be measured too.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def figures() -> Iterator[Figure]:
    try:
        # Once for the page cache and the compiled files, and to see that the command does its job at all.
        for command in (PASS, EXPLAIN):
            run(command, output=subprocess.PIPE)
        rounds = [(milliseconds(EXPLAIN), milliseconds(PASS)) for _ in range(ROUNDS)]
    except (OSError, CommandError) as error:
        yield failed(NAME, str(error), TARGET)
        return
    yield against(NAME, [ours for ours, _ in rounds], [theirs for _, theirs in rounds], "ms", TARGET)


class CommandError(Exception):
    """The command did not do what was to be measured."""


def run(command: list[str], output: int) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise CommandError(
            f"{' '.join(command)} exited with {done.returncode}: {''.join(last) or 'no message'}"
        )
    if command is EXPLAIN and output == subprocess.PIPE and not done.stdout.strip():
        raise CommandError(f"{' '.join(command)} printed nothing")


def milliseconds(command: list[str]) -> float:
    start = perf_counter()
    run(command, output=subprocess.DEVNULL)
    return 1000 * (perf_counter() - start)
