"""Processes on their way out; on real kernels, with their memory: tests/kernel/test_evictions.py."""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from evenkeel.host.dying import Dying


@pytest.fixture
def sleeping() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_only_those_who_are_still_there_are_killed(sleeping):
    stays, goes = sleeping
    dying = Dying([stays.pid, goes.pid])
    assert dying.kill({goes.pid})
    assert goes.wait(30) == -signal.SIGKILL
    assert stays.poll() is None
    dying.close()


def test_a_kill_that_may_have_missed_somebody_says_so(sleeping):
    first, second = sleeping
    dying = Dying([first.pid])
    assert not dying.kill(set())  # nobody was found, which need not mean that nobody is there
    assert not dying.kill({first.pid, second.pid})
    assert first.wait(30) == -signal.SIGKILL
    assert second.poll() is None
    assert dying.kill({first.pid})  # gone already
    dying.close()
