"""The process that watches memory, on a real kernel: it goes on when the agent is killed or stopped, what it did is
recorded once, and whatever is killed, no pod stays frozen and no pod is evicted twice."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import EVICTION_KIND
from evenkeel.pressure.watch.messages import LOCK_NAME
from tests.kernel.agents import MIB, MakeUp, Up, is_alive, pod, processes_of, up, with_host_path
from tests.kernel.planned import oom_kills
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.whole_kernel("a race for memory")]

IS_HOST = os.environ.get("EVENKEEL_MACHINE") == "host"
FLAGS = (
    # As much as is used in half a second: a watch that was killed shortly before is replaced by then.
    "--eviction-hard=memory.available<96Mi",
    "--eviction-pressure-transition-period=1s",
    # Alone on the node a pod would wait at its memory.high before the threshold is reached (v2).
    "--memory-throttling-factor=1",
)
RATE_MIB = 200 if IS_HOST else 32
KILLS = int(os.environ.get("EVENKEEL_KILLS", "24" if IS_HOST else "3"))


def eater(name: str, directory: Path) -> dict:
    """A pod that begins to use memory, more than there is, when the file of its name is there."""
    grow = f"exec {programs() / 'grow'} anon {1024 * MIB} {RATE_MIB * MIB}"
    script = f"until [ -e {directory}/{name} ]; do sleep 0.05; done; {grow}"
    made = pod(name, ["sh", "-c", script], restartPolicy="Never")
    return with_host_path(made, directory)


def evictions(agent: Up) -> list[str]:
    """Each eviction in the journal's decisions."""
    with Journal.read(str(agent.state / "journal.db")) as journal:
        records: list[Any] = [one.decision for one in journal.decisions(EVICTION_KIND)]
    return [one["pod"] for record in records if record["isDone"] for one in record["evictions"]]


def events_of(agent: Up, name: str) -> list[str]:
    return [one["reason"] for one in agent.client.lines("/events", most="1000", pod=f"default/{name}")]


def is_empty(agent: Up, name: str) -> Callable[[], bool]:
    """Whether the pod has no process any more; the question needs no agent."""
    pids = processes_of(agent.container(name))
    assert pids
    return lambda: not any(map(is_alive, pids))


@pytest.mark.req("A15", "A20", "E1", "E14")
def test_evictions_go_on_while_the_agent_is_dead_or_stopped_and_are_recorded_once(up: MakeUp, tmp_path: Path):
    agent = up(*FLAGS)
    agent.start()
    agent.apply(*(eater(name, tmp_path) for name in ("first", "second")))
    for name in ("first", "second"):
        agent.await_phase(name, "Running")
    watch = agent.await_watch()

    is_gone = is_empty(agent, "first")
    agent.kill()
    (tmp_path / "first").touch()
    eventually(is_gone)
    assert is_alive(watch)
    agent.start()
    status = agent.await_evicted("first")
    assert "allocatableMemory.available" in status["message"]
    assert eventually(lambda: evictions(agent)) == ["default/first"]
    assert agent.watch_pid() == watch
    eventually(lambda: "Evicted" in events_of(agent, "first"))
    assert "default/first" in agent.cli("why", "first")

    is_gone = is_empty(agent, "second")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        (tmp_path / "second").touch()
        eventually(is_gone)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    agent.await_evicted("second")
    assert eventually(lambda: evictions(agent)[1:]) == ["default/second"]
    # A restart finds nothing more to record.
    agent.kill()
    agent.start()
    assert evictions(agent) == ["default/first", "default/second"]
    for name in ("first", "second"):
        assert events_of(agent, name).count("Evicted") == 1
    assert oom_kills(agent.cgroup()) == 0
    assert (agent.state / LOCK_NAME).exists()


