"""A pod gives its files other names as fast as it can: what it has on disk is found all the same."""

import pytest

from tests.attacks.hostile import hostile
from tests.kernel.agents import MIB, Up

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

LIMIT_MIB = 8
AMOUNTS = {"resources": {"limits": {"ephemeral-storage": f"{LIMIT_MIB}Mi"}}}
WAYS = ("file", "directory", "exchange")
BESIDE = 5000  # files: between the reading of a name and its use there are as many others


@pytest.mark.parametrize("way", WAYS)
def test_what_is_renamed_all_the_time_is_counted(agent: Up, way: str):
    mount = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    words = ("rename", "/scratch", str(3 * LIMIT_MIB * MIB), str(BESIDE), way)
    agent.apply(
        hostile(
            agent,
            way,
            *words,
            container={**AMOUNTS, **mount},
            volumes=[{"name": "scratch", "emptyDir": {}}],
            restartPolicy="Never",
        )
    )
    agent.await_evicted(way)
