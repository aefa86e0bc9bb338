"""What the cluster's tests share: one control plane for all of a run."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import control_plane_programs
from tests.cluster.control_plane import PACKAGES, ControlPlane
from tests.machines.cache import CACHE
from tests.machines.packages import require
from tests.needing import needing

LOGS = CACHE / "log" / "cluster"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = any(Path(__file__).parent in item.path.parents for item in items)
    if here and not config.option.collectonly and os.environ.get("EVENKEEL_MACHINE") != "host":
        raise pytest.UsageError(
            "these tests run through 'python -m tests.machines test host -- tests/cluster'"
        )


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """The logs of its programs stay in .cache/machines/log/cluster."""
    with needing():
        require(PACKAGES)
        control_plane_programs()
    with tempfile.TemporaryDirectory(prefix="evenkeel-cluster-") as temporary:
        directory = Path(temporary, "plane")
        try:
            with ControlPlane(directory) as one:
                yield one
        finally:
            LOGS.mkdir(parents=True, exist_ok=True)
            for log in directory.glob("*.log"):
                shutil.copy(log, LOGS)


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A Kubernetes namespace of the test's own, ready for pods; what is left in it goes in its own time."""
    name = f"test-{secrets.token_hex(3)}"
    plane.make_namespace(name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")
