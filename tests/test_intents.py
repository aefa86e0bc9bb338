"""Intents: evictions that are written to disk before they are carried out, for the next agent."""

import threading

import pytest

from evenkeel.pressure.intents import Intent, Intents


def test_an_intent_is_known_to_the_next_agent_until_it_is_taken_up(tmp_path):
    noted = Intents(str(tmp_path), print)
    assert noted.write(Intent("u-1", "why", 5.0))
    assert noted.write(Intent("u-2", "as \N{LATIN SMALL LETTER O WITH DIAERESIS} well", 6.0))
    noted.taken_up("u-1")
    next_ = Intents(str(tmp_path), print)
    assert next_.found == (Intent("u-2", "as \N{LATIN SMALL LETTER O WITH DIAERESIS} well", 6.0),)
    next_.taken_up("u-2")
    next_.taken_up("u-3")  # an eviction without an intent
    assert not Intents(str(tmp_path), print).found


def test_an_intent_keeps_the_time_that_its_pod_was_given(tmp_path):
    noted = Intents(str(tmp_path), print)
    asked, killed = Intent("u-1", "why", 5.0, 30.0), Intent("u-2", "why", 6.0)
    noted.write(asked)
    noted.write(killed)
    assert Intents(str(tmp_path), print).found == (asked, killed)
    assert (tmp_path / "intents").read_bytes().count(b"grace_seconds") == 1  # earlier versions do not know it


def test_intents_need_no_more_room_than_they_have_and_a_long_message_is_cut(tmp_path):
    noted = Intents(str(tmp_path), print)
    size = (tmp_path / "intents").stat().st_size
    assert noted.write(Intent("long", "x" * 10_000, 1.0))
    most = 0
    while noted.write(Intent(f"u-{most}", "why", 2.0)):  # further pods are evicted without an intent
        most += 1
    assert most >= 60
    assert (tmp_path / "intents").stat().st_size == size
    found = Intents(str(tmp_path), print).found
    assert len(found) == most + 1
    assert found[0].message in "x" * 10_000
    assert len(found[0].message) > 1000
    noted.taken_up("long")
    assert noted.write(Intent("another", "why", 3.0))


@pytest.mark.parametrize(
    "damage", [b"nonsense", b"{}", b'{"uid": 1}', b'{"uid": "", "message": "", "at": "x"}']
)
def test_what_cannot_be_read_among_intents_is_left_alone(tmp_path, damage):
    Intents(str(tmp_path), print).write(Intent("u-1", "why", 5.0))
    path = tmp_path / "intents"
    whole = bytearray(path.read_bytes())
    whole[4096 : 4096 + len(damage)] = damage
    path.write_bytes(whole)
    assert [one.uid for one in Intents(str(tmp_path), print).found] == ["u-1"]


def test_watches_and_the_loop_use_the_same_intents_at_the_same_time(tmp_path):
    """Two watches may evict the same pod, while the loop takes up the intent of one of them."""
    noted = Intents(str(tmp_path), print)
    uids = [f"u-{number}" for number in range(20)]
    is_over = threading.Event()

    def watch() -> None:
        for _ in range(20):
            for uid in uids:
                noted.write(Intent(uid, "why", 1.0))

    def loop() -> None:
        while not is_over.is_set():
            for uid in uids:
                noted.taken_up(uid)

    watches = [threading.Thread(target=watch) for _ in range(2)]
    taking = threading.Thread(target=loop)
    for one in (*watches, taking):
        one.start()
    for one in watches:
        one.join()
    is_over.set()
    taking.join()
    for uid in uids:
        noted.taken_up(uid)
    assert not Intents(str(tmp_path), print).found
    most = 0
    while noted.write(Intent(f"v-{most}", "why", 2.0)):  # no slot was lost, and none is given twice
        most += 1
    assert (most, len(Intents(str(tmp_path), print).found)) == (64, 64)
