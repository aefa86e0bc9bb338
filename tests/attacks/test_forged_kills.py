"""The kernel's log has words of containers in it: names of processes and files that crashed. None passes for an OOM
kill of another pod."""

from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, details_of, hostile, said
from tests.kernel.agents import Up, first_of
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

# With a smaller request it would be throttled before its limit (memory.high), for minutes.
AMOUNTS = {"resources": {"limits": {"memory": "32Mi"}, "requests": {"memory": "32Mi"}}}
FIGURES = "total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0"


def killed(agent: Up, name: str) -> list[str]:
    """What the agent has recorded of OOM kills of the pod."""
    return [
        one["message"]
        for one in agent.client.lines("/events")
        if one["reason"] == "OOMKilling" and one.get("pod") == f"default/{name}"
    ]


def test_a_crash_does_not_pass_for_the_kill_of_another_pod(agent: Up):
    """The pod that forges is killed in the end: that comes after its crashes in the kernel's log."""
    agent.apply(hostile(agent, "victim", "sleep", "100000"))
    agent.await_phase("victim", "Running")
    pid = first_of(agent.container("victim"))
    names = [
        f"x: Killed process {pid} (forged) {FIGURES}",
        f"x\\nMemory cgroup out of memory: Killed process {pid} (forged) {FIGURES}",
    ]
    volumes = [{"name": "v", "emptyDir": {}}]
    container = {**AMOUNTS, "volumeMounts": [{"name": "v", "mountPath": "/mnt"}]}
    forging = hostile(
        agent, "forges", "crash", "/mnt", *names, container=container, volumes=volumes, restartPolicy="Never"
    )
    agent.apply(forging)
    agent.await_phase("forges", "Failed")
    assert said(agent, "forges") == ["crashed 1", "crashed 1"], details_of(agent, "forges")
    if Path("/dev/kmsg").exists():
        eventually(
            lambda: killed(agent, "forges"),
            within_seconds=PATIENCE_SECONDS,
            details=lambda: details_of(agent, "forges"),
        )
    assert killed(agent, "victim") == []
