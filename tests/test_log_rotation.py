"""Logs that a container runtime writes: they are rotated, and have the room of as many full ones together."""

import re

from evenkeel.runtime.cri.log_rotation import MissingLogs, fit_rotated, rotate_log, shorten_log, to_rotate
from evenkeel.runtime.log_relay import LogLimits

LIMITS = LogLimits(max_bytes=1000, max_files=3)
ENTRY = b"2026-01-02T03:04:05.%09dZ stdout F said\n"


def entries(count: int) -> bytes:
    return b"".join(ENTRY % number for number in range(count))


def test_logs_that_are_too_large_or_gone_are_rotated_and_no_others(tmp_path):
    small, large = tmp_path / "small.log", tmp_path / "large.log"
    small.write_bytes(entries(1))
    large.write_bytes(entries(100))
    logs = tuple(map(str, (small, large, tmp_path / "gone.log")))
    assert to_rotate(logs, LIMITS) == ([logs[1]], [logs[2]])
    assert [rotate_log(log, LIMITS) for log in (logs[0], logs[2])] == [None, ""]
    rotated = rotate_log(str(large), LIMITS) or ""
    assert re.fullmatch(r".*/large\.log\.\d{8}-\d{6}", rotated)
    assert not large.exists()


def test_a_missing_log_is_asked_for_at_once_and_then_less_and_less_often():
    logs = MissingLogs()
    asked = [look for look in range(300) if logs.due(["gone"])]
    assert asked == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]
    assert logs.due(["another"]) == ["another"]
    assert logs.due(["gone"]) == ["gone"], "it was there at the look before"


def test_a_log_that_is_too_large_keeps_its_last_entries_and_says_so(tmp_path):
    log = tmp_path / "1.log.20260102-030405"
    whole = entries(100)
    log.write_bytes(whole)
    log.chmod(0o640)
    shorten_log(str(log), LIMITS.max_bytes)
    reported, _, kept = log.read_bytes().partition(b"\n")
    assert whole.endswith(kept)
    assert LIMITS.max_bytes - len(ENTRY % 0) < len(kept) <= LIMITS.max_bytes
    dropped = len(whole) - len(kept)
    assert reported == kept.partition(b" ")[
        0
    ] + b" stderr F evenkeel: %d bytes of log were dropped here: " % dropped + (
        b"the container says more than is kept"
    )
    assert log.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == [log.name]


def rotated_as(tmp_path, *counts: int) -> list[str]:
    """Rotated logs of so many entries, the oldest first, after the newest was fitted in."""
    logs = [tmp_path / f"1.log.20260102-03040{number}" for number in range(len(counts))]
    for log, count in zip(logs, counts, strict=True):
        log.write_bytes(entries(count))
    fit_rotated(str(logs[-1]), str(tmp_path / "1.log"), LIMITS)
    return [f"{log.name[-1]} {log.stat().st_size // len(ENTRY % 0)}" for log in logs if log.exists()]


def test_a_log_that_was_rotated_late_is_kept_whole_while_there_is_room_for_it(tmp_path):
    assert rotated_as(tmp_path, 10, 30) == ["0 10", "1 30"]


def test_the_oldest_give_way_to_a_log_that_was_rotated_late(tmp_path):
    assert rotated_as(tmp_path, 20, 20, 30) == ["2 30"]


def test_the_newest_takes_no_more_than_all_of_the_room(tmp_path):
    (newest,) = rotated_as(tmp_path, 20, 100)
    size = (tmp_path / "1.log.20260102-030401").stat().st_size
    room = (LIMITS.max_files - 1) * LIMITS.max_bytes
    assert newest.startswith("1 ")
    assert room - len(ENTRY % 0) < size < room + 200  # with the entry that says what is missing


def test_a_log_within_its_size_or_gone_is_left_alone(tmp_path):
    log = tmp_path / "1.log.20260102-030405"
    log.write_bytes(entries(3))
    for path in (log, tmp_path / "gone"):
        shorten_log(str(path), LIMITS.max_bytes)
    assert log.read_bytes() == entries(3)
    assert [path.name for path in tmp_path.iterdir()] == [log.name]
