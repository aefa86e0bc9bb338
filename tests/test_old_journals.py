"""Journals that an earlier release wrote, before fields and modules got the names they have now.

`tests/journals/` holds three of them as they were on disk: of an agent that evicted a pod and deferred a resize, of one
under CPU pressure, and of one with a container that stalled at memory.high. They are never written anew.
"""

import asyncio
import gzip
from pathlib import Path

import pytest

from evenkeel.agent.observe.pod_history import pod_history
from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import made_again
from tests.models.agents import Place, until

JOURNALS = Path(__file__).parent / "journals"


@pytest.fixture
def old(tmp_path):
    def unpacked(name: str) -> str:
        path = tmp_path / "journal.db"
        path.write_bytes(gzip.decompress((JOURNALS / f"{name}.db.gz").read_bytes()))
        return str(path)

    return unpacked


@pytest.mark.parametrize("name, pods, decisions", [("eviction", 2, 1), ("cpu", 3, 3), ("memory_stall", 1, 4)])
def test_everything_in_it_can_be_read_and_every_decision_is_made_again_the_same(old, name, pods, decisions):
    with Journal.open(old(name)) as journal:
        assert len(journal.pods()) == pods
        again = list(made_again(journal))
        assert [(one.unreadable, one.differs) for one in again] == [("", ())] * decisions
        assert len(journal.events()) > 5
        assert journal.notes == ()


def test_the_state_of_each_pod_is_what_it_was(old):
    with Journal.open(old("eviction")) as journal:
        batch, web = journal.pods()
        story = pod_history(journal, "default/batch")
    assert batch.state.verdict is not None
    assert (batch.state.verdict.reason, batch.state.verdict.message) == ("Evicted", "for the test")
    assert batch.state.container("main").ended is not None
    assert (web.is_admitted, web.state.verdict, web.state.container("main").attempt) == (True, None, 1)
    assert web.state.container("main").is_running
    assert story is not None
    assert story.chapters


@pytest.mark.req("E16")
def test_an_agent_goes_on_with_it(old, tmp_path):
    """The deferred resize is still pending, and the evicted pod comes back after its back-off."""
    old("eviction")
    place = Place(str(tmp_path))

    def phase(agent, name: str) -> str:
        return agent.pod(f"default/{name}").status.phase

    async def story() -> None:
        async with place.agent() as agent:
            assert phase(agent, "batch") == "Failed"
            pending = [one for one in agent.pod("default/web").status.conditions if "Resize" in one.type]
            assert [one.reason for one in pending] == ["Infeasible"]
            place.now += 11
            agent.watches.conditions.set("clock", ["PIDPressure"])  # evicted pods are looked at again
            agent.watches.conditions.set("clock", [])
            await until(lambda: phase(agent, "batch") == "Running")

    asyncio.run(story())
