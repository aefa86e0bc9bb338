"""The stream of events and its parsers, also if the kernel refuses or the events are not consumed."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.host.event_stream import EventStream
from evenkeel.host.event_types import (
    LogGap,
    MemoryEvents,
    OomKill,
    OomNotified,
    SubscriptionEnded,
    subscription_refusal,
)
from evenkeel.host.inotify import Inotify
from evenkeel.host.kernel_log import KernelLog
from evenkeel.host.memory_notifications import (
    MemoryEventsWatch,
    OomNotification,
    UsageThreshold,
    added,
    parse_counters,
)
from evenkeel.host.psi import ArmedTrigger, Kind, Resource, Trigger, parse_pressure, without_privilege
from tests.descriptors import alone, descriptors
from tests.models.agents import until

PRESSURE = """\
some avg10=1.53 avg60=0.87 avg300=0.09 total=6127500
full avg10=0.20 avg60=0.11 avg300=0.00 total=1150000
"""

MEMORY_EVENTS = "low 1\nhigh 2\nmax 35\noom 1\noom_kill 1\noom_group_kill 0\nsock_throttled 9\n"


# Parsers


def test_pressure_is_percent_and_total():
    figures = parse_pressure(PRESSURE)
    assert figures.some == (1.53, 0.87, 0.09, 6127500)
    assert figures.full == (0.20, 0.11, 0.0, 1150000)


def test_a_line_that_is_missing_or_odd_is_no_pressure():
    assert parse_pressure("some avg10=1.00 avg60=0 avg300=0 total=7\n").full.total_us == 0
    assert parse_pressure("some avg10=x avg60=0 avg300=0 total=7\nfull\nirq avg10=1\n").some.total_us == 0


def test_a_trigger_is_written_as_the_kernel_reads_it():
    assert Trigger(Resource.MEMORY, Kind.SOME, 150_000, 1_000_000).text == "some 150000 1000000"


@given(st.integers(1, 10_000_000), st.integers(500_000, 10_000_000))
def test_a_trigger_without_privilege_keeps_its_share_and_has_a_window_of_whole_two_seconds(
    stall_us, window_us
):
    asked = Trigger(Resource.IO, Kind.FULL, min(stall_us, window_us), window_us)
    given_instead = without_privilege(asked)
    assert given_instead.window_us % 2_000_000 == 0
    assert 0 < given_instead.window_us <= 10_000_000
    assert window_us <= given_instead.window_us
    share = given_instead.stall_us / given_instead.window_us
    assert share == pytest.approx(asked.stall_us / asked.window_us, abs=1e-6)
    assert without_privilege(given_instead) == given_instead


def test_memory_events_are_counted_by_what_was_added():
    before = parse_counters(MEMORY_EVENTS)
    assert before["max"] == 35
    after = parse_counters(MEMORY_EVENTS.replace("max 35", "max 40").replace("oom_kill 1", "oom_kill 3"))
    assert added("/a", before, after) == MemoryEvents("/a", max=5, oom_kill=2)
    assert added("/a", after, after) is None
    assert parse_counters("odd\nlow many\nhigh 1 2\n") == {}


def test_a_kernel_without_a_counter_has_none_of_it():
    assert added("/a", {"low": 0}, {"low": 2}) == MemoryEvents("/a", low=2)


def test_oom_control_is_read_with_and_without_its_counter():
    text = "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n"
    assert parse_counters(text) == {"oom_kill_disable": 0, "under_oom": 1, "oom_kill": 3}
    assert parse_counters("oom_kill_disable 0\nunder_oom 0\n").get("oom_kill") is None


def test_what_the_kernel_refuses_has_a_reason_with_a_mend():
    assert "max_user_watches" in subscription_refusal(OSError(errno.ENOSPC, "No space left on device"))
    assert "psi=1" in subscription_refusal(OSError(errno.EOPNOTSUPP, "Operation not supported"))
    assert subscription_refusal(OSError(errno.EACCES, "Permission denied")) == "permission denied"


# The stream


class Pipe:
    """A source that a test writes into."""

    def __init__(self, events=()):
        self.read_end, self.write_end = os.pipe()
        self.events = list(events)
        self.is_closed = False

    def tell(self, event):
        self.events.append(event)
        os.write(self.write_end, b"x")

    def fileno(self):
        return self.read_end

    def ready(self):
        os.read(self.read_end, 1)
        yield self.events.pop(0)

    def close(self):
        self.is_closed = True
        os.close(self.read_end)
        os.close(self.write_end)


async def taken(stream, number):
    return [await asyncio.wait_for(anext(stream), 60) for _ in range(number)]


@alone
def test_events_come_in_order_and_the_end_closes_everything():
    async def job():
        async with EventStream() as stream:
            source = Pipe()
            stream.add(source, "/a")
            source.tell(MemoryEvents("/a", oom=1))
            source.tell(MemoryEvents("/a", oom=2))
            assert await taken(stream, 2) == [MemoryEvents("/a", oom=1), MemoryEvents("/a", oom=2)]
        assert source.is_closed
        assert [event async for event in stream] == []

    before = descriptors()
    asyncio.run(job())
    assert descriptors() == before


def test_events_that_wait_are_given_after_the_end():
    async def job():
        stream, source = EventStream(), Pipe()
        stream.add(source, "/a")
        source.tell(LogGap(1))
        await until(lambda: not source.events)
        stream.close()
        stream.watch_kernel_log(device="/no/where")  # too late, and silent
        return [event async for event in stream]

    assert asyncio.run(job()) == [LogGap(1)]


@alone
def test_a_cancelled_listener_closes_every_descriptor(tmp_path):
    (tmp_path / "kid").mkdir()
    (tmp_path / "kid" / "memory.events").write_text(MEMORY_EVENTS)

    async def listen(listening):
        async with EventStream() as stream:
            stream.add(Pipe(), "/a")
            stream.watch_memory_events("/kid", str(tmp_path / "kid"))
            listening.set()
            async for _ in stream:
                pass

    async def job():
        listening = asyncio.Event()
        task = asyncio.create_task(listen(listening))
        await listening.wait()
        during = descriptors()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return during, descriptors()

    during, after = asyncio.run(job())
    assert during - after == 4  # pipe, inotify, memory.events


def test_a_source_that_ends_is_let_go_and_the_others_go_on():
    async def job():
        async with EventStream() as stream:
            ending, other = Pipe(), Pipe()
            stream.add(ending, "/a")
            stream.add(other, "/b")
            ending.tell(SubscriptionEnded("/a", "x", "gone"))
            assert await taken(stream, 1) == [SubscriptionEnded("/a", "x", "gone")]
            assert ending.is_closed
            other.tell(LogGap(2))
            assert await taken(stream, 1) == [LogGap(2)]

    asyncio.run(job())


def test_nothing_comes_of_a_path_that_is_no_longer_watched():
    async def job():
        async with EventStream() as stream:
            one, other = Pipe(), Pipe()
            stream.add(one, "/a")
            stream.add(other, "/b")
            stream.unwatch("/a")
            assert one.is_closed
            assert not other.is_closed
            stream.unwatch("/a")

    asyncio.run(job())


def test_events_that_are_not_consumed_stay_in_the_kernel():
    async def job():
        async with EventStream() as stream:
            source = Pipe()
            stream.add(source, "/a")
            for number in range(3000):
                source.tell(LogGap(number))
            await asyncio.sleep(0.2)
            held = 3000 - len(source.events)
            assert held < 1100
            assert await taken(stream, 3000) == [LogGap(number) for number in range(3000)]

    asyncio.run(job())


@pytest.mark.parametrize(
    ("watch", "what"),
    [
        (lambda stream, at: stream.watch_memory_events("/a", at), "memory.events"),
        (lambda stream, at: stream.watch_oom("/a", at), "memory.oom_control"),
    ],
)
@alone
def test_a_cgroup_that_is_not_there_is_an_event_and_no_exception(tmp_path, watch, what):
    async def job(where):
        async with EventStream() as stream:
            watch(stream, where)
            return await taken(stream, 1)

    before = descriptors()
    for where in (str(tmp_path), str(tmp_path / "gone")):
        (event,) = asyncio.run(job(where))
        assert isinstance(event, SubscriptionEnded)
        assert (event.path, event.what) == ("/a", what)
        assert event.why == "the cgroup is not there, or its kernel has no such file"
    assert descriptors() == before


@alone
def test_a_directory_that_is_no_cgroup_is_an_event_too(tmp_path):
    """As with cgroup v2, which has no event_control."""
    (tmp_path / "memory.oom_control").write_text("0\n")

    async def job():
        async with EventStream() as stream:
            stream.watch_oom("/a", str(tmp_path))
            return await taken(stream, 1)

    before = descriptors()
    (event,) = asyncio.run(job())
    assert isinstance(event, SubscriptionEnded)
    assert descriptors() == before


@pytest.mark.parametrize(
    "watch",
    [
        lambda at: UsageThreshold("/a", at, 1),
        lambda at: ArmedTrigger(f"{at}/io.pressure", Trigger(Resource.IO, Kind.SOME, 1, 2)),
    ],
)
@alone
def test_a_source_of_a_cgroup_that_is_not_there_leaves_no_descriptor(tmp_path, watch):
    (tmp_path / "memory.usage_in_bytes").write_text("0\n")
    before = descriptors()
    with pytest.raises(OSError, match=r"cgroup\.event_control|io\.pressure"):
        watch(str(tmp_path))
    assert descriptors() == before


@alone
def test_a_log_that_must_not_be_read_is_an_event(tmp_path):
    (tmp_path / "kmsg").write_text("")

    async def job(device):
        async with EventStream() as stream:
            stream.watch_kernel_log(device=device)
            return await taken(stream, 1)

    before = descriptors()
    (missing,) = asyncio.run(job("/no/where"))
    assert (missing.path, missing.what) == ("", "/no/where")
    (file,) = asyncio.run(job(str(tmp_path / "kmsg")))
    assert file.why == "operation not permitted"  # a plain file cannot be waited for
    assert descriptors() == before


def test_changes_of_many_files_come_through_one_descriptor(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text("oom 1\noom_kill 0\n")
    watch = MemoryEventsWatch()
    watch.add("/a", str(tmp_path / "a"))
    watch.add("/b", f"{tmp_path / 'b'}/")
    assert list(watch.ready()) == []
    (tmp_path / "b" / "memory.events").write_text("oom 3\noom_kill 1\n")
    (tmp_path / "a" / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert list(watch.ready()) == [MemoryEvents("/b", oom=2, oom_kill=1)]
    watch.remove("/b")
    (tmp_path / "b" / "memory.events").write_text("oom 9\noom_kill 1\n")
    assert list(watch.ready()) == []
    watch.close()


@alone
def test_a_file_watched_twice_is_reported_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.events").write_text("oom 1\n")
    before = descriptors()
    watch = MemoryEventsWatch()
    watch.add("/a", str(tmp_path / "a"))
    watch.add("/a", str(tmp_path / "a"))
    (tmp_path / "a" / "memory.events").write_text("oom 2\n")
    assert list(watch.ready()) == [MemoryEvents("/a", oom=1)]
    watch.close()
    assert descriptors() == before


def test_inotify_refuses_with_the_kernels_reason(tmp_path):
    inotify = Inotify()
    with pytest.raises(FileNotFoundError):
        inotify.watch_file(str(tmp_path / "gone"))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        inotify.watch_directory(str(tmp_path / "file"))
    inotify.close()


# The log


class Log(KernelLog):
    """A kernel's log that a test writes: bytes, or the errno of a refused read."""

    def __init__(self, records, after_sequence=None, proc="/no/where"):
        super().__init__(after_sequence, "/dev/null", proc)
        self.close()
        self._records = list(records)

    def _read(self):
        record = self._records.pop(0) if self._records else errno.EAGAIN
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        return record


