"""Huge pages on a real kernel: limits on every level, and no page above them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.defaults import default_pod
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import reconcile
from evenkeel.cgroup.tree import Version
from evenkeel.host.capacity import machine_capacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from tests.kernel import drivers
from tests.kernel.cgroups import Cgroup
from tests.kernel.drivers import path_of, placed
from tests.kernel.processes import Spawn
from tests.strategies import container, pod

pytestmark = pytest.mark.cgroup("guest")
MIB = 1 << 20
PAGES = 4
AVAILABLE = Path("/proc/sys/vm/nr_hugepages")

driver = drivers.driver


@pytest.fixture
def _pages() -> Iterator[None]:
    before = AVAILABLE.read_text()
    AVAILABLE.write_text(str(PAGES))
    try:
        assert int(AVAILABLE.read_text()) == PAGES, "the kernel found no room for them"
        yield
    finally:
        AVAILABLE.write_text(before)


@pytest.mark.usefixtures("_pages")
@pytest.mark.req("A1", "B1")
@pytest.mark.parametrize("profile", ["documents", "kubernetes"])
def test_a_container_gets_the_huge_pages_it_asked_for_and_no_more(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn, profile: str
):
    found = machine_capacity()
    assert found.hugepages[2 * MIB] == PAGES
    config = defaulted(KubeletConfiguration(cgroup_root=path_of(cgroup_root), profile=profile))
    node = node_view(found, config)
    amounts = {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"}
    one = default_pod(pod(container(amounts, amounts)), node.profile)
    tree = plan(node, [PlannedPod(one)], driver.version)

    report = reconcile(driver, tree)

    assert [str(error) for error in report.failures] == []
    assert report.unavailable == ()
    assert reconcile(driver, tree).done == ()
    (planned,) = (cgroup for cgroup in tree.cgroups if cgroup.container == "c")
    here = placed(cgroup_root, planned.path)
    file = "hugetlb.2MB.max" if driver.version == Version.V2 else "hugetlb.2MB.limit_in_bytes"
    assert here.read(file) == str(4 * MIB)
    program = spawn("memory", cgroup=here)
    assert program.ask(f"huge {4 * MIB}") == f"allocated {4 * MIB}"
    program.tell(f"huge {2 * MIB}")
    assert program.wait() != 0, "a third page is more than the limit"
