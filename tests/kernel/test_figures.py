"""The figures that the agent reports of a real kernel, beside what was requested and what is applied."""

import os
import signal
from pathlib import Path

import pytest

from evenkeel.runtime.process.supervisor_protocol import LOCK_NAME
from tests.kernel.agents import MIB, MakeUp, Up, pod, up
from tests.kernel.containers import lock_holder
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


@pytest.mark.req("B11", "E17")
@pytest.mark.whole_kernel("PSI")
def test_what_a_container_uses_is_reported_with_what_the_kernel_has(up: MakeUp):
    agent = up()
    agent.start()
    amounts = {"requests": {"memory": "16Mi", "cpu": "100m"}, "limits": {"memory": "96Mi"}}
    grows = [f"{programs()}/grow", "anon", str(48 * MIB), "0"]
    agent.apply(pod("grows", grows, container={"resources": amounts}))
    agent.await_phase("grows", "Running")

    def reported():
        pods = agent.client.get("/stats/summary")["pods"]
        containers = [
            one for of_pod in pods for one in of_pod["containers"] if of_pod["podRef"]["name"] == "grows"
        ]
        return next((one for one in containers if one["memory"]["rssBytes"] >= 48 * MIB), None)

    # With less in its processes it is not done; the kernel's own memory would fill the working set before.
    container = eventually(reported)
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


@pytest.mark.req("B11")
def test_who_runs_the_containers_is_told_apart_and_all_adds_up_to_the_node(up: MakeUp):
    agent = up()
    agent.start()

    def reported() -> dict[str, dict[str, dict[str, int]]]:
        node = agent.client.get("/stats/summary")["node"]
        return {"node": node, **{one["name"]: one for one in node["systemContainers"]}}

    def as_measured() -> dict[str, dict[str, dict[str, int]]] | None:
        """Whether the figures agree. A daemon that was just started grows, and its figures are some moments old."""
        found = reported()
        if "runtime" not in found:
            return None
        resident = _resident_bytes(_runtime_pid(agent))
        return found if resident / 2 < found["runtime"]["memory"]["usageBytes"] < resident * 2 else None

    figures = eventually(as_measured)
    assert figures["runtime"]["memory"]["rssBytes"] > 0
    assert figures["kubelet"]["memory"]["rssBytes"] > 0
    for kind, name in (("memory", "usageBytes"), ("cpu", "usageCoreNanoSeconds")):
        parts = sum(figures[one][kind][name] for one in ("pods", "kubelet", "runtime", "misc"))
        assert parts == figures["node"][kind][name]
    if agent.containerd is not None:
        return  # the one that the tests of a run share stays
    supervisor = _runtime_pid(agent)
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: _runtime_pid(agent) not in (0, supervisor))
    again = eventually(lambda: found if "runtime" in (found := reported()) else None)
    before, after = (one["kubelet"]["cpu"]["usageCoreNanoSeconds"] for one in (figures, again))
    assert before <= after, "the agent's time does not go back"

    own = agent.root.child("daemon")
    for path in own.paths():
        (path / "cgroup.procs").write_text(str(_runtime_pid(agent)))
    place = own.path_in_hierarchy(agent.root)

    def runtime_path() -> str:
        """Empty until the new supervisor is seen: the figures that were awaited may be older than the kill."""
        return agent.client.get("/view")["daemons"].get("runtime", {}).get("path", "")

    eventually(lambda: runtime_path() == place)


@pytest.mark.parametrize("up", ["process"], indirect=True)
@pytest.mark.cgroup("host")
@pytest.mark.req("B14")
def test_what_was_watched_is_known_to_the_next_agent(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    since = agent.client.get("/advice")["since"]
    agent.stop()
    agent.start()
    assert agent.client.get("/advice")["since"] == since


def _runtime_pid(agent: Up) -> int:
    if agent.containerd is not None:
        return agent.containerd.pid
    return lock_holder(agent.state / LOCK_NAME)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
