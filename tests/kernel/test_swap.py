"""A18 where there is swap: only memory without a guarantee is swapped out."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration, MemorySwapConfiguration, defaulted
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
from tests.kernel.drivers import path_of, placed, planned
from tests.kernel.processes import Spawn
from tests.strategies import container, pod

pytestmark = pytest.mark.cgroup("guest")
MIB = 1 << 20
SWAP_BYTES = 64 * MIB

driver = drivers.driver


@pytest.fixture
def _swap(tmp_path: Path) -> Iterator[None]:
    file = tmp_path / "swap"
    with file.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, SWAP_BYTES)
    file.chmod(0o600)
    subprocess.run(["/sbin/mkswap", str(file)], check=True, capture_output=True)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.swapon(os.fsencode(file), 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.swapoff(os.fsencode(file)) == 0, os.strerror(ctypes.get_errno())


def swapped_bytes(cgroup: Cgroup) -> int:
    if cgroup.has("memory.swap.current"):
        return int(cgroup.read("memory.swap.current"))
    return cgroup.counters("memory.stat")["swap"]


@pytest.mark.usefixtures("_swap")
@pytest.mark.req("A18")
def test_swap_takes_from_best_effort_containers_only(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    fixed = {"cpu": "1", "memory": "40Mi"}
    pods = {
        "BestEffort": pod(container(), name="a"),
        "Burstable": pod(container({"memory": "8Mi"}), name="b"),
        "Guaranteed": pod(container(fixed, fixed), name="c"),
    }
    tree = planned(driver, cgroup_root, *pods.values(), fail_swap_on=False)
    assert reconcile(driver, tree).failures == ()
    here = {one.pod.partition("/")[2]: placed(cgroup_root, one.path) for one in tree.cgroups if one.container}
    for cgroup in here.values():
        spawn("memory", cgroup=cgroup).ask(f"allocate {24 * MIB}")

    # What is there must go down by 16 MiB, and no page of it has a file.
    limit = "memory.max" if driver.version == Version.V2 else "memory.limit_in_bytes"
    cgroup_root.write(limit, 3 * 24 * MIB - 16 * MIB)

    swapped = {name: swapped_bytes(cgroup) for name, cgroup in here.items()}
    assert swapped["a"] >= 12 * MIB
    assert (swapped["b"], swapped["c"]) == (0, 0)


@pytest.mark.usefixtures("_swap")
def test_as_kubelet_does_it_a_burstable_container_has_its_part_of_the_swap(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    found = machine_capacity()
    page = os.sysconf("SC_PAGE_SIZE")
    assert found.swap_bytes == SWAP_BYTES - page, "the first page of it says what it is"
    config = KubeletConfiguration(
        cgroup_root=path_of(cgroup_root),
        profile="kubernetes",
        fail_swap_on=False,
        memory_swap=MemorySwapConfiguration("LimitedSwap"),
    )
    node = node_view(found, defaulted(config))
    quarter = found.memory_bytes // 4
    one = default_pod(pod(container({"memory": str(quarter)})), node.profile)
    tree = plan(node, [PlannedPod(one)], driver.version)
    assert reconcile(driver, tree).failures == ()
    (planned_one,) = (cgroup for cgroup in tree.cgroups if cgroup.container)
    here = placed(cgroup_root, planned_one.path)
    if driver.version == Version.V2:
        part = quarter * found.swap_bytes // found.memory_bytes
        assert abs(int(here.read("memory.swap.max")) - part) <= page
    else:
        assert not here.has("memory.swap.max")
