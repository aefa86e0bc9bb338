"""CPU as live policies of the agent: fair sharing, cores of one's own and burst follow pods as they come, go and
change; if a pod does not get its request, pods that use too much are evicted."""

import json
import os
from typing import Any

import pytest

from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import CPU_KIND
from tests.kernel.agents import READY_SECONDS, MakeUp, Up, pod, processes_of, up
from tests.kernel.cgroups import Cgroup
from tests.kernel.planned import cpu_quota
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]

pytestmark = pytest.mark.long

SLEEP = ["sleep", "1000"]


def spinner(name: str, cpu: str = "", limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that uses all the CPU it gets."""
    resources: dict[str, Any] = {"requests": {"cpu": cpu}} if cpu else {}
    if limits:
        resources["limits"] = limits
    return pod(name, [str(programs() / "spin")], container={"resources": resources}, **spec)


def weight(cgroup: Cgroup) -> float:
    """The CPU weight of the pod, as shares."""
    return (
        int(cgroup.read("cpu.weight")) * 10.24 if cgroup.has("cpu.weight") else int(cgroup.read("cpu.shares"))
    )


def cpus(agent: Up, name: str) -> set[int]:
    """The CPUs on which the pod's one process may run."""
    (main,) = processes_of(agent.container(name))
    return os.sched_getaffinity(main)


def reasons(agent: Up, name: str = "") -> list[str]:
    parameters = {"pod": f"default/{name}"} if name else {}
    return [one["reason"] for one in agent.client.lines("/events", most="1000", **parameters)]


@pytest.mark.req("A21")
def test_fair_shares_follow_pods_that_come_and_go(up: MakeUp):
    agent = up("--fair-cpu-sharing=true")
    agent.start()
    agent.apply(pod("half", SLEEP, container={"resources": {"requests": {"cpu": "500m"}}}))
    agent.await_phase("half", "Running")
    assert weight(agent.of_pod("half")) == pytest.approx(2048, rel=0.01)  # alone, all of the two cores
    agent.apply(pod("nothing", SLEEP))
    agent.await_phase("nothing", "Running")
    # 0.5 + 1.5 ÷ 2 cores for one, 1.5 ÷ 2 for the other
    assert weight(agent.of_pod("half")) == pytest.approx(1280, rel=0.01)
    assert weight(agent.of_pod("nothing")) == pytest.approx(768, rel=0.01)
    assert weight(agent.cgroup("besteffort")) == pytest.approx(768, rel=0.01)
    agent.client.delete("default", "nothing")
    agent.await_gone("nothing")
    eventually(lambda: weight(agent.of_pod("half")) == pytest.approx(2048, rel=0.01))
    assert weight(agent.cgroup("besteffort")) < 20


@pytest.mark.req("A23", "E10")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one processor: none can be anybody's own")
def test_cores_of_ones_own_outlive_the_agent_follow_a_resize_and_are_given_back(up: MakeUp):
    agent = up("--cpu-manager-policy=static")
    agent.start()
    whole = {"cpu": "1", "memory": "16Mi"}
    pinned = pod("pinned", SLEEP, container={"resources": {"limits": whole}})
    agent.apply(pod("shares", SLEEP))
    agent.await_phase("shares", "Running")
    assert cpus(agent, "shares") == {0, 1}
    agent.apply(pinned)
    agent.await_phase("pinned", "Running")
    assert (cpus(agent, "pinned"), cpus(agent, "shares")) == ({1}, {0})
    assert cpu_quota(agent.container("pinned")) is None
    (main,) = processes_of(agent.container("pinned"))

    agent.kill()
    agent.start()
    agent.apply(pod("later", SLEEP))
    agent.await_phase("later", "Running")
    assert (cpus(agent, "pinned"), cpus(agent, "shares"), cpus(agent, "later")) == ({1}, {0}, {0})

    agent.apply(_with_limits(pinned, {"cpu": "500m", "memory": "16Mi"}))
    container = agent.container("pinned")

    def given() -> tuple[set[int], set[int], float | None]:
        return cpus(agent, "shares"), cpus(agent, "pinned"), cpu_quota(container)

    eventually(lambda: given() == ({0, 1}, {0, 1}, 0.5))
    agent.apply(pinned)
    eventually(lambda: given() == ({0}, {1}, None))
    assert processes_of(agent.container("pinned")) == [main]  # all in place

    agent.client.delete("default", "pinned")
    agent.await_gone("pinned")
    eventually(lambda: cpus(agent, "shares") == cpus(agent, "later") == {0, 1})


@pytest.mark.req("A23", "E10")
def test_burst_is_set_on_what_is_limited_and_follows_a_resize(up: MakeUp):
    agent = up("--cpu-burst=50")
    agent.start()
    limited = pod("limited", SLEEP, container={"resources": {"limits": {"cpu": "200m"}}})
    agent.apply(limited)
    agent.await_phase("limited", "Running")
    main = agent.container("limited")
    file = "cpu.max.burst" if main.has("cpu.max.burst") else "cpu.cfs_burst_us"
    assert int(main.read(file)) == 10_000
    agent.apply(_with_limits(limited, {"cpu": "400m"}))
    eventually(lambda: (int(main.read(file)), cpu_quota(main)) == (20_000, 0.4))


@pytest.mark.req("A22", "E14")
def test_pods_that_keep_another_from_its_cpu_request_are_lowered_then_evicted(up: MakeUp):
    """The planned weights deliver what is requested. Here another program sets the weight of BestEffort pods to the
    maximum again and again, so that only the policy can help."""
    agent = up(
        "--cpu-kills=true",
        "--cpu-kills-window=3s",
        "--eviction-pressure-transition-period=3s",
        node=f"384Mi,{os.cpu_count()}cpu",
    )
    agent.start()
    cores = os.cpu_count() or 1
    agent.apply(
        _threads(spinner("starved", f"{cores * 1000 - 200}m"), cores),
        _threads(spinner("greedy", restartPolicy="Never"), cores),
        pod("idle", SLEEP),
        pod("within", SLEEP, container={"resources": {"requests": {"cpu": "100m"}}}),
    )
    for name in ("starved", "greedy", "idle", "within"):
        agent.await_phase(name, "Running")
    file = "cpu.weight" if agent.cgroup().has("cpu.weight") else "cpu.shares"
    most = "10000" if file == "cpu.weight" else "262144"

    def starve() -> bool:
        if agent.phase("greedy") == "Failed":
            return True
        agent.cgroup("besteffort").write(file, most)
        return False

    eventually(starve, within_seconds=READY_SECONDS, details=lambda: agent.details_of("greedy"))
    status = agent.await_evicted("greedy")
    assert "default/starved received" in status["message"]
    assert "default/greedy (BestEffort, priority 0) uses" in status["message"]
    assert agent.phase("idle") == agent.phase("within") == agent.phase("starved") == "Running"
    assert "NodeHasCPUPressure" in reasons(agent)
    assert "CPUShortage" in reasons(agent, "starved")

    def victims() -> list[str]:
        with Journal.read(str(agent.state / "journal.db")) as journal:
            found: list[Any] = [one.decision for one in journal.decisions(CPU_KIND)]
        return [one["pod"] for decision in found for one in decision["evictions"]]

    assert eventually(victims) == ["default/greedy"]  # a decision is recorded after it was carried out


def _with_limits(plain: dict[str, Any], limits: dict[str, str]) -> dict[str, Any]:
    changed = json.loads(json.dumps(plain))
    changed["spec"]["containers"][0]["resources"] = {"limits": limits}
    return changed


def _threads(plain: dict[str, Any], count: int) -> dict[str, Any]:
    """A shell command that starts this many busy processes."""
    program = plain["spec"]["containers"][0]["command"][0]
    spins = " & ".join([program] * count)
    plain["spec"]["containers"][0]["command"] = ["sh", "-c", f"{spins} & wait"]
    return plain
