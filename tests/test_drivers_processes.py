"""Waiting for processes to die: the kernel reports it, and the wait ends at once."""

import os
import signal
import subprocess
import time

from evenkeel.cgroup.drivers.processes import await_deaths, is_dead


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_the_wait_ends_when_all_are_dead_reaped_or_not():
    some = [sleeping() for _ in range(3)]
    for process in some:
        process.send_signal(signal.SIGKILL)
    await_deaths([process.pid for process in some], 30)
    assert all(is_dead(process.pid) for process in some), "nobody has waited for them yet"
    for process in some:
        process.wait()
    await_deaths([process.pid for process in some], 30)


def test_the_wait_ends_when_its_time_is_over():
    process = sleeping()
    try:
        began = time.monotonic()
        await_deaths([process.pid, os.getpid()], 0.05)
        assert time.monotonic() - began >= 0.05
        assert not is_dead(process.pid)
    finally:
        process.kill()
        process.wait()


def test_processes_of_another_pid_namespace_are_waited_for_as_well():
    began = time.monotonic()
    await_deaths([0], 0.01)
    assert time.monotonic() - began >= 0.009
