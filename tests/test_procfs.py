"""Reading processes from /proc: which of them have ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor_protocol import ProcessFile
from evenkeel.runtime.procfs import read_stat
from evenkeel.runtime.session_processes import kill_all
from tests.kernel.waiting import eventually

# Its first thread ends, as by pthread_exit, and another one runs on.
LEADERLESS = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
exit_thread = 60 if platform.machine() == "x86_64" else 93
ctypes.CDLL(None).syscall(ctypes.c_long(exit_thread), 0)
"""


@pytest.fixture
def leaderless() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", LEADERLESS], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        eventually(lambda: _state(process.pid) == "Z")
        yield process
        process.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


def _has_ended(pid: int) -> bool:
    stat = read_stat(pid)
    assert stat is not None
    return stat.has_ended


def test_a_process_has_ended_with_its_last_thread(leaderless):
    """Else a supervisor that takes it over would report its end, and the container would be started a second time."""
    assert not _has_ended(leaderless.pid)
    stat = read_stat(leaderless.pid)
    assert stat is not None
    cgroup = Path(f"/proc/{leaderless.pid}/cgroup").read_text().splitlines()[0].split(":", 2)[2]
    process = ProcessFile(leaderless.pid, stat.start_ticks, cgroup, (), 0.0, has_pid_namespace=False)
    assert supervisor_protocol.is_running(process)
    assert leaderless.stdin is not None
    leaderless.stdin.close()
    os.waitid(os.P_PID, leaderless.pid, os.WEXITED | os.WNOWAIT)
    assert _state(leaderless.pid) == "Z"
    assert _has_ended(leaderless.pid)
    assert not supervisor_protocol.is_running(process)


def test_a_session_is_killed_whose_leader_has_only_other_threads_left(leaderless, tmp_path):
    (tmp_path / "cgroup.procs").write_text(f"{leaderless.pid}\n")
    kill_all(str(tmp_path), leaderless.pid)
    assert leaderless.wait(60) == -9
