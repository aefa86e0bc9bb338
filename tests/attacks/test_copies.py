"""`evenkeel cp` from a container whose tar is hostile: nothing is written outside of the target, and the operator gets
a sentence."""

import resource
import subprocess
from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_said, hostile, program
from tests.kernel.agents import MIB, Up
from tests.kernel.sessions import command

pytestmark = pytest.mark.cgroup("v1", "v2")

MOST_SAID_BYTES = 8192
ROOM_BYTES = 128 * MIB  # of the command, which is Python


def copied(agent: Up, way: str, target: Path) -> "subprocess.CompletedProcess[bytes]":
    path = str(Path(program("tar")).parent)
    container = {"env": [{"name": "PATH", "value": f"{path}:/bin:/usr/bin"}]}
    agent.apply(hostile(agent, way, "/bin/sh", "-c", "echo done; exec sleep 1000", container=container))
    await_said(agent, way)
    return subprocess.run(
        command(agent, "cp", f"{way}:/x/{way}", str(target)),
        capture_output=True,
        check=False,
        timeout=2 * PATIENCE_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (ROOM_BYTES, ROOM_BYTES)),
    )


@pytest.mark.parametrize("way", ["outside", "link", "speaks"])
def test_a_hostile_tar_writes_nothing_outside_of_the_target(agent: Up, tmp_path: Path, way: str):
    outer = tmp_path / "outer"
    (outer / "target").mkdir(parents=True)
    ended = copied(agent, way, outer / "target" / way)
    assert ended.returncode == 1, ended.stderr
    assert 0 < len(ended.stderr) <= MOST_SAID_BYTES
    assert b"Traceback" not in ended.stderr
    assert [path.name for path in outer.iterdir()] == ["target"]
    assert [path.name for path in outer.glob("**/made")] == []
