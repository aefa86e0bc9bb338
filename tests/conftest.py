"""Settings and fixtures that tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.machines import packages
from tests.needing import needing

# A test says what is right, not how fast this machine is today; speed is measured under bench/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    with needing():
        return packages.unpacked("prometheus")