def kill(pid, sequence):
    return f"3,{sequence},1000000,-;Memory cgroup out of memory: Killed process {pid} (a) total-vm:8kB\n".encode()


def pids(events):
    return [event.record.pid for event in events if isinstance(event, OomKill)]


@pytest.mark.req("E6")
def test_each_kill_in_the_log_is_one_event():
    log = Log([b"6,1,2,-;something\n", kill(5, 2), kill(6, 3), b"torn", kill(7, 4)])
    assert pids(log.ready()) == [5, 6, 7]
    assert list(log.ready()) == []


@pytest.mark.req("E6")
def test_lines_that_were_overwritten_are_said_to_be_lost():
    log = Log([kill(5, 2), errno.EPIPE, kill(6, 9)])
    events = list(log.ready())
    assert pids(events) == [5, 6]
    assert LogGap(6) in events


@pytest.mark.req("E6")
def test_reading_goes_on_after_the_last_line_that_was_read():
    log = Log([kill(5, 2), kill(6, 3), kill(7, 4)], after_sequence=3)
    assert list(map(type, events := list(log.ready()))) == [OomKill]
    assert pids(events) == [7]
    assert LogGap(4) in list(Log([kill(7, 8)], after_sequence=3).ready())


def test_a_process_cannot_forge_a_record():
    assert list(Log([kill(5, 2).replace(b"3,", b"11,", 1)]).ready()) == []


