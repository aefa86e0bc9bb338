"""The agent under CPU pressure, with counters of the test's own: condition, weight, eviction, and the end of it."""

import asyncio
import time

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.scalars import Duration
from evenkeel.cgroup.driver import Statistics
from evenkeel.journal.store import Journal
from evenkeel.pressure import cpu_pressure
from evenkeel.pressure.decision_records import made_again
from tests.models.agents import Place, pods_of, until
from tests.models.kernel import CountingKernel

pytestmark = pytest.mark.req("A22")

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: starved, uid: u1}
spec: {containers: [{name: c, image: host, command: [a], resources: {requests: {cpu: 1}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: batch, uid: u2}
spec: {containers: [{name: c, image: host, command: [a]}], restartPolicy: Never}
---
apiVersion: v1
kind: Pod
metadata: {name: idle, uid: u3}
spec: {containers: [{name: c, image: host, command: [a]}]}
"""
BRANCH = "/evenkeel/kubepods/besteffort"
WINDOW = 0.12


class BusyKernel(CountingKernel):
    """CPU time runs with the loop's clock, at the rates that the test sets (cores, by the pod's UID)."""

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._since = 0.0
        self._before: dict[str, tuple[float, float]] = {}  # seconds used and waited until `_since`, by UID
        self.pause_seconds = 0.0  # for which the agent does not run before it reads the next counters

    def run_at(self, rates: dict[str, float], waits: dict[str, float]) -> None:
        """Sets the rates from now on. Counters continue from their present values, as the kernel's do."""
        self._before = {uid: self._seconds(uid) for uid in ("u1", "u2", "u3")}
        self._since = asyncio.get_running_loop().time()
        self._rates, self._waits = rates, waits

    def statistics(self, path: str) -> Statistics:
        pause, self.pause_seconds = self.pause_seconds, 0.0
        time.sleep(pause)
        used, _ = self._seconds(path.rpartition("/pod")[2])
        return super().statistics(path)._replace(cpu_usage_us=int(used * 1e6), cpu_throttled_us=0)

    def waited_us(self, path: str) -> int:
        return int(self._seconds(path.rpartition("/pod")[2])[1] * 1e6)

    def _seconds(self, uid: str) -> tuple[float, float]:
        passed = asyncio.get_running_loop().time() - self._since if self._since else 0.0
        used, waited = self._before.get(uid, (0.0, 0.0))
        return used + passed * self._rates.get(uid, 0.0), waited + passed * self._waits.get(uid, 0.0)


@pytest.fixture
def place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Place:
    config = KubeletConfiguration(
        eviction_hard={},
        cpu_kills=True,
        cpu_kills_window=Duration(int(WINDOW * 1e9)),
        fair_cpu_sharing=True,
        eviction_pressure_transition_period=Duration(int(WINDOW * 1e9)),
    )
    place = Place(str(tmp_path), config)
    kernel = BusyKernel()
    place.kernel = kernel
    monkeypatch.setattr(cpu_pressure, "waited_some_us", kernel.waited_us)
    monkeypatch.setattr(kernel, "files", lambda path: {"cpu": path, "memory": path}, raising=False)
    return place


def test_condition_and_least_weight_come_first_then_the_pod_in_the_way_goes_and_all_is_as_before(
    place: Place,
):
    kernel = place.kernel
    assert isinstance(kernel, BusyKernel)

    async def live() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))

            def is_running() -> bool:
                return len(place.runtime.running()) == 1 and len(place.runtime.records) == 3

            await until(is_running)
            assert int(kernel.cgroups[BRANCH]["cpu.weight"]) > 1  # A21 gives it more than the least
            kernel.run_at({"u1": 0.2, "u2": 0.7, "u3": 0.001}, {"u1": 0.8})
            await until(lambda: condition(agent) == "True")
            assert kernel.cgroups[BRANCH]["cpu.weight"] == "1"
            assert kernel.cgroups[f"{BRANCH}/podu2"]["cpu.weight"] == "1"
            assert phase(agent, "batch") != "Failed"
            await until(lambda: phase(agent, "batch") == "Failed")
            pod = agent.pod("default/batch")
            assert pod is not None
            assert pod.status.reason == "Evicted"
            assert "default/starved received" in pod.status.message
            kernel.run_at({"u1": 0.99}, {})
            await until(lambda: condition(agent) == "False")
            await until(lambda: int(kernel.cgroups[BRANCH]["cpu.weight"]) > 1)
            assert phase(agent, "idle") != "Failed"
            await until(lambda: "CPUShortageOver" in [one.reason for one in agent.events()])
            reasons = [one.reason for one in agent.events()]
            assert "CPUShortage" in reasons
            assert "DriftRepaired" not in reasons

    asyncio.run(live())
    with Journal.read(f"{place.directory}/journal.db") as journal:
        recorded = list(made_again(journal))
    assert any(one.was["evictions"] for one in recorded)
    assert not [one for one in recorded if one.unreadable or one.now != one.was]


def test_what_was_seen_is_known_after_the_agent_was_killed(place: Place):
    kernel = place.kernel
    assert isinstance(kernel, BusyKernel)

    async def until_there_is_pressure() -> None:
        kernel.run_at({"u1": 0.2, "u3": 0.3}, {"u1": 0.8})
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: condition(agent) == "True")

    async def and_after() -> None:
        async with place.agent() as agent:
            assert condition(agent) == "True"
            await until(lambda: kernel.cgroups[BRANCH]["cpu.weight"] == "1")
            # The first window after it is the second in a row: a pod is evicted without another warning.
            await until(lambda: phase(agent, "idle") == "Failed")

    asyncio.run(until_there_is_pressure())
    kernel.cgroups[BRANCH]["cpu.weight"] = "100"
    asyncio.run(and_after())
    with Journal.read(f"{place.directory}/journal.db") as journal:
        shortages = [one for one in made_again(journal) if one.was["short"]]
    assert [bool(one.was["evictions"]) for one in shortages][:2] == [False, True]


def test_a_shortage_is_seen_though_the_agent_does_not_run_for_a_moment_when_it_looks(place: Place):
    """As it does where CPU is short. What pods received would be too much for the window, and no shortage."""
    kernel = place.kernel
    assert isinstance(kernel, BusyKernel)

    async def live() -> None:
        kernel.run_at({"u1": 0.2, "u3": 0.3}, {"u1": 0.8})
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: condition(agent) == "True")
            kernel.pause_seconds = 10 * WINDOW
            await until(lambda: phase(agent, "idle") == "Failed")

    asyncio.run(live())
    with Journal.read(f"{place.directory}/journal.db") as journal:
        shortages = [one for one in made_again(journal) if one.was["short"]]
    assert [bool(one.was["evictions"]) for one in shortages][:2] == [False, True]


def test_nothing_is_looked_at_where_it_is_off_and_the_condition_is_not_shown(tmp_path):
    place = Place(str(tmp_path))

    async def live() -> None:
        async with place.agent() as agent:
            assert condition(agent) is None

    asyncio.run(live())


def condition(agent: Agent) -> str | None:
    found = [one.status for one in agent.node().status.conditions if one.type == "CPUPressure"]
    return found[0] if found else None


def phase(agent: Agent, name: str) -> str:
    pod = agent.pod(f"default/{name}")
    return pod.status.phase if pod is not None else ""
