"""Freezing a pod while its disk is counted, with files in a directory in place of cgroups."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.pressure.disk.brief_freeze import frozen
from tests.models.freezer_file import FreezerFile

# An agent that freezes a pod, and is killed then.
FREEZES = """
import signal, sys
from evenkeel.pressure.disk.brief_freeze import frozen
from tests.models.freezer_file import FreezerFile

with frozen(FreezerFile(sys.argv[1]), "/pod", print) as is_frozen:
    print(is_frozen, flush=True)
    signal.pause()
"""


def made(directory: Path, **options: bool) -> Any:
    (directory / "cgroup.freeze").write_text("0")
    return FreezerFile(directory, **options)


def test_a_pod_is_frozen_until_it_is_left_also_by_an_error(tmp_path: Path):
    files, notes = made(tmp_path), list[str]()
    with frozen(files, "/pod", notes.append) as is_frozen:
        assert (is_frozen, (tmp_path / "cgroup.freeze").read_text()) == (True, "1")
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    with pytest.raises(CgroupError), frozen(files, "/pod", notes.append):
        raise CgroupError("something else", path="/pod", reason="EIO")
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    assert notes == []


def test_a_machine_that_cannot_freeze_says_so(tmp_path: Path):
    with frozen(made(tmp_path, refuses=True), "/pod", print) as is_frozen:
        assert not is_frozen


def test_a_pod_is_thawed_when_the_agent_is_killed(tmp_path: Path):
    made(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", FREEZES, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"True\n"
        assert (tmp_path / "cgroup.freeze").read_text() == "1"
        agent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while (tmp_path / "cgroup.freeze").read_text() != "0":
        assert time.monotonic() < deadline, "it is still frozen"
        time.sleep(0.01)
