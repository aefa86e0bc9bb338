"""The journal: everything comes back as it was, whatever happens to the agent, the disk or the file."""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.pod import Pod
from evenkeel.api.resources import ResourceRequirements
from evenkeel.api.volume_types import EmptyDirVolumeSource, HostPathVolumeSource, Volume
from evenkeel.journal import records, schema
from evenkeel.journal.codec import Unreadable, from_text, to_text
from evenkeel.journal.columns import opened, sealed
from evenkeel.journal.records import WARNING, Event
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from tests.models.journal_records import connection_of, journal, named, path, some_event
from tests.strategies import pod, pods

__all__ = ["journal", "path"]


def test_what_is_committed_can_be_brought_to_the_disk(journal):
    journal.save(named("a"))
    assert not journal.is_synced
    sync = journal.sync()
    journal.save(named("b", order=2))
    sync()
    assert not journal.is_synced  # the second was written after it was asked for
    journal.sync()()
    assert journal.is_synced


def test_a_journal_that_cannot_be_brought_to_the_disk_says_so(journal, path):
    journal.save(named("a"))
    Path(f"{path}-wal").unlink()
    with pytest.raises(JournalError, match=r"the journal .* cannot be opened: no such file"):
        journal.sync()()
    assert not journal.is_synced


def statements(journal):
    """What is written from now on."""
    seen = []
    connection_of(journal).set_trace_callback(
        lambda text: seen.append(text) if not text.startswith("SELECT") else None
    )
    return seen


# --- pods


@pytest.mark.req("A23")
def test_pods_come_back_after_a_restart_as_they_were_and_in_order(path):
    held = [
        named("b", order=2),
        named("a", order=3, state=PodState()),
        named("c", order=1, is_admitted=False),
    ]
    with Journal.open(path) as journal:
        for one in held:
            journal.save(one)
    with Journal.open(path) as journal:
        assert journal.pods() == (held[2], held[0], held[1])
        assert journal.notes == ()


def test_a_saved_pod_replaces_the_one_of_its_uid(journal):
    journal.save(named("a"))
    later = named("a", order=7, source="file:/x", is_admitted=False, state=PodState(accepted_at=9.0))
    changed = later._replace(pod=later.pod._replace(spec=later.pod.spec._replace(restart_policy="Never")))
    journal.save(changed)
    assert journal.pods() == (changed,)


def test_a_removed_pod_is_gone_with_its_state_and_may_come_again(journal):
    journal.save(named("a"))
    journal.remove("a")
    journal.remove("never there")
    assert journal.pods() == ()
    journal.save(named("a"))
    assert journal.pods() == (named("a"),)


def test_what_has_not_changed_is_not_written_again(journal):
    held = named("a")
    journal.save(held)
    seen = statements(journal)
    journal.save(held)
    journal.save(named("a"))  # equal, but another object
    assert seen == []


def test_a_change_of_a_life_leaves_the_manifest_unwritten(journal):
    held = named("a")
    journal.save(held)
    seen = statements(journal)
    journal.save(held._replace(state=PodState()))
    assert len(seen) == 1
    assert "INTO lives" in seen[0]
    assert journal.pods() == (held._replace(state=PodState()),)


def test_after_a_restart_unchanged_pods_are_not_written_again(path):
    with Journal.open(path) as journal:
        journal.save(named("a"))
    with Journal.open(path) as journal:
        journal.pods()
        seen = statements(journal)
        journal.save(named("a"))
        assert seen == []


def test_a_file_whose_name_is_not_text_is_a_source_like_others(journal):
    held = named("a", source="file:" + os.fsdecode(b"/pods/\xff.yaml"))
    journal.save(held)
    journal.record_event(some_event(held.source))
    assert journal.pods() == (held,)
    assert journal.events()[0].message == held.source


@given(pods)
def test_every_pods_text_is_exact(made):
    assert from_text(Pod, to_text(made)) == made


