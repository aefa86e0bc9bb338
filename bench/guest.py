"""Runs benchmarks that use up or change a machine in a disposable virtual machine."""

import subprocess
import sys

from evenkeel.named_tuples import NamedTuple


class Guest(NamedTuple):
    machine: str  # one of tests.machines
    name: str
    memory_mib: int
    time_limit_seconds: int


def lines_from(guest: Guest, module: str, *arguments: str) -> tuple[list[str], str]:
    """The output of the module when it is run there, and the error; empty if there was none."""
    command = [
        sys.executable, "-m", "tests.machines", "run", guest.machine, "--name", guest.name, "--cpus", "2",
        "--memory", str(guest.memory_mib), "--time-limit", str(guest.time_limit_seconds), "--",
        "python", "-m", module, *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    trouble = ""
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-5:]
        trouble = f"exit status {done.returncode}: {' / '.join(last)}"
    return done.stdout.splitlines(), trouble
