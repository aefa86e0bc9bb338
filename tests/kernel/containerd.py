"""The containerd that the tests of a run share: started for the first that needs it, ended after the last."""

import os
from collections.abc import Iterator

import pytest

from tests.kernel.conftest import MACHINE
from tests.machines import Unavailable
from tests.machines.containerd import Containerd
from tests.machines.packages import require_containerd


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    try:
        require_containerd()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
    with Containerd(systemd_cgroup=MACHINE == "systemd") as one:
        yield one
