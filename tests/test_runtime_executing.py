"""What becomes of a command that is run inside a container, in whatever order its two processes are heard of."""

import os
from typing import cast

import pytest

from evenkeel.runtime.process.supervisor import spawn
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.exec_commands import ExecCommands, _Execution, numbered

FIRST, SECOND = 41, 4242


class StillLoop:
    def unwatch(self, descriptor: int) -> None: ...


@pytest.mark.parametrize("report", [b"4242\nexec\n", b"exec\n4242\n", b'{"note": "n"}\n4242\nexec\n'])
@pytest.mark.parametrize("ended", [(FIRST, SECOND), (SECOND, FIRST)])
def test_the_command_may_be_faster_than_the_process_that_tells_its_number(report, ended):
    answers = []
    executing = ExecCommands(cast("Loop", StillLoop()), cast("spawn.Origin", None))
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(write, report)
    os.close(write)
    output, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(write, b"said")
    os.close(write)
    executing._executions.append(_Execution(lambda **answer: answers.append(answer), FIRST, read, output))
    for pid in ended:
        executing.child_ended(pid, 3 << 8 if pid == SECOND else 0)
    assert answers == [{"exit_code": 3, "output": "said"}]
    assert not executing


def test_a_number_that_is_not_told_whole_yet_is_waited_for():
    assert numbered(b"exec\n42") == (0, b"exec\n42")
    assert numbered(b"exec\n4242\n") == (4242, b"exec\n")
    assert numbered(b"") == (0, b"")
