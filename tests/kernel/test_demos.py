"""The three demonstrations, as a user runs them: the promise holds, and nothing of them is left (A25)."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.cgroups import hierarchies
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

TIME_LIMIT_SECONDS = 240  # an emulated machine imports Python for seconds


@contextmanager
def demo(name: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A demonstration; in the end it is over, and has left nothing: no cgroup, no state, no process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evenkeel", "demo", name, "--time-limit", str(TIME_LIMIT_SECONDS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        process.stdout.close()
    assert not list(directory.iterdir())
    assert not [top for top in hierarchies().values() if (top / f"evenkeel-demo-{process.pid}").exists()]
    eventually(lambda: not processes_of(directory))


def processes_of(state: Path) -> list[str]:
    """Those that were told of a directory: a keeper would be."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(state) in command.read_text(errors="replace"):
                found.append(command.parent.name)
        except OSError:  # it has just ended
            continue
    return found


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="evenkeel-test-") as path:
        yield Path(path)


def verdict(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=TIME_LIMIT_SECONDS + 60)
    assert process.returncode == 0, said
    return said[said.index("\nheld: ") + 1 :]


@pytest.mark.req("A25", "A5", "A17")
def test_guaranteed_pods_survive_a_barrage_of_best_effort_ones(directory: Path):
    with demo("guaranteed", directory) as process:
        told = verdict(process)
    assert "2 of 2 Guaranteed pods live, never restarted" in told
    assert "6 of 6 BestEffort pods were OOM-killed and evicted" in told


@pytest.mark.req("A25", "A16", "A17")
def test_a_node_full_of_best_effort_pods_is_emptied_by_arriving_guaranteed_ones(directory: Path):
    with demo("besteffort", directory) as process:
        told = verdict(process)
    assert "3 of 3 Guaranteed pods have" in told
    assert "5 of 5 BestEffort pods were OOM-killed and evicted" in told
    assert "agent and keeper are unharmed" in told


@pytest.mark.req("A25", "A4", "A11")
def test_who_requests_no_cpu_has_all_of_it_alone_and_a_sliver_beside_one_who_does(directory: Path):
    with demo("cpu", directory) as process:
        told = verdict(process)
    found = re.search(r"beside one with a request ([\d.]+) % against ([\d.]+) %", told)
    assert found is not None, told
    squeezed, requester = map(float, found.groups())
    assert squeezed < requester / 10


@pytest.mark.req("A25")
def test_a_demonstration_that_is_interrupted_removes_everything_too(directory: Path):
    with demo("guaranteed", directory) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "Started" in line)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # whoever is impatient gets no less
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
        assert "everything is removed" in rest
