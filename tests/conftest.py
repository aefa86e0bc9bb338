"""Settings and fixtures that tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fake_front import FakeFront, Served, run_command, served
from tests.machines import packages
from tests.models.agents import Place
from tests.needing import needing

# A test says what is right, not how fast this machine is today; speed is measured under bench/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    with needing():
        return packages.unpacked("prometheus")


@pytest.fixture
def front() -> FakeFront:
    return FakeFront()


@pytest.fixture
def agent(front: FakeFront, tmp_path: Path) -> Iterator[Served]:
    """The agent behind `front`, on a socket of its own."""
    with served(front, tmp_path) as agent:
        yield agent


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine without a kernel, for agents of a test."""
    return Place(str(tmp_path))


@pytest.fixture
def cli(agent: Served) -> Callable[..., tuple[object, str, str]]:
    """Runs a command against the agent. Returns its exit code, and what it printed on both streams."""
    return lambda *arguments: run_command(*arguments, state_dir=agent.state_dir)
