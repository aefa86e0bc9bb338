"""A filesystem with little room for an agent's state, and what fills it."""

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.cli.client import Client
from tests.kernel.agents import MIB, Up
from tests.kernel.evictions import decisions
from tests.kernel.waiting import eventually

SIZE_MIB = 96


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem with little room, for the agent's state: ext4 where there are loop devices, else in memory."""
    mount = tmp_path / f"small{secrets.token_hex(3)}"
    mount.mkdir()
    image = tmp_path / "image"
    mib = getattr(request, "param", SIZE_MIB)
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    try:
        run("mkfs.ext4", "-q", "-m", "0", "-N", "8192", "-O", "^has_journal", str(image))
        run("mount", "-o", "loop,errors=remount-ro", str(image), str(mount))
    except (subprocess.CalledProcessError, FileNotFoundError):
        options = f"size={mib}m,nr_inodes=8192,mode=700"
        run("mount", "-t", "tmpfs", "-o", options, "evenkeel-test", str(mount))
    try:
        yield mount
    finally:
        # The supervisor ends a moment after its last container.
        command = ["umount", "--recursive", str(mount)]
        eventually(lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0)


def on(agent: Up, place: Path) -> Up:
    """The agent with its state there."""
    agent.state = place / "state"
    agent.client = Client(str(agent.state))
    return agent


def fill(directory: Path) -> Path:
    """Leaves no byte free."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\xa5" * size)
            except OSError:
                continue
    return filler


def victims(agent: Up) -> list[str]:
    """The evicted pods in the journal. A decision is recorded after it was carried out, and on a full disk only when
    there is room again."""
    return [one["pod"] for record in decisions(agent) if record["isDone"] for one in record["evictions"]]
