"""The placeholder process of a scope leaves nothing behind, even if the process that started it adopts orphans."""

import subprocess
import sys

import pytest

# In a process of its own, because it becomes a subreaper.
STORY = """
import os, signal
from evenkeel.cgroup.drivers import processes
from evenkeel.runtime.syscalls import set_child_subreaper

def is_there(pid):
    return os.path.exists(f"/proc/{pid}")

set_child_subreaper()
one, two, three = (processes.start_placeholder("/x") for _ in range(3))
os.kill(one, signal.SIGKILL)
processes.reap((one,))
assert (is_there(one), is_there(two)) == (False, True)

os.kill(two, signal.SIGKILL)
os.waitid(os.P_PID, two, os.WEXITED | os.WNOWAIT)
assert is_there(two)  # until the next is made
four = processes.start_placeholder("/x")
assert (is_there(two), is_there(three), is_there(four)) == (False, True, True)

for pid in (three, four):
    os.kill(pid, signal.SIGKILL)
processes.reap((three, four, os.getppid()))  # others are left alone
assert (is_there(three), is_there(four)) == (False, False)
"""


@pytest.mark.req("A24")
def test_a_placeholder_is_reaped_by_a_process_that_adopts_orphans():
    done = subprocess.run(
        [sys.executable, "-c", STORY], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
