"""Storms on a real kernel: nobody within his request is harmed, nobody goes in vain, and all of it can be told."""

import os
import time

import pytest

from evenkeel.agent.journal import Journal
from evenkeel.agent.pressure.recording import KIND, Step, replayed
from evenkeel.policy.eviction.thresholds import threshold_amount
from evenkeel.policy.eviction.usage import Resource, usage
from evenkeel.policy.pod_resources import eviction_request
from tests.kernel.agents import MIB, MakeUp, Up, up
from tests.kernel.planned import memory_bytes
from tests.kernel.storms import NODE_MIB, THRESHOLD_MIB, Storm, seeds, storm
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = pytest.mark.long

IS_GUEST = os.environ.get("EVENKEEL_MACHINE") != "host"
CALM_SECONDS = 1.5
LONGEST_SECONDS = 120.0


@pytest.mark.req("A5", "A15", "A20", "B8", "E1", "E2", "E12", "E14")
def test_storms(up: MakeUp):
    agent = up(
        f"--eviction-hard=memory.available<{THRESHOLD_MIB}Mi",
        "--eviction-pressure-transition-period=500ms",
        node=f"{NODE_MIB}Mi,2cpu",
    )
    agent.start()
    last = 0
    for seed in seeds(3 if IS_GUEST else 10):
        weather = storm(seed)
        print(weather, flush=True)
        try:
            last = ride_out(agent, weather, last)
        except AssertionError as error:
            raise AssertionError(f"{weather}: {error}\n{agent.log.read_text()[-3000:]}") from error


def ride_out(agent: Up, weather: Storm, last: int) -> int:
    """One storm from its first pod to the last one's removal; the number of the last decision."""
    agent.apply(*weather.quiet)
    for one in weather.quiet:
        agent.await_phase(name(one), "Running")
    eventually(lambda: memory_bytes(agent.cgroup()) >= weather.quiet_bytes)
    agent.apply(*weather.loads)
    await_calm(agent, weather)
    steps = decisions(agent, last)
    check_quiet(agent, weather)
    check_kernel_kills(agent, weather)
    for _, step in steps:
        check_step(step)
    evicted = {one for one in map(name, weather.loads) if agent.status(one).get("reason") == "Evicted"}
    chosen = {eviction.pod.metadata.name for _, step in steps for eviction in step.decision.evictions}
    by_kernel = {one for one in map(name, weather.loads) if was_oom_killed(agent, one)}
    assert evicted - by_kernel <= chosen
    print(
        f"  evicted {sorted(evicted) or 'nobody'}, by the kernel {sorted(by_kernel) or 'nobody'}", flush=True
    )
    for one in (*weather.quiet, *weather.loads):
        agent.client.delete("default", name(one), grace_seconds=0)
    for one in (*weather.quiet, *weather.loads):
        agent.await_gone(name(one))
    eventually(lambda: not under_pressure(agent))
    return max([last, *(number for number, _ in decisions(agent, last))])


def await_calm(agent: Up, weather: Storm) -> None:
    """Until all that were admitted have started, and nothing moves any more."""
    deadline = time.monotonic() + LONGEST_SECONDS
    since, before = time.monotonic(), (-1, "")
    while time.monotonic() - since < CALM_SECONDS * (4 if IS_GUEST else 1):
        assert time.monotonic() < deadline, "it does not come to rest"
        phases = " ".join(agent.phase(name(one)) for one in weather.loads)
        now = (memory_bytes(agent.cgroup()) // (2 * MIB), phases)
        if now != before or "Pending" in phases:
            since, before = time.monotonic(), now
        time.sleep(0.05)


def check_quiet(agent: Up, weather: Storm) -> None:
    for one in weather.quiet:
        status = agent.status(name(one))
        assert status["phase"] == "Running", f"{name(one)} kept to its request and is {status}"
        assert not status["containerStatuses"][0].get("restartCount"), f"{name(one)} was started again"


def check_kernel_kills(agent: Up, weather: Storm) -> None:
    """The kernel's own killer, if it had to act, took one who would have been next: of BestEffort first."""
    killed = [one for one in weather.loads if was_oom_killed(agent, name(one))]
    for one in killed:
        if requests(one):
            alive = [
                other
                for other in weather.loads
                if not requests(other) and agent.phase(name(other)) == "Running"
            ]
            assert not alive, f"the kernel killed {name(one)}, and not {[name(other) for other in alive]}"


def check_step(step: Step) -> None:
    """Whoever went was above his request, and had to: what was left, with all on its way back, was not enough."""
    decision = step.decision
    for eviction in decision.evictions:
        seen = next(one for one in step.snapshot.pods if one.pod.key == eviction.pod.key)
        used = usage(seen, Resource.MEMORY)
        assert used is not None
        assert used > eviction_request(seen.pod, Resource.MEMORY).value, (
            f"{eviction.pod.key} was within its request"
        )
        assert decision.acting_on is not None
        found = decision.observations[decision.acting_on.signal]
        assert found.available < threshold_amount(decision.acting_on.value, found.capacity)


def decisions(agent: Up, after: int) -> list[tuple[int, Step]]:
    """Those after the given number, each found to be decided so again."""
    with Journal.read(str(agent.state / "journal.db")) as journal:
        found = list(journal.decisions(KIND, after))
    steps = []
    for record in found:
        step, again = replayed(record)
        assert {**record.decision, **again} == record.decision, (
            f"decision {record.number} differs when replayed"
        )
        steps.append((record.number, step))
    return steps


def was_oom_killed(agent: Up, pod_name: str) -> bool:
    statuses = agent.status(pod_name).get("containerStatuses", ())
    return any(one["state"].get("terminated", {}).get("reason") == "OOMKilled" for one in statuses)


def under_pressure(agent: Up) -> bool:
    conditions = agent.client.get("/node")["status"]["conditions"]
    return any(one["type"] == "MemoryPressure" and one["status"] == "True" for one in conditions)


def requests(one: dict) -> bool:
    return bool(one["spec"]["containers"][0]["resources"].get("requests"))


def name(one: dict) -> str:
    return one["metadata"]["name"]
