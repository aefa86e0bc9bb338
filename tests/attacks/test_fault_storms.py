"""Faults at random, under load: no pod is lost, doubled or stuck, nothing stays frozen, and nothing is left behind.

`EVENKEEL_FAULTS` says how many, `EVENKEEL_SEED` which; `make soak` runs many."""

import os
from pathlib import Path

import pytest

from tests.attacks.faults import MOST_PROCESSES, FaultStorm, break_disk, flushes, restart_machine
from tests.kernel.agents import READY_SECONDS, MakeUp, pod
from tests.kernel.crashes import NODE
from tests.kernel.small_disk import on
from tests.kernel.waiting import eventually

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

# The same ones each time, so that a failure is one of the code; `make soak` takes others.
SEED = int(os.environ.get("EVENKEEL_SEED") or 1)
FAULTS = int(os.environ.get("EVENKEEL_FAULTS") or 0)
FLAGS = (
    "--max-pods",
    "100",
    f"--pod-max-pids={MOST_PROCESSES}",
    "--eviction-hard=memory.available<16Mi",  # so that there is a watch with a guard
)


def test_whatever_is_killed_or_stopped_nothing_is_lost_doubled_or_stuck(up: MakeUp, tmp_path: Path):
    storm = FaultStorm(up(*FLAGS, node=NODE), tmp_path, SEED)
    storm.agent.start(stop_pods=False)
    faults = storm.faults()
    storm.run(faults, max(FAULTS, len(faults)))


@pytest.mark.parametrize("small", [32], indirect=True)
def test_whatever_happens_to_its_disk_nothing_is_lost_doubled_or_stuck(
    small: Path, up: MakeUp, tmp_path: Path
):
    storm = FaultStorm(on(up(*FLAGS, node=NODE), small), tmp_path, SEED, small)
    storm.agent.start(stop_pods=False)
    faults = storm.faults_of_the_disk()
    storm.run([*faults, *storm.faults()] if FAULTS else faults, max(FAULTS, len(faults)))


@pytest.mark.cgroup("host")
@pytest.mark.processes_only("the journal is the agent's, whatever it runs")
def test_a_pod_that_was_accepted_survives_a_crash_of_the_machine_a_moment_later(small: Path, up: MakeUp):
    """The crash: the disk takes no more, and all processes end."""
    agent = on(up(), small)
    agent.start(stop_pods=False)
    agent.apply(pod("first", ["sleep", "100000"]))
    agent.await_phase("first", "Running")
    before = flushes(small)
    agent.apply(pod("last", ["sleep", "100000"]))
    eventually(
        lambda: flushes(small) > before, within_seconds=READY_SECONDS / 10
    )  # the kernel alone takes 30 s
    break_disk(small)
    restart_machine(agent, small)
    for name in ("first", "last"):
        agent.await_phase(name, "Running")
