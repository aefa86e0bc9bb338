"""The agent is killed at random moments under a changing load (`make soak` does it with many more pods)."""

import os
from pathlib import Path

import pytest

from tests.kernel.agents import MakeUp, up
from tests.kernel.crashes import NODE, live

__all__ = ["up"]

pytestmark = pytest.mark.long


@pytest.mark.cgroup("v1", "v2")
def test_nothing_is_lost_doubled_or_leaked_however_often_the_agent_is_killed(up: MakeUp, tmp_path: Path):
    # The same story each time, so that a failure comes from a change of the code. `make soak` runs others.
    seed = int(os.environ.get("EVENKEEL_SEED") or 1)
    pods = int(os.environ.get("EVENKEEL_CRASH_PODS") or 25)
    kills = int(os.environ.get("EVENKEEL_CRASHES") or 9)
    live(up("--max-pods", "1000", node=NODE), tmp_path, seed=seed, most_pods=pods, kills=kills)
