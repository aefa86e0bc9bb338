"""A journal, and pods and events for it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.journal.records import NORMAL, Event, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, Ended, PodState, TerminalStatus
from tests.strategies import asks, container, pod

LIFE = PodState(
    accepted_at=1.5,
    containers={
        "main": ContainerRecord(
            attempt=3,
            started_at=1_700_000_000.123456,
            pid=42,
            pid_start_ticks=2**40,
            ended=Ended(137, 9, "OOMKilled", "limit of 1Gi", 1.0, 2.0),
            oom_kills=(1.5, 2.5),
            resources=asks({"cpu": "100m"}, {"memory": "1Gi"}),
        ),
        "init": ContainerRecord(attempt=1, ended=Ended()),
    },
    verdict=TerminalStatus("Failed", "Evicted", "too much", 3.0),
    deleted_at=0.0,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


@pytest.fixture
def journal(path: str) -> Iterator[Journal]:
    with Journal.open(path) as opened:
        yield opened


def named(uid, *, order=1, state=LIFE, source="api", is_admitted=True):
    made = pod(container({"cpu": "1", "memory": "1Gi"}))
    meta = made.metadata._replace(name=uid, uid=uid, labels={"a": "b"})
    return PodRecord(made._replace(metadata=meta), source, order, is_admitted, state)


def some_event(message, at=1.0, **more):
    return Event(at, NORMAL, "Started", message, **more)


def connection_of(journal: Journal) -> sqlite3.Connection:
    """The connection of an open journal, through which a test breaks it as a disk would."""
    return journal._connection  # noqa: SLF001 no caller but a test may have it
