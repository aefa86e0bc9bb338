"""Memory pressure on a real kernel: who goes, how it is told, and what comes back."""

import pytest

from evenkeel.agent.journal import Journal
from evenkeel.agent.pressure.recording import KIND, replayed
from tests.kernel.agents import MIB, MakeUp, Up, pod, up
from tests.kernel.planned import oom_kills
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]

FLAGS = ("--eviction-hard=memory.available<48Mi", "--eviction-pressure-transition-period=1s")
ANON = {"memory": "400Mi"}


def grow(name: str, kind: str, mib: int, rate_mib: int = 0, *, request_mib: int = 0, **spec: object) -> dict:
    """A pod that uses memory in one way."""
    resources = {"resources": {"requests": {"memory": f"{request_mib}Mi"}}} if request_mib else {}
    command = [str(programs() / "grow"), kind, str(mib * MIB), str(rate_mib * MIB)]
    return pod(name, command, container=resources, **spec)


def decisions(agent: Up) -> list[dict]:
    """What was decided, after checking that each is decided so again from its record."""
    with Journal.read(str(agent.state / "journal.db")) as journal:
        found = list(journal.decisions(KIND))
    for record in found:
        _, again = replayed(record)
        assert {**record.decision, **again} == record.decision, f"decision {record.number} differs when replayed"
    return [record.decision for record in found]


@pytest.mark.req("A15", "A20", "B8", "E1", "E2", "E14")
def test_the_pod_above_its_request_goes_and_the_one_within_stays(up: MakeUp):
    agent = up(*FLAGS)
    agent.start()
    agent.apply(
        grow("within", "anon", 96, request_mib=128),
        grow("batch", "anon", 32),
        grow("runaway", "anon", 1024, restartPolicy="Never"),
    )
    status = agent.await_phase("runaway", "Failed")
    assert status["reason"] == "Evicted"
    assert "allocatableMemory.available" in status["message"]
    assert "default/batch" in status["message"]  # who else was considered
    (disruption,) = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
    assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")
    assert agent.phase("within") == agent.phase("batch") == "Running"
    assert oom_kills(agent.cgroup()) == 0
    victims = [one["pod"] for record in decisions(agent) for one in record["evictions"]]
    assert victims == ["default/runaway"]
    assert any("runaway" in line for line in agent.cli("events").splitlines() if "Evicted" in line)
