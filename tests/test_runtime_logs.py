"""From a container's output to its log and back."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import EvenkeelError
from evenkeel.runtime import log_files, log_reading
from evenkeel.runtime.log_reading import follow, read_logs
from evenkeel.runtime.log_relay import LONGEST_LINE_BYTES, LogLimits, LogRelay
from evenkeel.runtime.termination_messages import termination_message
from tests.descriptors import alone, descriptors

NOON_NS = 1_767_268_800_123_456_789  # 2026-01-01T12:00:00.123456789Z
DEFAULT = LogLimits()
ENTRY = re.compile(rb"^(\S+) (stdout|stderr) ([FP]) (.*)$")


class Relayed:
    """A relay, the container's ends of its pipes, and a clock that only the test moves."""

    def __init__(self, path: Path, limits: LogLimits = DEFAULT) -> None:
        self.path = path
        self.now = 100.0
        self.wall_ns = NOON_NS
        out, self.stdout = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        error, self.stderr = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.out, self.error = out, error
        self.ended: list[tuple[int, int]] = []  # with what was open there then
        self.relay = LogRelay(
            out,
            error,
            str(path),
            limits,
            on_end=lambda one: self.ended.append((one, os.fstat(one).st_ino)),
            wall_clock_ns=lambda: self.wall_ns,
            clock=lambda: self.now,
        )

    def say(self, text: bytes, *, stream: str = "stdout") -> float:
        """Writes to the pipe and lets the relay read it. Returns the seconds for which the relay must not be polled."""
        wait = 0.0
        while text:
            written = os.write(self.stdout if stream == "stdout" else self.stderr, text[: 32 << 10])
            text = text[written:]
            wait = self.relay.pump(self.out if stream == "stdout" else self.error)
        return wait

    def close(self) -> None:
        for descriptor in (self.stdout, self.stderr):
            try:
                os.close(descriptor)
            except OSError:
                pass
        self.relay.finish()


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Relayed]:
    made = Relayed(tmp_path / "1.log")
    yield made
    made.close()


def texts(path: Path) -> list[bytes]:
    return [line.text for line in read_logs(str(path))]


def test_lines_are_written_with_time_stream_and_tag(relayed: Relayed) -> None:
    relayed.say(b"one\ntwo\n")
    relayed.say(b"oh\n", stream="stderr")
    assert relayed.path.read_bytes() == (
        b"2026-01-01T12:00:00.123456789Z stdout F one\n"
        b"2026-01-01T12:00:00.123456789Z stdout F two\n"
        b"2026-01-01T12:00:00.123456789Z stderr F oh\n"
    )


def test_a_line_is_held_back_until_it_ends(relayed: Relayed) -> None:
    relayed.say(b"half")
    assert not relayed.path.exists()
    relayed.say(b" and half\n")
    assert relayed.path.read_bytes().endswith(b" stdout F half and half\n")


def test_a_line_that_never_ended_is_kept_as_a_part(relayed: Relayed) -> None:
    relayed.say(b"done\nno end")
    os.close(relayed.stdout)
    relayed.relay.pump(relayed.out)
    assert relayed.path.read_bytes().endswith(
        b" stdout F done\n2026-01-01T12:00:00.123456789Z stdout P no end\n"
    )
    assert relayed.relay.descriptors == (relayed.error,)
    last = list(read_logs(str(relayed.path)))[-1]
    assert (last.text, last.is_whole) == (b"no end", False)


def test_the_owner_hears_of_the_end_of_a_stream_before_it_is_closed(relayed: Relayed) -> None:
    """Its number may be another one's afterwards."""
    streams = [(one, os.fstat(one).st_ino) for one in (relayed.out, relayed.error)]
    os.close(relayed.stdout)
    relayed.relay.pump(relayed.out)
    assert relayed.ended == streams[:1]
    relayed.relay.finish()
    assert relayed.ended == streams


def test_what_is_left_in_the_pipes_is_taken_at_the_end(relayed: Relayed) -> None:
    os.write(relayed.stdout, b"left\nin the pipe")
    relayed.relay.finish()
    assert texts(relayed.path) == [b"left", b"in the pipe"]
    assert relayed.relay.descriptors == ()


