"""Decisions in the journal, and the same decisions made again."""

import asyncio
import json

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.scalars import Amount
from evenkeel.journal.store import Decision as Recorded
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.snapshot import MemoryFigures, NodeFigures, PodFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import parse_thresholds
from evenkeel.pressure.decision_records import eviction_given, eviction_said, replayed_eviction
from evenkeel.pressure.eviction_steps import Step
from tests.models.agents import Place, pods_of, until
from tests.models.memory_files import (
    MIB,
    PODS,
)


def step() -> Step:
    pods = pods_of(PODS)
    thresholds = parse_thresholds(
        hard={"memory.available": "100Mi"},
        soft={"memory.available": "20%"},
        soft_grace_period={"memory.available": "1m30s"},
        minimum_reclaim={"memory.available": "5%"},
        enforce_node_allocatable=("pods",),
    )
    settings = Settings(local_storage_capacity_isolation=False)
    seen = tuple(PodSnapshot(pod, PodFigures(memory_working_set_bytes=Amount(200 * MIB))) for pod in pods)
    figures = MemoryFigures(Amount(50 * MIB), Amount(400 * MIB))
    snapshot = Snapshot(10.0, NodeFigures(memory=figures, pods_cgroup_memory=figures), seen)
    state, _ = decide(State(), snapshot._replace(time_seconds=1.0), thresholds, settings)
    _, decision = decide(state, snapshot, thresholds, settings)
    return Step(state, snapshot, thresholds, settings, decision)


@pytest.mark.req("E14")
def test_a_recorded_decision_is_made_again_from_its_record():
    made = step()
    assert made.decision.victim is not None
    plain = json.loads(json.dumps(eviction_given(made)))
    again, outcome = replayed_eviction(Recorded(1, 0.0, "eviction", plain, eviction_said(made.decision)))
    assert outcome == eviction_said(made.decision)
    assert (again.state, again.snapshot, again.settings) == (made.state, made.snapshot, made.settings)
    assert again.thresholds == made.thresholds


@pytest.mark.req("E14")
def test_a_record_that_was_changed_gives_another_decision():
    made = step()
    plain = json.loads(json.dumps(eviction_given(made)))
    plain["snapshot"]["pods"] = plain["snapshot"]["pods"][1:]
    _, outcome = replayed_eviction(Recorded(1, 0.0, "eviction", plain, eviction_said(made.decision)))
    assert outcome != eviction_said(made.decision)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


@pytest.mark.req("E14")
def test_a_decision_that_finds_the_disk_full_is_written_when_there_is_room(place, monkeypatch):
    """And nothing waits for it: it may be what makes room."""
    made = step()

    def full(*_: object) -> None:
        raise JournalError("the disk is full")

    async def story() -> None:
        async with place.agent() as agent:
            with monkeypatch.context() as patched:
                patched.setattr(Journal, "record", full)
                agent.watches.memory.recorder.stepped(made, made.state, {})
                await agent.apply(pods_of(PODS))
                await until(lambda: phase(agent, "web") == "Running")
                assert "NodeHasMemoryPressure" in {one.reason for one in agent.events()}
                assert not decisions(place)
            place.now += 60
            agent.steps.want_step()
            await until(lambda: bool(decisions(place)))
            agent.steps.want_step()
            await agent.pod_loop.stepped()
            (record,) = decisions(place)
            assert record.at == place.now - 60  # when it was made
            assert replayed_eviction(record)[0].decision == made.decision

    asyncio.run(story())


def decisions(place: Place) -> list[Recorded]:
    with Journal.read(f"{place.directory}/journal.db") as journal:
        return list(journal.decisions())


def phase(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    return shown.status.phase if shown else ""
