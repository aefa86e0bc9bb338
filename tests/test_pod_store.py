"""The agent's records of pods, and what is committed with them."""

import pytest

from evenkeel.agent.admission import DeferredResizes
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.pod_store import PodStore
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.journal.records import NORMAL, PodRecord
from evenkeel.journal.store import Journal, JournalError
from tests.models.journal_records import journal, path

__all__ = ("journal", "path")


class PlainStatuses:
    """Shows each pod as it was written."""

    def shown(self, record: PodRecord, *_: object) -> Pod:
        return record.pod


def stored(journal: Journal) -> PodStore:
    resizes = DeferredResizes(journal, None, ())  # type: ignore[arg-type]
    return PodStore(journal, (), resizes, PlainStatuses())  # type: ignore[arg-type]


POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="uid-1"))


def test_pods_and_events_are_committed_together(journal: Journal) -> None:
    events = EventRecorder(journal)
    store = stored(journal)
    store.put(PodRecord(POD, "api", 1))
    events.record(NORMAL, "Admitted", "it fits", POD)
    store.commit_with(events)
    assert [record.uid for record in journal.pods()] == ["uid-1"]
    assert [event.reason for event in journal.events()] == ["Admitted"]
    assert store.is_committed
    assert events.is_committed


def test_nothing_is_committed_or_shown_if_the_events_cannot_be_written(
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> None:
        raise JournalError("no space")

    events = EventRecorder(journal)
    store = stored(journal)
    store.put(PodRecord(POD, "api", 1))
    events.record(NORMAL, "Admitted", "it fits", POD)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "record_event", refuse)
        with pytest.raises(JournalError):
            store.commit_with(events)
    assert journal.pods() == ()
    assert store.shown() == ()
    assert not store.is_committed
    store.commit_with(events)
    assert [record.uid for record in journal.pods()] == ["uid-1"]
    assert [event.reason for event in journal.events()] == ["Admitted"]


def test_an_event_that_was_taken_back_is_not_published_by_a_later_commit(
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = EventRecorder(journal)
    store = stored(journal)
    published: list[object] = []
    monkeypatch.setattr(events.published, "publish", published.append)
    mark = events.mark()
    events.record(NORMAL, "Admitted", "it fits", POD)

    def fail() -> None:
        with journal.transaction():
            events.write()
            raise JournalError("no space")

    with pytest.raises(JournalError):
        fail()
    events.back_to(mark)
    store.commit_with(events)
    assert published == []
    assert journal.events() == ()
