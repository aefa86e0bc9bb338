"""The fixtures and the choice of machines are those of tests/kernel."""

from tests.kernel.agents import up
from tests.kernel.conftest import (
    _nothing_left,
    cgroup_root,
    containerd,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
    spawn,
)
from tests.kernel.small_disk import small

__all__ = [
    "_nothing_left",
    "cgroup_root",
    "containerd",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "small",
    "spawn",
    "up",
]
