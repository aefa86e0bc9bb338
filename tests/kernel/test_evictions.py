"""Memory pressure on a real kernel: which pod is evicted, what is recorded, and which pod comes back."""

import time
from pathlib import Path

import pytest

from evenkeel.host.capacity import parse_meminfo
from evenkeel.pressure.intents import Intent, Intents
from tests.kernel.agents import MIB, READY_SECONDS, MakeUp, pod, up, with_host_path
from tests.kernel.evictions import (
    FLAGS,
    RUNAWAY_MIB_A_SECOND,
    await_grown,
    condition,
    decisions,
    events,
    grow,
    reasons,
    when_told,
)
from tests.kernel.planned import oom_kills
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.whole_kernel("a race for memory")]


@pytest.mark.req("A15", "A20", "B8", "E1", "E2", "E14")
def test_the_pod_above_its_request_is_evicted_and_the_one_within_stays(up: MakeUp):
    agent = up(*FLAGS)
    agent.start()
    agent.await_watch()
    agent.apply(grow("within", "anon", 96, request_mib=128), grow("batch", "anon", 32))
    await_grown(agent, "within", 96)
    await_grown(agent, "batch", 32)
    agent.apply(grow("runaway", "anon", 1024, RUNAWAY_MIB_A_SECOND, restartPolicy="Never"))
    status = agent.await_evicted("runaway")
    assert "allocatableMemory.available" in status["message"]
    assert "default/batch" in status["message"]  # the other pods that were considered
    (disruption,) = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
    assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")
    assert agent.phase("within") == agent.phase("batch") == "Running"
    assert oom_kills(agent.cgroup()) == 0

    def victims() -> list[str]:
        return [one["pod"] for record in decisions(agent) for one in record["evictions"]]

    assert eventually(victims) == ["default/runaway"]  # a decision is recorded after it was carried out
    assert any("runaway" in line for line in agent.cli("events").splitlines() if "Evicted" in line)


@pytest.mark.req("B16", "E16")
def test_pressure_is_a_condition_keeps_best_effort_out_and_ends_with_the_pods_return(up: MakeUp):
    agent = up(*FLAGS)
    agent.start()
    agent.await_watch()
    # Not faster than an agent on a busy machine: what the kernel kills brings no back-off.
    agent.apply(grow("within", "anon", 96, request_mib=128), grow("runaway", "anon", 1024, 200))
    agent.await_phase("runaway", "Failed")
    eventually(lambda: "BackOff" in reasons(agent, "runaway"), within_seconds=READY_SECONDS)
    # The period of a second is over, and with it the condition; then the back-off of ten; then it is there again.
    eventually(
        lambda: "NodeHasMemoryPressure" in reasons(agent) and "NodeHasNoMemoryPressure" in reasons(agent),
        within_seconds=READY_SECONDS,
    )
    eventually(lambda: condition(agent, "MemoryPressure") == "False")
    eventually(lambda: "Returning" in reasons(agent, "runaway"), within_seconds=READY_SECONDS)
    eventually(lambda: reasons(agent, "runaway").count("Evicted") >= 2, within_seconds=READY_SECONDS)
    assert agent.phase("within") == "Running"
    eventually(lambda: reasons(agent, "runaway").count("BackOff") >= 2)  # more if we come late
    waits = [one["message"] for one in events(agent, "runaway") if one["reason"] == "BackOff"]
    assert ["10 s" in waits[0], "20 s" in waits[1]] == [True, True]


@pytest.mark.req("B16")
def test_a_soft_threshold_waits_for_its_time_and_gives_the_pod_its_grace(up: MakeUp, tmp_path: Path):
    agent = up("--eviction-hard=memory.available<8Mi", "--eviction-pressure-transition-period=1s")
    agent.start()
    said, listens = tmp_path / "said", tmp_path / "listens"
    script = f"trap 'echo term > {said}; exit 0' TERM; echo > {listens}; while :; do sleep 0.05; done"
    polite = pod("polite", ["sh", "-c", script], restartPolicy="Never")
    polite["spec"]["terminationGracePeriodSeconds"] = 20
    agent.apply(with_host_path(polite, tmp_path))
    agent.await_phase("polite", "Running")
    eventually(listens.exists)
    agent.kill()
    agent.start(
        "--eviction-soft=memory.available<100Gi",  # the machine has less
        "--eviction-soft-grace-period=memory.available=2s",
        "--eviction-max-pod-grace-period=20",
    )
    status = agent.await_evicted("polite")
    assert said.read_text() == "term\n"
    assert "soft threshold of 100Gi for 2 s or longer" in status["message"]


@pytest.mark.req("A20", "E14")
def test_an_eviction_that_was_noted_is_known_after_the_agent_was_killed(up: MakeUp):
    """Killed after the intent was written, before anything else was."""
    agent = up(*FLAGS)
    agent.start()
    agent.apply(grow("victim", "anon", 8, restartPolicy="Never"))
    agent.await_phase("victim", "Running")
    uid = agent.pod("victim")["metadata"]["uid"]
    agent.kill()
    noted = Intents(str(agent.state), print)
    assert noted.write(Intent(uid, "for the test", time.time()))
    noted.close()
    agent.start()
    assert agent.await_evicted("victim")["message"] == "for the test"
    noted = Intents(str(agent.state), print)
    assert not noted.found
    noted.close()


@pytest.mark.req("A20")
def test_a_pod_is_evicted_as_a_whole_with_all_its_containers_and_processes(up: MakeUp, tmp_path: Path):
    # Alone on the node it would wait at its memory.high before the threshold is reached, for most of a minute.
    agent = up(*FLAGS, "--memory-throttling-factor=1")
    agent.start()
    agent.await_watch()
    many = grow("many", "tree", 1024, RUNAWAY_MIB_A_SECOND, restartPolicy="Never")
    many["spec"]["containers"].append({"name": "beside", "image": "host", "command": ["sleep", "1000"]})
    agent.apply(when_told(many, tmp_path))
    agent.await_phase("many", "Running")  # both containers are there
    whole = agent.of_pod("many")
    (tmp_path / "go").touch()
    status = agent.await_phase("many", "Failed")
    assert {one["state"]["terminated"]["exitCode"] for one in status["containerStatuses"]} == {137}
    eventually(lambda: not whole.paths()[0].exists())
    assert oom_kills(agent.cgroup()) == 0


@pytest.mark.cgroup("guest")
@pytest.mark.req("A15", "B16", "E1")
def test_the_machine_s_own_memory_is_watched_as_well(up: MakeUp):
    """In a machine that is the test's own: on a shared one others decide how much is left."""
    available = parse_meminfo(Path("/proc/meminfo").read_text())["MemAvailable"]
    threshold = available // MIB - 320  # the agent itself needs some of it
    agent = up(
        "--eviction-hard",
        f"memory.available<{threshold}Mi",
        "--enforce-node-allocatable=",
        "--eviction-pressure-transition-period=1s",
        node="900Mi,2cpu",
    )
    agent.start()
    agent.await_watch()
    agent.apply(
        grow("within", "anon", 16, request_mib=32), grow("runaway", "anon", 900, restartPolicy="Never")
    )
    status = agent.await_evicted("runaway")
    assert status["message"].startswith("memory.available is")
    assert agent.phase("within") == "Running"
