"""Settings and fixtures that tests share."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fake_front import FakeFront, Served, run_command, served
from tests.machines import packages
from tests.models.agents import Place
from tests.needing import needing

# A test checks results, not speed. Speed is measured in bench/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_OWN_DIRECTORY = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files are in a directory of the run's own. pytest would also remove those of earlier runs, and fail
    where one that was killed has left a mount."""
    if config.option.basetemp is None:  # workers are given theirs
        config.option.basetemp = config.stash[_OWN_DIRECTORY] = tempfile.mkdtemp(prefix="evenkeel-tests-")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The files of a failed run are kept, if there are any."""
    own = session.config.stash.get(_OWN_DIRECTORY, None)
    if own is None:
        return
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(own, ignore_errors=True)
    else:
        with suppress(OSError):
            Path(own).rmdir()


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
