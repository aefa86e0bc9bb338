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

from tests.kernel.cgroups import hierarchies, named_hierarchies
from tests.kernel.waiting import eventually
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd

pytestmark = pytest.mark.cgroup("v1", "v2")

TIME_LIMIT_SECONDS = 240  # an emulated machine imports Python for seconds


RUNTIMES = ("process", "cri")


class Demos:
    """How demonstrations are run: with which runtime, and where they keep what they write."""

    def __init__(self, directory: Path, containerd: Containerd | None) -> None:
        self.directory = directory
        self.containerd = containerd

    @property
    def flags(self) -> list[str]:
        if self.containerd is None:
            return []
        return ["--runtime-endpoint", self.containerd.endpoint, "--image", TEST]


@contextmanager
def demo(name: str, demos: Demos) -> Iterator[subprocess.Popen[str]]:
    """A demonstration; in the end it is over, and has left nothing: no cgroup, no state, no process, no container."""
    directory = demos.directory
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "evenkeel",
            "demo",
            name,
            "--time-limit",
            str(TIME_LIMIT_SECONDS),
            *demos.flags,
        ],
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
            process.wait(TIME_LIMIT_SECONDS)
        process.stdout.close()
    assert not list(directory.iterdir())
    tops = [*hierarchies().values(), *named_hierarchies()]
    assert not [top for top in tops if (top / f"evenkeel-demo-{process.pid}").exists()]
    assert demos.containerd is None or not demos.containerd.containers()
    eventually(lambda: not processes_of(directory))


def processes_of(state: Path) -> list[str]:
    """The processes that have the directory among their arguments, such as a supervisor."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(state) in command.read_text(errors="replace"):
                found.append(command.parent.name)
        except OSError:  # it has just ended
            continue
    return found


@pytest.fixture(params=RUNTIMES)
def demos(request: pytest.FixtureRequest) -> Iterator[Demos]:
    containerd = request.getfixturevalue("containerd") if request.param == "cri" else None
    with tempfile.TemporaryDirectory(prefix="evenkeel-test-") as path:
        yield Demos(Path(path), containerd)


def verdict(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=TIME_LIMIT_SECONDS + 60)
    assert process.returncode == 0, said
    return said[said.index("\nheld: ") + 1 :]


@pytest.mark.req("A25", "A5", "A17")
def test_guaranteed_pods_survive_a_barrage_of_best_effort_ones(demos: Demos):
    with demo("guaranteed", demos) as process:
        reported = verdict(process)
    assert "2 of 2 Guaranteed pods run, never restarted" in reported
    assert "6 of 6 BestEffort pods were OOM-killed and evicted" in reported


@pytest.mark.req("A25", "A16", "A17")
def test_a_node_full_of_best_effort_pods_is_emptied_by_arriving_guaranteed_ones(demos: Demos):
    with demo("besteffort", demos) as process:
        reported = verdict(process)
    assert "3 of 3 Guaranteed pods have" in reported
    assert "5 of 5 BestEffort pods were OOM-killed and evicted" in reported
    runtime = "supervisor" if demos.containerd is None else "container runtime"
    assert f"agent and {runtime} are unharmed" in reported


@pytest.mark.req("A25", "A4", "A11")
def test_a_pod_without_a_cpu_request_has_all_of_it_alone_and_a_sliver_beside_one_with_a_request(demos: Demos):
    with demo("cpu", demos) as process:
        reported = verdict(process)
    found = re.search(r"beside one with a request ([\d.]+) % against ([\d.]+) %", reported)
    assert found is not None, reported
    squeezed, requester = map(float, found.groups())
    assert squeezed < requester / 10


@pytest.mark.req("A25")
def test_a_demonstration_that_is_interrupted_removes_everything_too(demos: Demos):
    with demo("guaranteed", demos) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "Started" in line)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # a second Ctrl-C does not prevent the removal
        rest = process.stdout.read()
        assert process.wait(TIME_LIMIT_SECONDS) == 130, rest
        assert "everything is removed" in rest
