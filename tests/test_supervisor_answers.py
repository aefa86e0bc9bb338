"""The supervisor's answers: each fits into a packet, however much there is to say."""

import json
import socket
from typing import Any

import pytest

from evenkeel.runtime.process.supervisor.child_reports import read_report, tell
from evenkeel.runtime.process.supervisor.supervisor import in_packets
from evenkeel.runtime.process.supervisor_protocol import MOST_BYTES, ExitFile, ProcessFile, decode, encode


def record(number: int) -> dict[str, Any]:
    """A container of a pod on cgroup v1 with systemd, as long as names may be."""
    cgroup = f"/kubepods.slice/kubepods-burstable.slice/{'p' * 90}.slice/evenkeel-{'c' * 63}-{number}.scope"
    procs = tuple(
        f"/sys/fs/cgroup/{name}{cgroup}/tasks" for name in ("cpu,cpuacct", "memory", "cpuset", "pids")
    )
    process = ProcessFile(number, number, cgroup, (*procs, *procs), 1.0, has_pid_namespace=True)
    return {"attempt": ["u" * 36, "c" * 63, number], **process._asdict(), "exit": None}


def ended(number: int) -> dict[str, Any]:
    """Its exit could not be written to a disk that is full. Its last words are no text."""
    return {**record(number), "exit": ExitFile(1, message="\ufffd" * 4096)._asdict()}


@pytest.mark.parametrize("records", [[], [record(1)], [*map(record, range(250))], [*map(ended, range(20))]])
def test_all_records_are_listed_in_packets_that_are_not_too_long(records):
    packets: list[dict[str, Any]] = []
    in_packets(records, lambda **said: packets.append(decode(encode({"id": 1, **said}))))
    assert [one for packet in packets for one in packet["records"]] == json.loads(json.dumps(records))
    assert [packet["more"] for packet in packets] == [*[True] * (len(packets) - 1), False]


@pytest.mark.parametrize("letter", ["x", "\0", "\U0001f409"])
def test_an_error_that_names_a_very_long_program_fits_into_an_answer(letter):
    """A pod's command may be as long as its manifest. Without an answer, the start would wait for minutes."""
    line = json.dumps(
        {"error": f"command {letter * MOST_BYTES!r} was not found", "hint": letter * MOST_BYTES}
    )
    said = read_report(line.encode() + b"\n")
    assert said.error.startswith("command '")
    assert encode({"id": 1, "error": said.error, "hint": said.hint})


@pytest.mark.parametrize("letter", ["x", "\0", "\U0001f409"])
def test_a_child_need_not_wait_until_the_report_of_a_very_long_program_is_read(letter):
    """The supervisor reads it when the child has ended."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    tell(theirs.send, note="n")
    tell(theirs.sendall, error=f"command {letter * MOST_BYTES!r} was not found", hint=letter * MOST_BYTES)
    theirs.close()
    with ours, ours.makefile("rb") as report:
        assert read_report(report.read()).error.startswith("command '")
