"""A test run that is ended by a signal removes what it has made."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evenkeel.cgroup.drivers.processes import is_dead
from tests.kernel.waiting import eventually
from tests.machines import PROJECT, host

# Its test goes on until it is ended, and the removal until it is told to. It is ended when the test runs: pytest
# removes nothing of a fixture that is interrupted before its `yield`.
TESTS = """\
import os, pathlib, time
import pytest

here = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def made():
    (here / "made").write_text(str(os.getpid()))
    yield
    (here / "removing").touch()
    while not (here / "go-on").exists():
        time.sleep(0.01)
    (here / "made").unlink()

def test_of_a_day(made):
    (here / "runs").write_text(str(os.getpid()))
    time.sleep(86400)
"""
ARGUMENTS = ("-p", "no:cacheprovider", "-p", "tests.machines.ending", "-c", os.devnull)


# It takes a while until a program that starts another one, which starts pytest, has come so far on a busy machine.
STARTED_SECONDS = 300.0


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """It is killed if it has not ended: to wait in vain is a failure, and no reason to wait for the rest of its day."""
    with subprocess.Popen(command, cwd=PROJECT, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def pytest_command(directory: Path) -> list[str]:
    (directory / "test_long.py").write_text(TESTS)
    return [sys.executable, "-m", "pytest", *ARGUMENTS, "--rootdir", str(directory), str(directory)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_of_the_background_with_what_it_made_and_a_second_one_does_not_hinder_that(
    tmp_path: Path, number: signal.Signals
):
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *pytest_command(tmp_path)]
    with started(in_background, stdout=subprocess.DEVNULL) as run:
        eventually((tmp_path / "runs").exists, within_seconds=STARTED_SECONDS)
        run.send_signal(number)
        eventually((tmp_path / "removing").exists)
        run.send_signal(signal.SIGTERM)
        run.send_signal(signal.SIGINT)
        (tmp_path / "go-on").touch()
        assert run.wait() == pytest.ExitCode.INTERRUPTED
    assert not (tmp_path / "made").exists()


# Python drops what is raised while an object is being destroyed. The loop lets it take up the signal there.
DESTROYED = """\
import os, signal, time

class Made:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100000):
            pass

def test_of_a_day():
    made = Made()
    del made
    time.sleep(86400)
"""


def test_a_signal_that_comes_while_an_object_is_destroyed_ends_a_run_too(tmp_path: Path):
    command = pytest_command(tmp_path)
    (tmp_path / "test_long.py").write_text(DESTROYED)
    with started(command, stdout=subprocess.DEVNULL) as run:
        assert run.wait(STARTED_SECONDS) == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("of_rounds", [False, True])
def test_a_run_whose_starter_was_killed_ends_with_what_it_made(tmp_path: Path, of_rounds: bool):
    command = pytest_command(tmp_path)
    if of_rounds:
        command = [*command[:2], "tests.machines.rounds", "2", "10", *command[3:]]
    (tmp_path / "go-on").touch()
    program = f"from tests.machines import host; host.run({command!r}, {{}}, time_limit_seconds=86400)"
    starter = [sys.executable, "-c", program]
    with started(starter, stdout=subprocess.DEVNULL) as run:
        pid = int(eventually(lambda: written(tmp_path / "runs"), within_seconds=STARTED_SECONDS))
        run.kill()  # it cannot say anything any more
    eventually(lambda: not (tmp_path / "made").exists())
    eventually(lambda: is_dead(pid))  # whether somebody takes note of it is a matter of the machine's init


def written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


class TimeIsOver(subprocess.Popen[bytes]):
    """The time limit is over when the command has written a file."""

    file: Path

    def wait(self, timeout: float | None = None) -> int:
        if timeout == LIMIT_SECONDS:
            eventually(self.file.exists)
            raise subprocess.TimeoutExpired(self.args, timeout)
        return super().wait(timeout)


LIMIT_SECONDS = 86400.0


def test_what_the_host_runs_is_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked, TimeIsOver.file = tmp_path / "asked", tmp_path / "hears"
    monkeypatch.setattr(subprocess, "Popen", TimeIsOver)
    script = f"trap 'touch {asked}; exit 3' TERM; touch {TimeIsOver.file}; while :; do sleep 0.01; done"
    assert host.run(["sh", "-c", script], {}, time_limit_seconds=LIMIT_SECONDS) == 124
    assert asked.exists()


# Upstream's tests take a day. The end of the cluster waits until it is told to go on.
END_TO_END = """\
import contextlib, pathlib, sys, time
from tests.cluster import __main__ as cluster

here = pathlib.Path(sys.argv[1])
cluster.require_root = cluster.require_cgroups = lambda: None
cluster.kernel_settings_kept = contextlib.nullcontext

def run(directory, **_):
    (directory / "made").touch()
    (here / "runs").touch()
    try:
        time.sleep(86400)
    finally:
        (here / "removing").touch()
        while not (here / "go-on").exists():
            time.sleep(0.01)
        (here / "removed").touch()

cluster.upstream.run = run
sys.exit(cluster.main(["e2e"]))
"""


def test_upstreams_tests_that_are_ended_by_a_time_limit_leave_no_directory(tmp_path: Path):
    """`timeout` signals a whole process group, and make signals its children once more. An agent that is not ended has
    mounts in the directory."""
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", END_TO_END, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with started(command, env=environment) as run:
        eventually((tmp_path / "runs").exists, within_seconds=STARTED_SECONDS)
        run.send_signal(signal.SIGTERM)
        eventually((tmp_path / "removing").exists)
        run.send_signal(signal.SIGTERM)
        (tmp_path / "go-on").touch()
        assert run.wait() == 128 + signal.SIGINT
    assert (tmp_path / "removed").exists()
    assert not list((tmp_path / "tmp").iterdir())


def test_the_machines_settings_are_as_before_after_a_run_that_was_interrupted(tmp_path: Path):
    file = tmp_path / "sys" / "vm" / "overcommit_memory"
    file.parent.mkdir(parents=True)
    file.write_text("0\n")

    def interrupted() -> None:
        with host.kernel_settings_kept(str(tmp_path)):
            file.write_text("1\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "0\n"
    assert not (tmp_path / "sys" / "kernel").exists()