# One that listens ends when it comes to its turn, one that does not when its time is over.
@pytest.mark.parametrize(
    ("trap", "grace"), [("echo term > {}; exit 0", 60), ("", 4)], ids=["polite", "stubborn"]
)
@pytest.mark.req("A15", "A20", "B16", "E14")
def test_a_soft_threshold_is_kept_without_an_agent_and_the_pod_gets_its_grace(
    up: MakeUp, tmp_path: Path, trap: str, grace: int
):
    agent = up(
        *FLAGS,
        "--eviction-soft=allocatableMemory.available<200Mi",
        "--eviction-soft-grace-period=allocatableMemory.available=1s",
        f"--eviction-max-pod-grace-period={grace}",
    )
    agent.start()
    said = tmp_path / "said"
    grow = f"{programs() / 'grow'} anon {MIB * 200} {MIB * 64}"
    script = f"trap '{trap.format(said)}' TERM; until [ -e {tmp_path}/go ]; do sleep 0.05; done; {grow} & "
    # A shell that ignores the signal goes on waiting. Its children ignore it too, and do the same.
    made = pod("victim", ["sh", "-c", script + "while :; do wait; done"], restartPolicy="Never")
    made["spec"]["terminationGracePeriodSeconds"] = grace
    within = pod("within", ["sleep", "1000"], container={"resources": {"requests": {"memory": "64Mi"}}})
    agent.apply(with_host_path(made, tmp_path), within)
    for name in ("victim", "within"):
        agent.await_phase(name, "Running")
    is_gone = is_empty(agent, "victim")
    agent.await_watch()
    agent.kill()
    (tmp_path / "go").touch()
    eventually(is_gone)
    assert said.exists() == bool(trap)
    agent.start()
    status = agent.await_evicted("victim")
    assert "soft threshold of 200Mi for 1 s or longer" in status["message"]
    assert eventually(lambda: evictions(agent)) == ["default/victim"]
    eventually(lambda: "Evicted" in events_of(agent, "victim"))
    assert events_of(agent, "victim").count("Evicted") == 1
    assert agent.phase("within") == "Running"
    assert oom_kills(agent.cgroup()) == 0


@pytest.mark.processes_only("the kind of containers does not matter here")
@pytest.mark.req("A15", "E1", "E2")
def test_watch_and_agent_may_be_killed_at_any_moment(up: MakeUp, tmp_path: Path):
    """No pod within its request is harmed, no pod is evicted twice, no pod stays frozen, and the watch is back."""
    seed = int(os.environ.get("EVENKEEL_SEED") or "1")
    chance = random.Random(seed)
    agent = up(*FLAGS)
    agent.start()
    within = pod(
        "within",
        [str(programs() / "grow"), "anon", str(96 * MIB), "0"],
        container={"resources": {"requests": {"memory": "128Mi"}}},
    )
    agent.apply(within)
    agent.await_phase("within", "Running")
    agent.await_watch()
    for number in range(KILLS):
        name = f"eater{number}"
        agent.apply(eater(name, tmp_path))
        agent.await_phase(name, "Running")
        watch = eventually(agent.watch_pid)
        is_gone = is_empty(agent, name)
        (tmp_path / name).touch()
        # The kill comes around the eviction: the pod needs about a second to get there.
        is_gone_by_then = chance.random() < 0.5 and bool(eventually(is_gone))
        whom = chance.choice(("watch", "agent", "both"))
        if not is_gone_by_then:
            signal.sigtimedwait((), chance.uniform(0.0, 1.2))
        if whom != "agent" and is_alive(watch):
            os.kill(watch, signal.SIGKILL)
        if whom != "watch":
            agent.kill()
            agent.start()
        eventually(agent.watch_pid)
        eventually(is_gone)
        status = agent.await_phase(name, "Failed")
        assert status.get("reason") == "Evicted", (seed, number, whom, status)
        agent.client.delete("default", name, grace_seconds=0)
        agent.await_gone(name)
        assert agent.phase("within") == "Running"
    assert len(evictions(agent)) == len(set(evictions(agent)))
    assert not agent.status("within")["containerStatuses"][0].get("restartCount")
    assert oom_kills(agent.cgroup()) == 0
