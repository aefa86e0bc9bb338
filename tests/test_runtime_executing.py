"""Commands inside a container, whose two processes may end in any order."""

import ctypes
import os
from typing import cast

import pytest

from evenkeel.runtime.process.supervisor import spawn
from evenkeel.runtime.process.supervisor.child_reports import SharedReport
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.exec_commands import ExecCommands, _Execution
from evenkeel.runtime.process.supervisor_connection import sealed_program

FIRST, SECOND = 41, 4242


class StillLoop:
    def unwatch(self, descriptor: int) -> None: ...


def report(second: int, *said: bytes) -> SharedReport:
    made = SharedReport()
    ctypes.c_int.from_address(made.number_at()).value = second
    for line in said:
        made.say(line)
    return made


@pytest.mark.parametrize("said", [(b"exec\n",), (b'{"note": "n"}\n', b"exec\n")])
@pytest.mark.parametrize("ended", [(FIRST, SECOND), (SECOND, FIRST)])
def test_the_command_may_end_before_the_process_that_forked_it(said, ended):
    answers = []
    executing = ExecCommands(cast("Loop", StillLoop()), cast("spawn.Origin", None))
    output, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(write, b"said")
    os.close(write)
    execution = _Execution(lambda **answer: answers.append(answer), FIRST, report(SECOND, *said), output)
    executing._executions.append(execution)  # noqa: SLF001 without processes
    for pid in ended:
        executing.child_ended(pid, 3 << 8 if pid == SECOND else 0)
    assert answers == [{"exit_code": 3, "output": "said"}]
    assert not executing


def test_a_report_that_is_longer_than_its_room_is_cut():
    made = report(7, b"x" * 100_000, b"more")
    assert made.second == 7
    assert set(made.said) == {ord("x")}


def test_the_program_of_the_supervisor_cannot_be_changed_through_a_process_that_runs_it(tmp_path):
    """Neither on the mount that root makes of it, nor in the copy that others have."""
    program = tmp_path / "program"
    program.write_bytes(b"#!/bin/sh\n")
    descriptor = sealed_program(str(program))
    try:
        with pytest.raises(OSError, match=r"Read-only|not permitted"):
            os.write(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY), b"#!/bin/false\n")
        assert os.pread(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY), 100, 0) == b"#!/bin/sh\n"
    finally:
        os.close(descriptor)
