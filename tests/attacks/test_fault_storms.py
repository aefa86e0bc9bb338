"""Faults at random, under load: no pod is lost, doubled or stuck, nothing stays frozen, and nothing is left behind.

`EVENKEEL_FAULTS` says how many, `EVENKEEL_SEED` which; `make soak` runs many."""

import os
from pathlib import Path

import pytest

from tests.attacks.faults import MOST_PROCESSES, FaultStorm
from tests.kernel.agents import MakeUp
from tests.kernel.crashes import NODE
from tests.kernel.small_disk import on

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
@pytest.mark.processes_only("the disk is the agent's, whatever it runs")
def test_whatever_happens_to_its_disk_nothing_is_lost_doubled_or_stuck(
    small: Path, up: MakeUp, tmp_path: Path
):
    storm = FaultStorm(on(up(*FLAGS, node=NODE), small), tmp_path, SEED, small)
    storm.agent.start(stop_pods=False)
    faults = storm.faults_of_the_disk()
    storm.run([*faults, *storm.faults()] if FAULTS else faults, max(FAULTS, len(faults)))
