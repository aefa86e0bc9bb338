"""The fixtures and the choice of machines are those of tests/kernel. The tests of a module share one agent if they do
not harm it."""

from collections.abc import Iterator

import pytest

from tests.kernel.agents import RUNTIMES, Up, up
from tests.kernel.cgroups import Cgroup
from tests.kernel.conftest import (
    _nothing_left,
    cgroup_root,
    containerd,
    new_cgroup_root,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
    pytest_runtest_makereport,
    spawn,
)
from tests.kernel.evictions import condition
from tests.kernel.small_disk import small
from tests.kernel.waiting import eventually

__all__ = [
    "_nothing_left",
    "cgroup_root",
    "containerd",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "small",
    "spawn",
    "up",
]


@pytest.fixture(scope="module")
def shared_root() -> Iterator[Cgroup]:
    yield from new_cgroup_root()


@pytest.fixture(scope="module", params=RUNTIMES)
def shared_agent(
    request: pytest.FixtureRequest, shared_root: Cgroup, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    """A module may have FLAGS for it."""
    runtime = request.getfixturevalue("containerd") if request.param == "cri" else None
    flags = getattr(request.module, "FLAGS", ())
    made = Up(shared_root, tmp_path_factory.mktemp("shared"), *flags, containerd=runtime)
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def agent(shared_agent: Up) -> Iterator[Up]:
    """Runs already, and for the tests after this one too. The pods of a test are gone after it, and the shortage that
    they caused is over: pods would be refused for it."""
    eventually(lambda: condition(shared_agent, "MemoryPressure") == "False", details=shared_agent.log_tail)
    yield shared_agent
    shared_agent.delete_all()
