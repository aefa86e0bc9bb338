"""What the agent tells of a real kernel: the figures of what runs, beside what was asked for and is applied."""

import pytest

from tests.kernel.agents import MIB, MakeUp, pod, up
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


@pytest.mark.req("B11", "E17")
def test_what_a_container_uses_is_told_with_what_the_kernel_has(up: MakeUp):
    agent = up()
    agent.start()
    amounts = {"requests": {"memory": "16Mi", "cpu": "100m"}, "limits": {"memory": "96Mi"}}
    grows = [f"{programs()}/grow", "anon", str(48 * MIB), "0"]
    agent.apply(pod("grows", grows, container={"resources": amounts}))
    agent.await_phase("grows", "Running")

    def told():
        pods = agent.client.get("/stats/summary")["pods"]
        containers = [one for told in pods for one in told["containers"] if told["podRef"]["name"] == "grows"]
        return next((one for one in containers if one["memory"]["rssBytes"] >= 48 * MIB), None)

    # With less in its processes it is not done; the kernel's own memory would fill the working set before.
    container = eventually(told)
    assert container["memory"]["workingSetBytes"] >= 48 * MIB
    assert container["memory"]["availableBytes"] <= 48 * MIB
    assert container["cpu"]["usageCoreNanoSeconds"] > 0
    system = {one["name"] for one in agent.client.get("/stats/summary")["node"]["systemContainers"]}
    assert {"pods", "kubelet", "misc"} <= system

    explained = agent.client.get("/explain/default/grows")
    main = next(one for one in explained["cgroups"] if one["kind"] == "container")
    files = {one["file"]: one for one in main["settings"]}
    limit = files.get("memory.max") or files["memory.limit_in_bytes"]
    assert (limit["asked"], limit["applied"]) == (str(96 * MIB), str(96 * MIB))
    assert all(one["isApplied"] for one in main["settings"] if "applied" in one)

    view = agent.client.get("/view")
    shown = next(one for one in view["cgroups"] if one.get("container") == "main")
    assert shown["figures"]["workingSetBytes"] >= 48 * MIB
    assert shown["figures"]["pids"] >= 1
    assert "stalls" in shown["figures"], "the kernel tells the pressure of each cgroup"
