"""Fixtures of the cluster's tests: one control plane with two nodes for the whole run."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.binaries import control_plane_programs
from tests.cluster.control_plane import PACKAGES, ControlPlane
from tests.cluster.held import Held
from tests.cluster.nodes import MakeNode, Node, node
from tests.cluster.workspaces import Workspace
from tests.machines.cache import CACHE
from tests.machines.packages import require
from tests.needing import needing

LOGS = CACHE / "log" / "cluster"
# A little less than Kubernetes' own 50: as long as a node's lease.
NODE_MONITOR_GRACE_SECONDS = 40


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = any(Path(__file__).parent in item.path.parents for item in items)
    if here and not config.option.collectonly and os.environ.get("EVENKEEL_MACHINE") != "host":
        raise pytest.UsageError(
            "these tests run through 'make kernel-cluster' or 'python -m tests.machines test'"
        )


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """The directory of the whole run. Its logs stay in .cache/machines/log/cluster."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-cluster-") as temporary:
        try:
            yield Path(temporary)
        finally:
            shutil.rmtree(LOGS, ignore_errors=True)
            LOGS.mkdir(parents=True)
            for log in Path(temporary).glob("*/*.log"):
                shutil.copy(log, LOGS / f"{log.parent.name}-{log.name}")


@pytest.fixture(scope="session")
def plane(directory: Path) -> Iterator[ControlPlane]:
    with needing():
        require(PACKAGES)
        control_plane_programs()
    with ControlPlane(directory / "plane", node_monitor_grace_seconds=NODE_MONITOR_GRACE_SECONDS) as one:
        yield one


@pytest.fixture(scope="session")
def make_node(plane: ControlPlane, directory: Path) -> MakeNode:
    """Makes another node, for tests that would disturb the shared ones."""

    def make(name: str, *flags: str, **options: Any) -> AbstractContextManager[Node]:
        return node(plane, name, directory / name, *flags, **options)

    return make


@pytest.fixture(scope="session")
def nodes(make_node: MakeNode) -> Iterator[list[Node]]:
    """The nodes that all tests share. A test leaves them running and ready."""
    with contextlib.ExitStack() as opened:
        made = [opened.enter_context(make_node(name)) for name in ("node1", "node2")]
        for one in made:
            one.start()
        yield made


@pytest.fixture
def workspace(plane: ControlPlane) -> Iterator[Workspace]:
    """A Kubernetes namespace of the test's own; its pods are gone after the test."""
    with Workspace(plane, f"test-{secrets.token_hex(3)}") as one:
        yield one


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """Pods that show if one of them runs twice."""
    tmp_path.chmod(0o777)
    return Held(tmp_path)
