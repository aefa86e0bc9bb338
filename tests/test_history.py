"""The usage history across agents: which samples count, and history files that cannot be used."""

import asyncio
import json
import resource
import stat
from pathlib import Path

import pytest

from evenkeel.agent.observe import history, history_file
from evenkeel.agent.observe.history import History
from evenkeel.agent.observe.history_file import (
    BUCKETS,
    MOST_COUNT,
    MOST_WATCHED,
    NAME,
    Kept,
    Period,
    Span,
    Watched,
)
from evenkeel.cgroup.tree import Kind
from evenkeel.host.files import MAX_BYTES
from tests.fake_front import running
from tests.models.agents import Place, pods_of, until
from tests.models.manifests import PODS
from tests.models.node_snapshots import MIB, SnapshotMaker, sample

START = 1_794_800_000.0
DAY = 86400.0
POD_LIST = tuple(running(pod) for pod in pods_of(PODS))


class Machine:
    """A machine on which agents watch the same pods, one after the other, with the given cpu and memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.maker = SnapshotMaker()
        self.now = START
        self.cpu_us = 0
        self.used_bytes = 100 * MIB
        self.history = self.another()

    def another(self) -> History:
        self.history = History(self.maker.view, self.now, str(self.path))
        self.history.take_up()
        return self.history

    def watch(self, looks: int, millicpu: int = 100, every: float = 60.0) -> None:
        for _ in range(looks):
            self.now += every
            self.cpu_us += round(millicpu * 1000 * every)
            node_snapshot = self.maker.node_snapshot(POD_LIST, sampled=self._sampled)
            self.history.note(node_snapshot.sweep._replace(at=self.now))

    def _sampled(self, cgroup, number):
        one = sample(cgroup, number)
        figures = one.statistics._replace(cpu_usage_us=self.cpu_us, memory_working_set_bytes=self.used_bytes)
        return one._replace(statistics=figures)

    def save(self) -> None:
        asyncio.run(self.history.save())

    def use(self):
        """The usage of every container. All containers use the same here."""
        tree = self.maker.node_snapshot(POD_LIST).sweep.tree
        paths = [one.path for one in tree.cgroups if one.kind == Kind.CONTAINER]
        (use,) = {self.history.watched[path].use for path in paths}
        return use


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / NAME)


@pytest.mark.req("B14")
def test_another_agent_goes_on_where_the_one_before_left_off(machine):
    machine.watch(21)
    before = machine.use()
    assert (before.seconds, before.memory_most_bytes) == (1200, 100 * MIB)
    machine.save()
    machine.used_bytes = 50 * MIB
    machine.another()
    machine.watch(21)
    assert machine.use()._replace(millicpu_mostly=0) == (2400, 100 * MIB, 0)
    advice = machine.history.advice(POD_LIST, ())
    assert (advice.since, advice.at) == (START, machine.now)
    assert stat.S_IMODE(machine.path.stat().st_mode) == 0o600


def test_time_in_which_no_agent_ran_is_neither_watched_nor_idle(machine):
    machine.watch(21, millicpu=1000)
    machine.save()
    machine.now += 3 * DAY  # and the containers stood still
    machine.another()
    machine.watch(21, millicpu=1000)
    use = machine.use()
    assert use.seconds == 2400
    assert 1000 <= use.millicpu_mostly <= 1150
    advice = machine.history.advice(POD_LIST, ())
    assert advice.watched_seconds == 42 * 60
    assert advice.at - advice.since > 3 * DAY


def test_what_was_used_while_no_agent_ran_is_no_rate(machine):
    machine.watch(21, millicpu=100)
    machine.save()
    machine.cpu_us += 500 * 1000 * 1_000_000
    machine.another()
    machine.watch(2, millicpu=100)
    assert 100 <= machine.use().millicpu_mostly <= 115


def test_counters_that_a_reboot_has_set_back_are_no_use(machine):
    machine.watch(21)
    machine.save()
    machine.cpu_us = 0
    machine.another()
    machine.watch(21)
    assert machine.use().seconds == 2400
    assert 100 <= machine.use().millicpu_mostly <= 115


def test_a_clock_that_was_set_is_not_time_that_was_watched(machine):
    machine.watch(11)
    machine.now += 365 * DAY
    machine.watch(11)
    machine.now -= 365 * DAY
    machine.watch(11)
    assert machine.use().seconds == 1800
    machine.save()
    machine.now = START - DAY
    machine.another()
    assert machine.history.advice(POD_LIST, ()).since <= machine.now


def test_what_is_there_again_soon_is_known_and_what_is_not_is_forgotten(machine):
    machine.watch(21)
    machine.save()
    gone = Machine(machine.path)
    gone.maker.node_snapshot()
    for minutes in (1, 11):
        sweep = gone.maker.node_snapshot(()).sweep  # the machine was booted, and no pod runs yet
        gone.history.note(sweep._replace(at=gone.now + minutes * 60))
        known = {name for name in gone.history.watched if "pod" in name}
        assert bool(known) is (minutes < 10)
    machine.another()
    machine.watch(1)
    assert machine.use().seconds == 1200


def test_what_was_more_than_two_weeks_ago_counts_no_more(machine):
    machine.used_bytes = 900 * MIB
    machine.watch(11)
    machine.used_bytes = 100 * MIB
    machine.now += 8 * DAY
    machine.watch(11)
    assert machine.use().memory_most_bytes == 900 * MIB
    machine.save()
    machine.another()
    assert machine.history.advice(POD_LIST, ()).since == START
    machine.now += 8 * DAY
    machine.watch(11)
    assert machine.use().memory_most_bytes == 100 * MIB
    assert machine.history.advice(POD_LIST, ()).since > START + 7 * DAY


BROKEN = {
    "empty": b"",
    "cut off": b'{"version":1,"now":[1,',
    "not text": b"\xff\x00\xfe",
    "a list": b"[]",
    "a number": b"7",
    "deep": b"[" * 100_000,
    "foreign": b'{"hello":"world"}',
    "without version": b'{"now":[1,2],"before":null,"watched":{}}',
    "another version's word": b'{"version":"one","now":[1,2],"before":null,"watched":{}}',
    "newer": b'{"version":2,"weeks":[]}',
    "time that is none": b'{"version":1,"now":[NaN,0],"before":null,"watched":{}}',
    "endless time": b'{"version":1,"now":[1,Infinity],"before":null,"watched":{}}',
    "a bucket too far": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,1,"%b"],null]}}'
    % (b"AAAA" * 128 + b"AQ=="),
    "too often": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,1,"/////w=="],null]}}',
    "not in base 64": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,1,"?"],null]}}',
    "not in letters": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,1,7],null]}}',
    "half a byte": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,1.5,""],null]}}',
    "no period": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[null,null]}}',
    "a long number": b'{"version":1,"now":[1,0],"before":null,"watched":{"/a":[[1,'
    + b"9" * 5000
    + b',""],null]}}',
    "too many": json.dumps(
        {
            "version": 1,
            "now": [1, 0],
            "before": None,
            "watched": {f"/{number}": [[1, 1, ""], None] for number in range(MOST_WATCHED + 1)},
        }
    ).encode(),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_of_no_use_is_put_aside_with_a_word_and_the_agent_starts(tmp_path, caplog, content):
    async def start() -> float:
        place = Place(str(tmp_path))
        async with place.agent() as agent:
            return agent.advice().since - place.now

    (tmp_path / NAME).write_bytes(content)
    assert asyncio.run(start()) == 0
    assert [one.levelname for one in caplog.records if NAME in one.getMessage()] == ["WARNING"]
    assert (tmp_path / f"{NAME}.unusable").read_bytes() == content
    assert history_file.parse((tmp_path / NAME).read_text()).before is None, "it is written anew"
    caplog.clear()
    asyncio.run(start())
    assert not [one for one in caplog.records if NAME in one.getMessage()], "it is told once"


def test_what_cannot_be_a_file_keeps_no_agent_from_starting(tmp_path, caplog):
    async def start() -> None:
        async with Place(str(tmp_path)).agent():
            pass

    (tmp_path / NAME).mkdir()
    (tmp_path / f"{NAME}.unusable").write_text("in the way")
    asyncio.run(start())
    assert "cannot be written: is a directory" in caplog.text


def test_a_full_disk_leaves_what_was_saved_before_and_no_litter(machine, caplog):
    machine.watch(11)
    machine.save()
    before = machine.path.read_bytes()
    machine.watch(11)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        machine.save()
        machine.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert machine.path.read_bytes() == before
    assert list(machine.path.parent.iterdir()) == [machine.path]
    assert len([one for one in caplog.records if "cannot be written" in one.getMessage()]) == 1
    machine.save()
    machine.another()
    assert machine.use().seconds == 1260


def test_as_much_as_there_may_be_is_written_and_read_again():
    full = Period(1e9, 2**50, [MOST_COUNT] * BUCKETS)
    watched = {f"/evenkeel/{number:0>1000}": Watched(full, full) for number in range(MOST_WATCHED)}
    text = history_file.encoded(Kept(Span(START, 1e9), Span(START, 1e9), watched))
    assert len(text) <= MAX_BYTES
    read = history_file.parse(text.decode())
    assert len(read.watched) == MOST_WATCHED
    assert next(iter(read.watched.values())).use == next(iter(watched.values())).use


@pytest.mark.req("B14")
def test_an_agent_saves_now_and_then_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(history, "_LOOKS_A_SAVE", 1)
    monkeypatch.setattr("evenkeel.agent.observe.sweep._FRESH_SECONDS", 0.0)
    path = tmp_path / NAME
    place = Place(str(tmp_path))
    began = place.now

    async def first() -> None:
        async with place.agent():
            await until(path.exists)
            path.unlink()
            place.now += 300
            await until(lambda: path.exists() and history_file.parse(path.read_text()).now.seconds >= 300)
            path.unlink()

    async def second() -> tuple[float, float]:
        async with place.agent() as agent:
            advice = agent.advice()
            return advice.since, advice.watched_seconds

    asyncio.run(first())
    assert path.exists(), "at its end"
    place.now += DAY
    since, seconds = asyncio.run(second())
    assert (since, seconds) == (began, 300)