def test_long_lines_are_split_and_are_one_again_when_read(relayed: Relayed) -> None:
    long = b"x" * (3 * LONGEST_LINE_BYTES + 7)
    relayed.say(b"before\n" + long + b"\nafter\n")
    entries = relayed.path.read_bytes().splitlines()
    assert max(len(ENTRY.match(entry)[4]) for entry in entries) == LONGEST_LINE_BYTES  # type: ignore[index]
    assert texts(relayed.path) == [b"before", long, b"after"]


@settings(deadline=None, max_examples=60)
@given(
    chunks=st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        b"\n",
                        b"\n\n",
                        b"x" * LONGEST_LINE_BYTES,
                        b"y" * (LONGEST_LINE_BYTES + 1),
                        b"z\n" * 9000,
                    ]
                ),
            ),
        ),
        max_size=12,
    )
)
def test_nothing_is_lost_or_changed_whatever_a_container_writes(
    chunks: list[tuple[str, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    relayed = Relayed(tmp_path_factory.mktemp("log") / "1.log")
    for stream, text in chunks:
        relayed.say(text, stream=stream)
    relayed.close()
    if not any(text for _, text in chunks):
        return
    for entry in relayed.path.read_bytes().split(b"\n")[:-1]:
        match = ENTRY.match(entry) or re.match(ENTRY.pattern, entry, re.DOTALL)
        assert match
        assert len(match[4]) <= LONGEST_LINE_BYTES
    read = {"stdout": b"", "stderr": b""}
    for line in read_logs(str(relayed.path)):
        read[line.stream] += line.text + b"\n" * line.is_whole
    for stream, back in read.items():
        assert back == b"".join(text for other, text in chunks if other == stream)


def test_files_are_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "1.log", LogLimits(max_bytes=1000, max_files=3))
    for number in range(100):
        relayed.say(b"line %d\n" % number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert names[0] == "1.log"
    assert all(re.fullmatch(r"1\.log\.\d{8}-\d{6}", name) for name in names[1:])
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    kept = texts(tmp_path / "1.log")
    assert kept == [b"line %d" % number for number in range(100 - len(kept), 100)]
    relayed.close()


def test_another_container_log_beside_is_not_rotated_away(tmp_path: Path) -> None:
    (tmp_path / "11.log").write_bytes(b"another attempt's")
    relayed = Relayed(tmp_path / "1.log", LogLimits(max_bytes=100, max_files=2))
    for number in range(20):
        relayed.say(b"line %d\n" % number)
    assert (tmp_path / "11.log").read_bytes() == b"another attempt's"
    relayed.close()


def test_a_container_beyond_its_budget_is_left_to_wait(tmp_path: Path) -> None:
    limits = LogLimits(bytes_per_second=1000, burst_bytes=5000)
    relayed = Relayed(tmp_path / "1.log", limits)
    assert relayed.say(b"x" * 3000 + b"\n") == 0.0
    wait = relayed.say(b"x" * 4000 + b"\n")
    written = (tmp_path / "1.log").stat().st_size
    assert wait >= (written - 5000) / 1000
    relayed.now += wait
    assert relayed.say(b"y\n") == 0.0
    relayed.now += 3600  # unused budget is not saved up beyond the burst
    assert relayed.say(b"x" * 6000 + b"\n") > 0.0
    relayed.close()


def test_empty_lines_are_budgeted_as_what_they_become(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "1.log", LogLimits(bytes_per_second=1000, burst_bytes=10_000))
    assert relayed.say(b"\n" * 1000) > 0.0
    relayed.close()


def test_single_bytes_are_not_read_without_end(tmp_path: Path) -> None:
    """A read costs us as much for one byte as for many. Those that wait in the pipe are read together."""
    relayed = Relayed(tmp_path / "1.log", LogLimits(bytes_per_second=2 << 20, burst_bytes=1 << 20))
    reads = 1
    while not (wait := relayed.say(b"x")):
        reads += 1
        assert reads <= 4096
    relayed.now += wait
    assert relayed.say(b"y" * 1000 + b"\n") == 0.0
    assert texts(tmp_path / "1.log") == [b"x" * reads + b"y" * 1000]
    relayed.close()


def test_what_a_full_disk_took_is_counted_and_told(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    relayed.say(b"before\n")
    real_write = os.write
    state = {"is_full": False}

    def write(descriptor: int, data: bytes) -> int:
        if descriptor in (relayed.stdout, relayed.stderr) or not state["is_full"]:
            return real_write(descriptor, data)
        if not state.get("has_taken"):
            state["has_taken"] = True
            return real_write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    state["is_full"] = True
    relayed.say(b"lost line\n")
    relayed.say(b"lost too\n")
    state["is_full"] = False
    relayed.say(b"after\n")
    assert texts(relayed.path) == [
        b"before",
        b"evenkeel: 19 bytes of log were dropped here: no space left on device",
        b"after",
    ]


def test_a_log_whose_directory_vanished_costs_only_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "app"
    directory.mkdir()
    relayed = Relayed(directory / "1.log")
    relayed.say(b"one\n")
    (directory / "1.log").unlink()
    directory.rmdir()
    relayed.say(b"lost\n")
    assert not directory.exists()
    directory.mkdir()
    relayed.now += 2
    relayed.say(b"two\n")
    assert texts(directory / "1.log") == [
        b"evenkeel: 5 bytes of log were dropped here: no such file or directory",
        b"two",
    ]
    relayed.close()


def test_a_directory_is_made_for_the_first_word(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "pod" / "app" / "1.log")
    assert not (tmp_path / "pod").exists()
    relayed.say(b"one\n")
    assert texts(tmp_path / "pod" / "app" / "1.log") == [b"one"]
    relayed.close()


def test_a_log_that_was_removed_is_begun_anew(relayed: Relayed) -> None:
    relayed.say(b"one\n")
    relayed.path.unlink()
    relayed.say(b"two\n")
    assert texts(relayed.path) == [b"two"]


def test_a_symlink_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "1.log").symlink_to(other)
    relayed = Relayed(tmp_path / "1.log")
    relayed.say(b"text\n")
    relayed.close()
    assert other.read_bytes() == b"mine"


def test_a_new_relay_goes_on_after_an_entry_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(b"2026-01-01T12:00:00.000000000Z stdout F whole\n2026-01-01T12:00:00.0000")
    relayed = Relayed(path)
    relayed.say(b"next\n")
    relayed.close()
    assert texts(path) == [b"whole", b"next"]


def test_the_last_lines_are_found_across_rotation(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "1.log", LogLimits(max_bytes=500, max_files=9))
    for number in range(40):
        relayed.say(b"line %d\n" % number)
    relayed.close()
    everything = texts(tmp_path / "1.log")
    for count in (0, 1, 2, 13, 39, 40, 41):
        tail = [line.text for line in read_logs(str(tmp_path / "1.log"), tail=count)]
        assert tail == everything[max(0, len(everything) - count) :]


def test_a_log_that_grows_as_fast_as_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "1.log", LogLimits(max_bytes=500, max_files=3))
    for number in range(5):
        relayed.say(b"before %d\n" % number)
    read = []
    for line in read_logs(str(relayed.path)):
        read.append(line.text)
        assert len(read) < 100, "it never ends"
        relayed.say(b"meanwhile\nmeanwhile\n")
    relayed.close()
    assert read == [b"before %d" % number for number in range(5)]


def test_a_long_line_is_one_of_the_last_lines(relayed: Relayed) -> None:
    long = b"x" * (2 * LONGEST_LINE_BYTES + 1)
    relayed.say(b"one\n" + long + b"\nno end")
    relayed.relay.finish()
    tail = [line.text for line in read_logs(str(relayed.path), tail=2)]
    assert tail == [long, b"no end"]


def test_lines_older_than_asked_for_are_left_out(relayed: Relayed) -> None:
    relayed.say(b"old\n")
    relayed.wall_ns += 10_000_000_000
    relayed.say(b"new\n")
    read = read_logs(str(relayed.path), since_seconds=NOON_NS / 1e9 + 5)
    assert [line.text for line in read] == [b"new"]


def test_a_log_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(EvenkeelError, match="there is no log at"):
        list(read_logs(str(tmp_path / "1.log")))


def test_following_sees_what_is_added_across_rotation_until_it_is_over(tmp_path: Path) -> None:
    relayed = Relayed(tmp_path / "1.log", LogLimits(max_bytes=300, max_files=50))
    relayed.say(b"line 0\n")
    said = 0

    def is_over() -> bool:
        nonlocal said
        if said < 60:
            for _ in range(7):  # several rotations between two looks
                said += 1
                relayed.say(b"line %d\n" % said)
            return False
        return True

    lines = [line.text for line in follow(str(tmp_path / "1.log"), is_over=is_over)]
    assert lines == [b"line %d" % number for number in range(said + 1)]
    relayed.close()


def test_following_goes_on_without_inotify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("evenkeel.host.inotify.Inotify.__init__", refused)
    monkeypatch.setattr(log_reading, "_SLEEP_SECONDS", 0.001)
    relayed = Relayed(tmp_path / "1.log")
    relayed.say(b"one\n")
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            relayed.say(b"two\n")
        return asked > 2

    assert [line.text for line in follow(str(tmp_path / "1.log"), is_over=is_over)] == [b"one", b"two"]
    relayed.close()


def test_attempts_are_told_apart_from_rotated_files(tmp_path: Path) -> None:
    for name in ("1.log", "10.log", "2.log", "2.log.20260101-120000", "x.log", "²3.log"):
        (tmp_path / name).write_bytes(b"")
    assert log_files.attempts(str(tmp_path)) == (1, 2, 10)
    assert log_files.attempts(str(tmp_path / "none")) == ()


def test_an_attempt_whose_log_is_just_being_rotated_is_the_current_one(tmp_path: Path) -> None:
    """A container runtime opens the new file a while after the old one was moved aside."""
    for name in ("1.log", "1.log.20260102-030405", "2.log.20260102-030406"):
        (tmp_path / name).write_text("2026-01-02T03:04:05.0Z stdout F said\n")
    assert log_files.attempts(str(tmp_path)) == (1, 2)
    assert [line.text for line in log_reading.read_logs(str(tmp_path / "2.log"))] == [b"said"]


def test_the_end_of_a_termination_message_is_what_counts(tmp_path: Path) -> None:
    (tmp_path / "termination-log").write_bytes(b"x" * 5000 + b"the reason")
    message = termination_message(
        str(tmp_path / "termination-log"), str(tmp_path / "1.log"), "File", is_error=True
    )
    assert len(message) == 4096
    assert message.endswith("the reason")


@pytest.mark.parametrize(
    "policy, is_error, expected",
    [
        ("FallbackToLogsOnError", True, "why it failed\n"),
        ("FallbackToLogsOnError", False, ""),
        ("File", True, ""),
    ],
)
def test_without_a_message_a_failure_may_be_told_by_the_log(
    policy: str, is_error: bool, expected: str, relayed: Relayed, tmp_path: Path
) -> None:
    relayed.say(b"why it failed\n", stream="stderr")
    (tmp_path / "termination-log").write_bytes(b"")
    reported = termination_message(
        str(tmp_path / "termination-log"), str(relayed.path), policy, is_error=is_error
    )
    assert reported == expected


def test_a_symlink_for_a_termination_message_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "termination-log").symlink_to("secret")
    assert (
        termination_message(str(tmp_path / "termination-log"), str(tmp_path / "1.log"), "File", is_error=True)
        == ""
    )


@alone
def test_a_log_that_is_rotated_while_it_is_followed_keeps_no_old_file_open(tmp_path: Path):
    path = tmp_path / "1.log"
    path.write_bytes(b"2026-01-01T12:00:00.000000000Z stdout F 0\n")
    before = descriptors()
    log = log_reading.GrowingLog(str(path))
    seen = [line.text for line in log.lines()]
    for number in range(1, 20):
        path.rename(tmp_path / f"1.log.{number:03}")
        path.write_bytes(b"2026-01-01T12:00:00.000000000Z stdout F %d\n" % number)
        seen += [line.text for line in log.lines()]
    assert seen == [str(number).encode() for number in range(20)]
    assert descriptors() <= before + 2  # the log, and the watch over it
    log.close()
    assert descriptors() == before
