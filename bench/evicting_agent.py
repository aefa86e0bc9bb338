"""An agent that evicts, for benchmarks: on a small node in a cgroup of its own, with the journal's record of each
kill."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.cgroups import UNIFIED, Cgroup, hierarchies, temporary

from evenkeel.cli.client import Client
from evenkeel.errors import EvenkeelError
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.decision_records import EVICTION_KIND

MIB = 1 << 20
NODE_MIB = 2048
THRESHOLD_MIB = 100
# The steps of an eviction, by the stages of the journal's decisions (`memory_sink.Stages`) that they end with. Between
# the first two the kernel had reported the crossing, and the watch's own figures did not show it yet.
STEPS = {
    "reported": "wake-up",
    "woken": "not short",
    "sampled": "sample",
    "read": "reading",
    "decided": "ranking",
    "noted": "intent",
}


@contextmanager
def agent(root: Cgroup, state: str) -> Iterator[Client]:
    node = ("--cgroup-root", f"/{root.paths()[0].name}", "--node", f"{NODE_MIB}Mi,2cpu", "--max-pods", "120")
    try:
        with running(state, THRESHOLD_MIB, *node) as (client, pid):
            client_pid[client] = pid
            yield client
    finally:
        shutil.rmtree(state, ignore_errors=True)


client_pid: dict[Client, int] = {}


@contextmanager
def running(
    state: str, threshold_mib: int, *flags: str, patience_seconds: float = 60.0
) -> Iterator[tuple[Client, int]]:
    """An agent that evicts at the threshold, and is soon ready to do so again: its client, and its number."""
    command = [
        sys.executable, "-m", "evenkeel", "up", "--stop-pods", "--state-dir", state, *flags,
        f"--eviction-hard=memory.available<{threshold_mib}Mi", "--eviction-pressure-transition-period=10ms",
    ]  # fmt: skip
    Path(state).mkdir()
    log = Path(f"{state}.log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    client = Client(state)
    try:
        until(lambda: answers(client, process, log), patience_seconds)
        yield client, process.pid
    finally:
        process.terminate()
        process.wait(patience_seconds)


def answers(client: Client, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    try:
        client.get("/healthz")
    except EvenkeelError:
        return False
    return True


def pod(name: str, command: list[str]) -> dict:
    container = {"name": "main", "image": "host", "command": command}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def is_under_pressure(client: Client) -> bool:
    conditions = client.get("/node")["status"]["conditions"]
    return any(one["type"] == "MemoryPressure" and one["status"] == "True" for one in conditions)


class Killed(NamedTuple):
    """When a kill was sent, and the stages of STEPS before it, in seconds."""

    sent: float
    stages: tuple[float, ...]


class Kills:
    """The kills in the journal. What was read once is not read again."""

    def __init__(self, state: str) -> None:
        self._file = f"{state}/journal.db"
        self._last = 0  # the number of the last decision that was read

    def last_of(self, name: str) -> Killed | None:
        """The last kill of this pod, among those that were not read yet."""
        found = None
        with Journal.read(self._file) as journal:
            for record in journal.decisions(EVICTION_KIND, self._last):
                self._last = record.number
                assert isinstance(record.decision, dict)
                if any(one["pod"] == f"default/{name}" for one in record.decision["evictions"]):
                    stages = record.decision["stages"]
                    found = Killed(record.decision["killSentAt"], tuple(stages[stage] for stage in STEPS))
        return found


# A place to be


@contextmanager
def cgroup() -> Iterator[Cgroup]:
    """A root of our own in every hierarchy, bounded; removed at the end."""
    tops = Cgroup(hierarchies())
    name = f"evenkeelbench{os.getpid()}"
    root = Cgroup({key: path / name for key, path in tops.directories.items()})
    with temporary(root):
        tops.child(name, controllers=set(tops.directories) == {UNIFIED})
        root.write(
            "memory.max" if root.has("memory.max") else "memory.limit_in_bytes", (NODE_MIB + 1024) * MIB
        )
        yield root


def root_of(root: Cgroup, name: str) -> Cgroup:
    return Cgroup({key: path / name for key, path in root.directories.items()})


def until(probe, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)
    return answer
