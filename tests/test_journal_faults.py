"""The journal when its file is damaged or cannot be written, and when the agent is killed."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from evenkeel.journal import schema
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.lifecycle.pod_state import PodState
from tests.models.journal_records import connection_of, journal, named, path


def refused(path, opening=Journal.open):
    with pytest.raises(JournalError) as caught:
        opening(str(path)).close()
    return str(caught.value)


def test_the_journal_is_its_owners_only(path):
    Path(path).touch()
    Path(path).chmod(0o666)
    with Journal.open(path) as journal:
        journal.save(named("a"))
        for suffix in ("", "-wal", "-shm"):
            assert Path(path + suffix).stat().st_mode & 0o777 == 0o600


def test_a_journal_of_a_newer_version_is_refused_and_not_touched(path):
    Journal.open(path).close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("PRAGMA user_version = 99")
    before = Path(path).read_bytes()
    for opening in (Journal.open, Journal.read):
        message = refused(path, opening)
        assert f"{path} is of version 99, by a newer Evenkeel" in message
        assert "running pods keep running" in message
    assert Path(path).read_bytes() == before


def test_an_older_journal_becomes_one_of_today(path, monkeypatch):
    with Journal.open(path) as journal:
        journal.save(named("a"))
    steps = (*schema.STEPS, ("CREATE TABLE more (x)", "INSERT INTO more VALUES (1)"))
    monkeypatch.setattr(schema, "STEPS", steps)
    monkeypatch.setattr(schema, "VERSION", len(steps))
    for _ in range(2):
        with Journal.open(path) as journal:
            assert journal.pods() == (named("a"),)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT * FROM more").fetchall() == [(1,)]
        assert other.execute("PRAGMA user_version").fetchone() == (len(steps),)


def test_a_step_that_fails_leaves_the_older_journal_whole(path, monkeypatch):
    with Journal.open(path) as journal:
        journal.save(named("a"))
    with monkeypatch.context() as patched:
        steps = (*schema.STEPS, ("CREATE TABLE more (x)", "CREATE TABLE pods (x)"))
        patched.setattr(schema, "STEPS", steps)
        patched.setattr(schema, "VERSION", len(steps))
        refused(path)
    with Journal.open(path) as journal:
        assert journal.pods() == (named("a"),)
    with closing(sqlite3.connect(path)) as other:
        assert not other.execute("SELECT * FROM sqlite_schema WHERE name = 'more'").fetchall()


def test_the_database_of_another_program_is_refused(path):
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE theirs (x)")
    assert "is a database of another program" in refused(path)
    assert "is a database of another program" in refused(path, Journal.read)


@pytest.mark.parametrize(
    "content", [b"x" * 10_000, b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 4096, b"short"]
)
def test_a_file_that_is_no_database_is_refused_and_can_be_set_aside(path, content):
    Path(path).write_bytes(content)
    for opening in (Journal.open, Journal.read):
        message = refused(path, opening)
        assert f"the journal {path} is damaged: it is not an SQLite database" in message
        assert "running pods keep running" in message
        assert f"mv {path} {path}.damaged" in message
    assert Path(path).read_bytes() == content
    Path(path).rename(f"{path}.damaged")
    with Journal.open(path) as journal:
        assert journal.pods() == ()
    assert Path(f"{path}.damaged").read_bytes() == content


def test_a_journal_without_one_of_its_tables_is_damaged(path):
    Journal.open(path).close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE lives")
    assert "is damaged: it has no table lives" in refused(path)


def killed(path, count=200):
    """A journal of `count` pods that was not closed."""
    journal = Journal.open(path)
    with journal.transaction():
        for number in range(count):
            journal.save(named(f"pod-{number}", order=number))
    connection_of(journal).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection_of(journal).close()


def test_torn_pages_are_found_when_the_last_agent_was_killed(path):
    killed(path)
    with Path(path).open("r+b") as file:
        for page in range(8, 40):
            file.seek(page * 4096)
            file.write(b"\xa5" * 512)
    message = refused(path)
    assert f"the journal {path} is damaged: " in message
    assert "running pods keep running" in message


def opened(path):
    """What the journal says against it, and the UIDs of the pods it has."""
    try:
        with Journal.open(str(path)) as journal:
            read = {held.pod.metadata.uid for held in journal.pods()}
            journal.save(named("new"))
            journal.events()
    except JournalError as error:
        return str(error), set()
    return "", read


def test_any_damage_ends_in_a_sentence_or_in_whole_pods(path, tmp_path):
    killed(path, 20)
    whole = Path(path).read_bytes()
    expected = {f"pod-{number}" for number in range(20)}
    noise = random.Random(7)
    for _ in range(60):
        content = bytearray(whole)
        if noise.random() < 0.2:
            del content[noise.randrange(len(content)) :]
        for _ in range(noise.randrange(1, 4)):
            at = noise.randrange(max(1, len(content)))
            content[at : at + noise.choice([1, 16, 600, 4096])] = noise.randbytes(noise.choice([1, 16, 600]))
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(content)
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"damaged.db{suffix}").unlink(missing_ok=True)
        sentence, read = opened(damaged)
        # Without a checksum, changed bytes within a text are not noticed. But a pod is read unchanged, or not at all.
        assert "running pods keep running" in sentence or "another program" in sentence or read <= expected


def test_an_emptied_file_is_not_taken_for_a_new_journal_while_its_log_is_there(path):
    journal = Journal.open(path)
    journal.save(named("a"))
    os.truncate(path, 0)
    assert "it is empty, but the log of writes beside it is not" in refused(path)
    connection_of(journal).close()


def test_the_search_for_damage_is_bounded_in_time(path):
    killed(path, 50)
    with closing(schema.connect(path, "ro")) as connection:
        connection.execute("SELECT * FROM pods")
        schema.check(connection, path, seconds=-1.0)
    Journal.open(path).close()


def fill(journal, pages=0):
    """The database takes no more than a few pages more than it has."""
    (now,) = connection_of(journal).execute("PRAGMA page_count").fetchone()
    connection_of(journal).execute(f"PRAGMA max_page_count = {now + pages}")


def write_until_full(journal):
    for number in range(10_000):
        try:
            journal.save(named(f"filler-{number}", order=number, source="x" * 3000))
        except JournalError as error:
            return number, error
    raise AssertionError("it is never full")


def test_a_full_disk_is_a_sentence_and_the_journal_goes_on_when_there_is_room(journal, path):
    journal.save(named("a", order=-1))
    fill(journal)
    number, error = write_until_full(journal)
    assert error.is_passing
    assert f"the disk is full: the journal {path} takes no more; running pods keep running" in str(error)
    assert len(journal.pods()) == number + 1
    journal.save(named("a", order=-1, state=PodState()))  # what has its place can still change
    connection_of(journal).execute("PRAGMA max_page_count = 100000")
    journal.save(named(f"filler-{number}", order=number, source="x" * 3000))
    with Journal.read(path) as reader:
        assert len(reader.pods()) == number + 2
        assert reader.pods()[0] == named("a", order=-1, state=PodState())


def test_there_is_room_for_what_must_be_noted_when_the_disk_becomes_full(journal):
    fill(journal)
    for number in range(30):
        journal.save(named(f"a{number}"))
    assert len(journal.pods()) == 30


def test_a_transaction_on_a_full_disk_is_undone_whole_even_if_its_error_was_caught(journal):
    journal.save(named("a"))
    fill(journal)

    def go_on_after_an_error():
        with journal.transaction():
            journal.save(named("b"))
            with pytest.raises(JournalError):
                journal.set_value("large", "x" * 2_000_000)
            with pytest.raises(JournalError):
                journal.save(named("c"))

    with pytest.raises(JournalError, match="the disk is full"):
        go_on_after_an_error()
    assert journal.pods() == (named("a"),)
    connection_of(journal).execute("PRAGMA max_page_count = 100000")
    with journal.transaction():
        journal.save(named("b"))
        journal.save(named("a", order=9))
    assert [held.order for held in journal.pods()] == [1, 9]


def test_a_lock_of_another_program_is_reported_and_passes(journal, path, monkeypatch):
    connection_of(journal).execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            JournalError, match="is locked by another program; running pods keep running"
        ) as caught:
            journal.save(named("a"))
        assert caught.value.is_passing
        with pytest.raises(JournalError), journal.transaction():
            journal.save(named("a"))
    journal.save(named("a"))
    assert journal.pods() == (named("a"),)


def test_a_place_where_no_journal_can_be_is_reported(tmp_path):
    assert "no such file or directory" in refused(tmp_path / "nowhere" / "journal.db")
    assert "is a directory" in refused(tmp_path)
    assert "there is no journal" in refused(tmp_path / "journal.db", Journal.read)
    assert not (tmp_path / "journal.db").exists()


def test_a_named_pipe_is_no_journal_and_is_not_waited_for(path):
    os.mkfifo(path)
    refused(path)


def test_a_journal_that_was_removed_in_use_is_noticed(journal, path):
    journal.checkpoint()
    Path(path).unlink()
    with pytest.raises(JournalError, match="was removed or replaced while in use"):
        journal.checkpoint()


def test_a_closed_journal_is_an_error_and_closing_twice_is_none(path):
    journal = Journal.open(path)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="cannot be used"):
        journal.save(named("a"))


def test_the_log_of_writes_is_moved_into_the_file_beside_the_writer(journal, path):
    journal.set_value("large", "x" * 2_000_000)
    before = Path(path).stat().st_size
    thread = threading.Thread(target=journal.checkpoint)
    thread.start()
    journal.save(named("a"))
    thread.join()
    assert Path(path).stat().st_size > before + 1_000_000
    assert journal.value("large") == "x" * 2_000_000
    assert journal.pods() == (named("a"),)


def test_room_is_made_again_when_rows_have_taken_it(journal):
    journal.set_value("large", "x" * 500_000)
    journal.checkpoint()
    fill(journal)
    for number in range(30):
        journal.save(named(f"a{number}"))
    assert len(journal.pods()) == 30


def test_reading_works_beside_the_agent_after_it_and_after_its_death(path):
    journal = Journal.open(path)
    journal.save(named("a"))
    with Journal.read(path) as beside:
        assert beside.pods() == (named("a"),)
        with pytest.raises(JournalError, match="read-only"):
            beside.save(named("b"))
    connection_of(journal).close()
    with Journal.read(path) as after_death:
        assert after_death.pods() == (named("a"),)
    Journal.open(path).close()
    with Journal.read(path) as after_closing:
        assert after_closing.pods() == (named("a"),)


# --- kill -9

WRITER = """
import sys
from tests.models.journal_records import named, some_event
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_state import PodState
journal = Journal.open(sys.argv[1])
round = int(sys.argv[2])
number = 0
print("ready", flush=True)
while True:
    number += 1
    life = PodState(accepted_at=round * 1e6 + number)
    with journal.transaction():
        for uid in "ab":
            journal.save(named(uid, state=life))
        journal.record_event(some_event(f"{round} {number}", at=float(number), figures={"n": number}))
        journal.record("evict", {"n": number}, number, float(number))
    print(number, flush=True)
"""

__all__ = ["journal", "path"]


def test_what_was_confirmed_is_there_after_a_kill_at_any_moment_and_nothing_is_torn(path):
    noise = random.Random(11)
    for attempt in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(attempt)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "ready\n"
            confirmed = [writer.stdout.readline() for _ in range(noise.randrange(1, 60))]
            writer.send_signal(signal.SIGKILL)
            confirmed += [line for line in writer.stdout if line.endswith("\n")]
            writer.wait()
        with Journal.open(path) as journal:
            assert journal.notes == ()
            one, other = journal.pods()
            latest = one.state.accepted_at - attempt * 1e6
            assert one.state == other.state
            assert latest >= int(confirmed[-1])
            event = journal.events(most=1)[0]
            assert event.message == f"{attempt} {latest:.0f}"
            assert list(journal.decisions(after=event.number - 1))[-1].decision == latest
