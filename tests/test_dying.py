"""Killing processes and freeing their memory. On real kernels: tests/kernel/test_evictions.py."""

import os
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


def test_only_processes_that_still_exist_are_killed(sleeping):
    stays, goes = sleeping
    reads = [{stays.pid, goes.pid}, {goes.pid}, {goes.pid}]
    dying = Dying(lambda: reads.pop(0))
    dying.kill()
    assert dying.are_all()
    assert goes.wait(30) == -signal.SIGKILL
    assert stays.poll() is None
    dying.close()
    assert dying.is_closed


def test_a_kill_that_may_have_missed_a_process_says_so(sleeping):
    first, second = sleeping
    nobody = Dying(set)  # no process was found, but there may be one
    nobody.kill()
    assert not nobody.are_all()
    reads = [{first.pid}, {first.pid}, {first.pid, second.pid}, set()]
    dying = Dying(lambda: reads.pop(0))
    dying.kill()
    assert not dying.are_all()
    assert first.wait(30) == -signal.SIGKILL
    assert second.poll() is None
    dying.kill()  # gone already
    assert dying.are_all()
    dying.close()


def test_a_number_that_may_be_anothers_by_now_gets_no_real_time_priority(sleeping, monkeypatch):
    """The thread that hurries the killed processes may come to it after they have ended and were reaped."""
    hurried = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, *_: hurried.append(pid))
    first, second = sleeping
    dying = Dying(lambda: {first.pid, second.pid})
    first.kill()
    first.wait()
    dying.hurry()
    assert hurried == [second.pid]
    dying.close()
