"""Running pods when the agent is restarted with another configuration (B13, B6)."""

import pytest

from tests.kernel.agents import MakeUp, pod, processes_of, up
from tests.kernel.cgroups import Cgroup

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


@pytest.mark.processes_only("a container stays in the cgroup that its runtime has made for it")
@pytest.mark.req("B6", "B13")
def test_pods_live_on_when_the_classes_have_no_cgroups_any_more_and_back(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("stays", ["sleep", "1000"]))
    agent.await_phase("stays", "Running")
    uid = agent.pod("stays")["metadata"]["uid"]
    layered = agent.cgroup("besteffort", f"pod{uid}", "main")
    (main,) = processes_of(layered)
    agent.kill()
    agent.start("--cgroups-per-qos=false", "--enforce-node-allocatable=")
    agent.await_phase("stays", "Running")
    root = agent.root.directories.items()
    flat = Cgroup({key: path / f"pod{uid}" / "main" for key, path in root})
    assert processes_of(flat) == [main]
    agent.kill()
    agent.start()
    agent.await_phase("stays", "Running")
    assert processes_of(layered) == [main]
    assert agent.status("stays")["containerStatuses"][0].get("restartCount", 0) == 0
    agent.client.delete("default", "stays", 0)
    agent.await_gone("stays")
