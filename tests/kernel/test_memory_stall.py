"""An allocator that stalls at memory.high, with the agent: noticed, resolved as the setting says, and recorded."""

from typing import Any

import pytest

from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import STALL_KIND
from tests.kernel.agents import MIB, MakeUp, Up, pod, processes_of, up
from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]

pytestmark = [pytest.mark.cgroup("v2"), pytest.mark.whole_kernel("PSI"), pytest.mark.req("C8", "E4")]

FLAGS = ("--memory-throttling-factor=0.75", "--memory-high-stall-period=2s")
LIMIT_MIB, HIGH_MIB, WANTED_MIB = 64, 48, 58
PATIENCE_SECONDS = 120.0


def allocator(**spec: Any) -> dict[str, Any]:
    """Wants more than memory.high and less than the limit, all of it anonymous: there is nothing to take back."""
    resources = {"requests": {"memory": "8Mi"}, "limits": {"memory": f"{LIMIT_MIB}Mi"}}
    command = [str(programs() / "grow"), "anon", str(WANTED_MIB * MIB), "0"]
    return pod("allocator", command, container={"resources": resources}, **spec)


def main_of(agent: Up) -> Cgroup:
    return agent.container("allocator")


def held_bytes(main: Cgroup) -> int:
    """The memory of its processes, without the kernel's own memory in the cgroup."""
    return main.counters("memory.stat")["anon"] if main.has("memory.stat") else 0


def latest(agent: Up) -> str:
    """The last event about a stall."""
    events = agent.client.lines("/events", most="1000", pod="default/allocator")
    return next((one["reason"] for one in reversed(list(events)) if "MemoryHigh" in one["reason"]), "")


def stalls(agent: Up) -> list[dict[str, Any]]:
    events = agent.client.lines("/events", most="1000", pod="default/allocator")
    return [one for one in events if one["reason"] == "MemoryHighStall"]


def test_raise_moves_the_mark_towards_the_limit_and_keeps_it_over_a_restart(up: MakeUp):
    agent = up(*FLAGS)
    agent.start()
    agent.apply(allocator())
    main = main_of(agent)
    eventually(lambda: held_bytes(main) >= WANTED_MIB * MIB, within_seconds=PATIENCE_SECONDS)
    eventually(lambda: latest(agent) == "MemoryHighStallOver")  # nothing is raised any more
    raised = main.read("memory.high")
    assert raised == "max" or int(raised) > HIGH_MIB * MIB
    status = agent.status("allocator")["containerStatuses"][0]
    assert (status.get("restartCount", 0), agent.phase("allocator")) == (0, "Running")
    reported = stalls(agent)
    assert reported[0]["figures"]["high_bytes"] == HIGH_MIB * MIB
    assert "it stalls at memory.high" in reported[0]["message"]
    assert "towards 64Mi" in reported[0]["message"]
    agent.kill()
    agent.start()
    agent.await_phase("allocator", "Running")
    assert main.read("memory.high") == raised
    reasons = [one["reason"] for one in agent.client.lines("/events", most="1000")]
    assert "DriftRepaired" not in reasons
    with Journal.read(str(agent.state / "journal.db")) as journal:
        assert len(list(journal.decisions(STALL_KIND))) == len(reported)


def test_kill_ends_the_container_and_its_restart_policy_says_what_follows(up: MakeUp):
    agent = up(*FLAGS, "--memory-high-stall=kill")
    agent.start()
    agent.apply(allocator(restartPolicy="Never"))
    status = agent.await_phase("allocator", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")
    assert "it stalls at memory.high" in ended["message"]
    (reported,) = stalls(agent)
    assert reported["figures"]["answer"] == "kill"


def test_report_tells_once_and_leaves_it_where_it_is(up: MakeUp):
    agent = up(*FLAGS, "--memory-high-stall=report")
    agent.start()
    agent.apply(allocator())
    main = main_of(agent)
    eventually(lambda: stalls(agent), within_seconds=PATIENCE_SECONDS)
    processes = processes_of(main)
    full = main.read("memory.pressure").splitlines()[1].rpartition("=")[2]
    # Two more periods of waiting, by the kernel's own count.
    eventually(
        lambda: int(main.read("memory.pressure").splitlines()[1].rpartition("=")[2]) > int(full) + 4_000_000,
        within_seconds=PATIENCE_SECONDS,
    )
    assert len(stalls(agent)) == 1
    assert int(main.read("memory.high")) == HIGH_MIB * MIB
    assert processes_of(main) == processes != []
    assert agent.phase("allocator") == "Running"
