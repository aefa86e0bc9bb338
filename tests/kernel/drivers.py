"""The driver for the machine that the tests run on, bound to the cgroup of one test; and plans for it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.detect import detect
from evenkeel.cgroup.drivers.mounts import V1_CONTROLLERS, Mounts
from evenkeel.cgroup.drivers.v1 import V1Driver
from evenkeel.cgroup.drivers.v2 import V2Driver
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.host.capacity import on_this_machine
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from tests.kernel.cgroups import UNIFIED, Cgroup

GIB = 1 << 30

# A module that uses one of these fixtures says so: `driver, path = drivers.driver, drivers.path`.


@pytest.fixture
def driver(cgroup_root: Cgroup) -> Iterator[CgroupfsDriver]:
    made = made_driver(cgroup_root)
    yield made
    made.close()


@pytest.fixture
def path(cgroup_root: Cgroup) -> str:
    """Two levels below the test's own cgroup, and not there yet."""
    return f"{path_of(cgroup_root)}/pod/container"


def path_of(cgroup: Cgroup) -> str:
    """The cgroup's path as plans have it. Tests make theirs at the top of every hierarchy."""
    return f"/{cgroup.paths()[0].name}"


def made_driver(
    cgroup: Cgroup, *, without: Sequence[str] = (), patience_seconds: float = 30
) -> CgroupfsDriver:
    """`without` are controllers, or `unified`, that the driver is to believe are not there."""
    machine = detect()
    bounds = Bounds(path_of(cgroup))
    if machine.version == Version.V2:
        return V2Driver(machine.mounts.v2, bounds, patience_seconds=patience_seconds)
    v1 = {name: point for name, point in machine.mounts.v1.items() if name not in without}
    mounts = Mounts(v1, "" if "unified" in without else machine.mounts.v2)
    return V1Driver(mounts, bounds, patience_seconds=patience_seconds)


def placed(cgroup: Cgroup, path: str) -> Cgroup:
    """The cgroup at a path of the plan, to be looked at without the code under test: in the hierarchies we use."""
    ours = {*V1_CONTROLLERS, UNIFIED}
    return Cgroup(
        {key: top.parent / path.lstrip("/") for key, top in cgroup.directories.items() if key in ours}
    )


def planned(
    driver: CgroupfsDriver,
    cgroup: Cgroup,
    *pods: Pod | PlannedPod,
    memory_bytes: int = 8 * GIB,
    **config: Any,
) -> Tree:
    """The plan for pods in the cgroup of a test, on a node of two CPUs."""
    full = defaulted(KubeletConfiguration(cgroup_root=path_of(cgroup), **config))
    node = on_this_machine(node_view(NodeCapacity(2000, memory_bytes, 100 * GIB, pids=400), full))
    planned_pods = [
        planned_pod._replace(pod=default_pod(planned_pod.pod, node.profile))
        for planned_pod in (pod if isinstance(pod, PlannedPod) else PlannedPod(pod) for pod in pods)
    ]
    return plan(node, planned_pods, driver.version)
