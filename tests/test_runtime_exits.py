"""Attempts and their ends on disk: complete or not there, whatever happened to the disk."""

import os
import subprocess
from pathlib import Path

import pytest

from evenkeel.runtime.paths import StatePaths, every_attempt
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor_protocol import ExitFile, ProcessFile
from evenkeel.runtime.procfs import start_ticks


def test_an_end_is_read_as_it_was_written(tmp_path):
    ended = ExitFile(143, 15, 10.25, 12.5, is_known=True, message="schade \ud800 ☔")
    supervisor_protocol.write_exit(str(tmp_path), ended)
    assert supervisor_protocol.read_exit(str(tmp_path)) == ended
    assert (tmp_path / "exit").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"exit_code":1}', b"\xff\xff", b'{"exit_code":"x"}', b"null"]
)
def test_a_record_that_cannot_be_read_counts_as_not_there(tmp_path, content):
    (tmp_path / "exit").write_bytes(content)
    assert supervisor_protocol.read_exit(str(tmp_path)) is None
    (tmp_path / "process").write_bytes(content)
    assert supervisor_protocol.read_process(str(tmp_path)) is None


def test_a_link_is_not_followed(tmp_path):
    supervisor_protocol.write_exit(str(tmp_path), ExitFile(0))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "exit").symlink_to(tmp_path / "exit")
    assert supervisor_protocol.read_exit(str(tmp_path / "other")) is None


def test_a_half_written_record_leaves_the_one_before(tmp_path, monkeypatch):
    supervisor_protocol.write_exit(str(tmp_path), ExitFile(1))

    def full(descriptor, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        supervisor_protocol.write_exit(str(tmp_path), ExitFile(2))
    assert supervisor_protocol.read_exit(str(tmp_path)) == ExitFile(1)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 7", 7, 0), ("kill -9 $$", 137, 9), ("kill $$", 143, 15)],
)
def test_a_signals_exit_code_is_128_and_its_number(script, code, number):
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
    _, status = os.waitpid(pid, 0)
    assert supervisor_protocol.of_status(status, 1.0, 2.0) == ExitFile(code, number, 1.0, 2.0)


def test_an_end_that_nobody_saw_says_so():
    assert supervisor_protocol.unknown(1.0, 2.0) == ExitFile(137, 0, 1.0, 2.0, is_known=False)


def test_every_attempt_that_has_a_directory_is_found(tmp_path):
    for path in ("pods/u1/web.1", "pods/u1/web.12", "pods/u2/a.b.3"):
        (tmp_path / path).mkdir(parents=True)
    for path in ("pods/u1/web.x", "pods/u1/web.01", "pods/u1/.2", "pods/u3/volumes"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "pods" / "file").write_text("")
    assert sorted(every_attempt(StatePaths(str(tmp_path)))) == [
        ("u1", "web", 1),
        ("u1", "web", 12),
        ("u2", "a.b", 3),
    ]
    assert not list(every_attempt(StatePaths(str(tmp_path / "nothing"))))


def own_process() -> ProcessFile:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    path = max(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()), key=len
    )
    return ProcessFile(os.getpid(), ticks, path, (), 1.5, has_pid_namespace=True, notes=("a", "b"))


def test_a_process_is_read_as_it_was_written(tmp_path):
    supervisor_protocol.write_process(str(tmp_path), own_process())
    assert supervisor_protocol.read_process(str(tmp_path)) == own_process()


def test_a_process_is_known_by_number_start_and_cgroup_together():
    process = own_process()
    assert supervisor_protocol.is_running(process)
    assert not supervisor_protocol.is_running(process._replace(ticks=process.ticks + 1))
    assert not supervisor_protocol.is_running(process._replace(cgroup="/no/such"))
    assert not supervisor_protocol.is_running(process._replace(pid=2**22 - 1))


def test_one_that_only_waits_for_its_parent_does_not_run():
    child = subprocess.Popen(["sleep", "60"])
    ticks = start_ticks(child.pid)
    assert ticks is not None
    process = own_process()._replace(pid=child.pid, ticks=ticks)
    assert supervisor_protocol.is_running(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not supervisor_protocol.is_running(process)
    child.wait()
