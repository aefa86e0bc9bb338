"""The lock of the state directory: one agent at a time."""

import os
import subprocess
import sys

import pytest

from evenkeel.agent.node.node_setup import StateLock
from evenkeel.errors import EvenkeelError

HOLDER = """
import sys
from evenkeel.agent.node.node_setup import StateLock
lock = StateLock.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_agent_is_refused_with_the_pid_of_the_first(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            EvenkeelError, match=rf"another agent \(pid {holder.pid}\) runs with the state dir"
        ):
            StateLock.acquire(str(tmp_path))
        holder.kill()
        holder.wait()
        StateLock.acquire(str(tmp_path)).release()


def test_a_lock_that_was_released_can_be_had_again_and_a_second_release_is_nothing(tmp_path):
    lock = StateLock.acquire(str(tmp_path))
    lock.release()
    other = StateLock.acquire(str(tmp_path))
    lock.release()
    with pytest.raises(EvenkeelError, match=f"pid {os.getpid()}"):
        StateLock.acquire(str(tmp_path))
    other.release()


def test_the_lock_is_the_owners_only(tmp_path):
    lock = StateLock.acquire(str(tmp_path))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_holder_that_did_not_sign_is_still_a_holder(tmp_path):
    lock = StateLock.acquire(str(tmp_path))
    (tmp_path / "lock").write_text("")
    with pytest.raises(EvenkeelError, match="another agent runs"):
        StateLock.acquire(str(tmp_path))
    lock.release()


def test_what_cannot_be_a_lock_is_reported(tmp_path):
    (tmp_path / "directory" / "lock").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "lock").symlink_to("elsewhere")
    for name in ("nowhere", "directory", "link"):
        with pytest.raises(EvenkeelError, match=f"cannot lock the state directory {tmp_path / name}: "):
            StateLock.acquire(str(tmp_path / name))
    assert not (tmp_path / "link" / "elsewhere").exists()