def test_a_log_that_ends_is_an_event():
    assert list(Log([errno.EPERM]).ready()) == [SubscriptionEnded("", "/dev/null", "operation not permitted")]


def test_where_the_kernel_names_no_cgroup_the_process_is_asked(tmp_path):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_text("0::/pods/a\n")
    events = list(Log([kill(5, 2), kill(6, 3)], proc=str(tmp_path)).ready())
    assert [event.record.cgroup for event in events] == ["/pods/a", ""]


# cgroup v1, with the kernel's part played by the test


@pytest.fixture
def v1(tmp_path):
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "memory.usage_in_bytes").write_text("4096\n")
    (tmp_path / "cgroup.event_control").write_text("")
    return tmp_path


def test_an_oom_is_reported_before_its_kill_is_counted_and_the_kill_is_counted_once(v1):
    source = OomNotification("/a", str(v1))
    assert source.again_seconds() is None
    os.eventfd_write(source.fileno(), 1)
    assert list(source.ready()) == [OomNotified("/a", 1, 0)]
    assert source.again_seconds() > 0
    assert list(source.again()) == []
    (v1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert list(source.again()) == [OomNotified("/a", 0, 2)]
    assert source.again_seconds() is None
    os.eventfd_write(source.fileno(), 3)
    assert list(source.ready()) == [OomNotified("/a", 3, 0)]
    assert list(source.ready()) == []
    source.close()


@alone
def test_nothing_stays_open_of_a_cgroup_that_is_removed_while_it_is_subscribed_to(v1):
    (v1 / "memory.oom_control").unlink()
    (v1 / "memory.oom_control").mkdir()  # it can be opened, and not be read
    before = descriptors()
    with pytest.raises(OSError, match="directory"):
        OomNotification("/a", str(v1))
    assert descriptors() == before


def test_looking_again_comes_to_an_end(v1):
    source = OomNotification("/a", str(v1))
    os.eventfd_write(source.fileno(), 1)
    list(source.ready())
    assert 20 < sum(iter(source.again_seconds, None)) < 30
    source.close()


def test_the_kernel_is_given_both_descriptors_and_the_threshold(v1):
    source = UsageThreshold("/a", str(v1), 8192)
    event, file, threshold = (v1 / "cgroup.event_control").read_text().split()
    assert int(event) == source.fileno()
    assert Path(f"/proc/self/fd/{file}").readlink() == v1 / "memory.usage_in_bytes"
    assert threshold == "8192"
    source.close()


def test_a_threshold_crossed_before_it_was_watched_is_reported_at_once(v1):
    below, above = UsageThreshold("/a", str(v1), 4097), UsageThreshold("/a", str(v1), 4096)
    assert list(below.first()) == []
    assert list(above.first()) == [("/a", 4096, 4096)]
    assert list(above.ready()) == []
    os.eventfd_write(above.fileno(), 1)
    assert list(above.ready()) == [("/a", 4096, 4096)]
    below.close()
    above.close()
