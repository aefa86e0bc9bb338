"""Settings and fixtures that tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fake_front import FakeFront, Served, served
from tests.machines import packages
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