def test_what_is_there_but_empty_is_not_lost():
    volumes = (Volume("a", empty_dir=EmptyDirVolumeSource()), Volume("b", host_path=HostPathVolumeSource()))
    made = pod()._replace(spec=pod().spec._replace(volumes=volumes))
    assert from_text(Pod, to_text(made)) == made
    state = PodState(
        containers={"a": ContainerRecord(resources=ResourceRequirements()), "b": ContainerRecord()}
    )
    assert from_text(PodState, to_text(state)) == state


@pytest.mark.parametrize(
    "column, text, why",
    [
        ("pods SET pod", "{", "it is not JSON"),
        ("pods SET pod", '{"metadata": []}', "must be a mapping"),
        ("pods SET pod", '{"metadata": {"uid": "other"}}', "its UID is other"),
        ("pods SET pod", "[" * 100_000, "it is not JSON"),
        ("lives SET life", '{"containers": {"a": {"attempt": "x"}}}', "whole number"),
        ("lives SET life", b"\0\1", "it is not text"),
        ('pods SET "order"', "x", "invalid literal"),
        ("pods SET source", 5, "5 is not text"),
    ],
)
def test_a_pod_that_cannot_be_read_is_set_aside_and_the_others_are_not_lost(path, column, text, why):
    with Journal.open(path) as journal:
        for uid in ("a", "b", "c"):
            journal.save(named(uid))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE {column} = ? WHERE uid = 'b'", (text,))
    with Journal.read(path) as reader:
        assert [held.pod.metadata.uid for held in reader.pods()] == ["a", "c"]
    with Journal.open(path) as journal:
        assert journal.pods() == (named("a"), named("c"))
        (note,) = journal.notes
        assert f"the journal {path}: the pod b cannot be read and is set aside: " in note
        assert why in note
        journal.save(named("b"))
    with Journal.open(path) as journal:
        assert len(journal.pods()) == 3
        assert journal.notes == ()
    with closing(sqlite3.connect(path)) as other:
        ((uid, reason),) = other.execute("SELECT uid, why FROM pods_aside").fetchall()
        assert uid == "b"
        assert why in reason


def test_fields_of_a_newer_version_are_passed_over():
    assert from_text(PodState, '{"acceptedAt":2,"future":{"x":1}}') == PodState(accepted_at=2.0)


# --- transactions


def test_a_transaction_is_all_or_nothing_and_its_inner_ones_are_part_of_it(journal, path):
    journal.save(named("a"))

    def fail_at_the_end():
        with journal.transaction():
            journal.save(named("a", order=5))
            with journal.transaction():
                journal.save(named("b"))
                journal.remove("a")
                journal.set_value("x", 1)
                journal.record_event(some_event("m"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_end()
    assert journal.pods() == (named("a"),)
    assert journal.value("x") is None
    assert journal.events() == ()
    journal.save(named("b"))
    journal.save(named("a", order=5))
    assert [held.order for held in journal.pods()] == [1, 5]


def test_others_see_a_transaction_when_it_is_over_and_not_before(journal, path):
    with Journal.read(path) as reader:
        with journal.transaction():
            journal.save(named("a"))
            assert reader.pods() == ()
        assert reader.pods() == (named("a"),)


def test_an_event_that_was_undone_is_recorded_again_in_full(journal):
    journal.record_event(some_event("m"))

    def undone():
        with journal.transaction():
            journal.record_event(some_event("n", at=1.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    journal.record_event(some_event("n", at=2.0))
    assert [(one.message, one.times) for one in journal.events()] == [("m", 1), ("n", 1)]


# --- events


@pytest.mark.req("E6")
def test_events_are_numbered_and_found_by_pod_and_by_number(journal):
    figures = {"limitBytes": 2**60, "process": "eater", "usage": [1, 2.5]}
    first = journal.record_event(
        Event(1.0, WARNING, "OOMKilled", "killed", "a/p", "uid", "main", figures=figures)
    )
    second = journal.record_event(some_event("of the node", at=2.0))
    third = journal.record_event(some_event("again", at=3.0, pod="a/p"))
    assert first.number < second.number < third.number
    assert journal.events() == (first, second, third)
    assert journal.events("a/p") == (first, third)
    assert journal.events("a/q") == ()
    assert journal.events(most=1) == (third,)
    assert journal.events(after=first.number) == (second, third)
    assert journal.events()[0].figures == figures


def test_events_survive_a_restart_and_numbers_go_on(path):
    with Journal.open(path) as journal:
        first = journal.record_event(some_event("m"))
    with Journal.open(path) as journal:
        assert journal.events() == (first,)
        assert journal.record_event(some_event("n")).number > first.number


def test_a_repeated_event_is_counted_if_it_comes_within_a_minute(journal):
    first = journal.record_event(some_event("m", at=0.0))
    assert journal.record_event(some_event("n", at=1.0)).number != first.number
    assert journal.record_event(some_event("m", at=60.0)) == first._replace(at=60.0, times=2)
    assert journal.record_event(some_event("m", at=100.0)).times == 3
    assert journal.record_event(some_event("m", at=161.0)).times == 1
    assert [(one.message, one.at, one.times) for one in journal.events()] == [
        ("m", 100.0, 3),
        ("n", 1.0, 1),
        ("m", 161.0, 1),
    ]


@pytest.mark.req("E6")
def test_events_with_figures_are_each_a_record_of_their_own(journal):
    for _ in range(3):
        journal.record_event(some_event("m", figures={"bytes": 5}))
    assert len(journal.events()) == 3


def test_old_events_are_removed_in_small_steps_and_the_latest_stays(journal, monkeypatch):
    monkeypatch.setattr(records, "MAX_EVENTS", 100)
    for number in range(1000):
        journal.record_event(some_event(str(number)))
    kept = journal.events(most=5000)
    assert 100 <= len(kept) < 100 + records.EVENTS_BETWEEN
    assert kept[-1].number == 1000
    month_later = 1.0 + records.MAX_EVENT_SECONDS * 2
    for number in range(records.EVENTS_BETWEEN):
        journal.record_event(some_event(f"late {number}", at=month_later))
    assert all(one.at == month_later for one in journal.events(most=5000))


@pytest.mark.req("E14")
def test_a_noisy_pod_takes_the_history_of_no_other_one_away(journal, monkeypatch):
    monkeypatch.setattr(records, "MAX_EVENTS", 1000)
    monkeypatch.setattr(records, "MAX_EVENTS_OF_POD", 100)
    journal.record_event(some_event("admitted")._replace(pod="default/calm"))
    journal.record_event(some_event("set up")._replace(pod=""))
    for number in range(5000):
        journal.record_event(some_event(str(number))._replace(pod="default/noisy"))
    assert [one.message for one in journal.events("default/calm")] == ["admitted"]
    assert [one.message for one in journal.events(most=10_000) if not one.pod] == ["set up"]
    noise = [one.message for one in journal.events("default/noisy", most=10_000)]
    assert 100 <= len(noise) < 100 + records.EVENTS_BETWEEN
    assert noise[-1] == "4999"
    for number in range(2000):  # of the node, which has no limit of its own
        journal.record_event(some_event(str(number))._replace(pod=""))
    kept = journal.events(most=10_000)
    assert 1000 <= len(kept) < 1000 + records.EVENTS_BETWEEN
    assert kept[-1].message == "1999"


def test_an_event_that_cannot_be_read_does_not_hide_the_others(journal, path):
    journal.record_event(some_event("m", figures={"a": 1}))
    journal.record_event(some_event("n"))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE happenings SET figures = '{' WHERE number = 1")
    assert [one.message for one in journal.events()] == ["n"]


# --- values and decisions


@pytest.mark.req("B13", "A23")
def test_values_are_kept_replaced_and_removed(path):
    with Journal.open(path) as journal:
        journal.set_value("cpus", {"uid/main": [2, 3]})
        journal.set_value("sequence", 2**70)
        journal.set_value("gone", "x")
        journal.set_value("gone", None)
        journal.set_value("empty", {})
    with Journal.open(path) as journal:
        assert journal.value("cpus") == {"uid/main": [2, 3]}
        assert journal.value("sequence") == 2**70
        assert journal.value("gone") is None
        assert journal.value("empty") == {}
        journal.set_value("cpus", {})
        assert journal.value("cpus") == {}


def test_a_value_that_cannot_be_read_is_reported_and_is_nothing(journal, path):
    journal.set_value("x", 1)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("""UPDATE "values" SET value = '{' WHERE key = 'x'""")
    assert journal.value("x") is None
    assert "the value x cannot be read" in journal.notes[0]


def test_decisions_are_kept_with_their_snapshots(path):
    snapshot = {"pods": [{"name": f"p{number}", "bytes": 2**50 + number} for number in range(110)]}
    with Journal.open(path) as journal:
        for number in range(250):
            kind = "evict" if number % 2 else "reclaim"
            assert journal.record(kind, snapshot, {"victim": number}, float(number)) == number + 1
    with Journal.read(path) as journal:
        found = list(journal.decisions())
        assert [one.decision for one in found] == [{"victim": number} for number in range(250)]
        assert all(one.snapshot == snapshot for one in found)
        assert [one.number for one in journal.decisions("evict", after=240)] == [242, 244, 246, 248, 250]
    assert Path(path).stat().st_size < 2**20


def test_the_oldest_decisions_go_when_they_are_too_many_bytes(journal, monkeypatch):
    monkeypatch.setattr(records, "MAX_DECISION_BYTES", 100_000)
    noise = random.Random(4)
    for number in range(200):
        journal.record("evict", noise.randbytes(1000).hex(), number, 1.0)
    found = list(journal.decisions())
    assert found[-1].decision == 199
    assert 60 < len(found) < 150


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_plain_value_comes_back(value):
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        for statement in schema.STEPS[0]:
            memory.execute(statement)
        journal = Journal(":memory:", memory, is_writable=False)
        journal.set_value("x", value)
        assert journal.value("x") == value


@pytest.mark.parametrize(("table", "column"), [("pods", "pod"), ("lives", "life")])
def test_a_row_in_which_a_bit_was_flipped_is_set_aside(tmp_path, table, column):
    """It is still JSON, and would be another pod."""
    path = tmp_path / "journal.db"
    with Journal.open(str(path)) as journal:
        journal.save(named("whole"))
        journal.save(named("flipped", order=2, state=PodState(accepted_at=5.0)))
    with closing(sqlite3.connect(path)) as database, database:
        uid = named("flipped").pod.metadata.uid
        (text,) = database.execute(f"SELECT {column} FROM {table} WHERE uid = ?", (uid,)).fetchone()
        other = text.replace("flipped", "flippee").replace("5.0", "4.0")
        assert other != text
        database.execute(f"UPDATE {table} SET {column} = ? WHERE uid = ?", (other, uid))
    with Journal.open(str(path)) as journal:
        assert journal.pods() == (named("whole"),)
        assert "checksum" in journal.notes[-1]


def test_a_journal_without_checksums_is_read(tmp_path):
    path = tmp_path / "journal.db"
    with Journal.open(str(path)) as journal:
        journal.save(named("old"))
        journal.set_value("key", [1])
    with closing(sqlite3.connect(path)) as database, database:
        for table, column in (("pods", "pod"), ("lives", "life"), ('"values"', "value")):
            database.execute(f"UPDATE {table} SET {column} = substr({column}, 1, length({column}) - 9)")
    with Journal.open(str(path)) as journal:
        assert journal.pods() == (named("old"),)
        assert journal.value("key") == [1]
        assert journal.notes == ()


def test_a_journal_that_was_removed_takes_nothing_more(tmp_path):
    path = tmp_path / "journal.db"
    with Journal.open(str(path)) as journal:
        path.rename(tmp_path / "away.db")
        with pytest.raises(JournalError, match="was removed or replaced"):
            journal.save(named("lost"))
        (tmp_path / "away.db").rename(path)
        journal.save(named("kept"))
        assert journal.pods() == (named("kept"),)


def test_a_row_of_an_older_journal_needs_no_checksum_whatever_its_text():
    older = '{"message":"see issue#abcdef"}'
    assert older[-9] == "#"
    assert opened(older) == older
    assert opened(sealed(older)) == older
    with pytest.raises(Unreadable):
        opened(sealed(older).replace("see", "sea"))
