"""The plan becomes the kernel's own, stays so, and is put right when others change it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.pod import Pod
from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.kernel_refusals import MissingController
from evenkeel.cgroup.kernel_files import default_value, direction, same_value
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import Report, reconcile, reconcile_changed
from evenkeel.cgroup.reconfigure import Relocation, found_before, not_only_ours, relocate, restoring
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.cli.main import main
from evenkeel.host.capacity import on_this_machine
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from tests.kernel.cgroups import Cgroup
from tests.kernel.drivers import made_driver, path_of, placed, planned
from tests.kernel.live_tree import cgroups_below
from tests.kernel.processes import Spawn
from tests.models.manifests import SMALL_POD
from tests.strategies import container, nodes, planned_pods, pod

MIB = 1 << 20
# Under systemd these cgroups would be made behind its back: its own driver has tests of its own.
any_version = pytest.mark.cgroup("v1", "v2")


@pytest.fixture
def driver(cgroup_root: Cgroup) -> Iterator[CgroupfsDriver]:
    made = made_driver(cgroup_root)
    yield made
    made.close()


def three_pods() -> list[Pod]:
    """One of each class."""
    whole = {"cpu": "250m", "memory": "64Mi"}
    return [
        pod(container(whole, whole), name="guaranteed"),
        pod(
            container({"cpu": "500m", "memory": "32Mi"}, {"cpu": "1", "memory": "64Mi"}, name="c"),
            container({"cpu": "100m"}, name="d"),
            name="burstable",
        ),
        pod(container(), name="besteffort"),
    ]


def differences(tree: Tree, cgroup_root: Cgroup) -> list[str]:
    """Where the kernel is not as the plan says, read without the code under test."""
    found = []
    for cgroup in tree.cgroups:
        here = placed(cgroup_root, cgroup.path)
        for file, value, _, _ in cgroup.settings:
            if not here.has(file):
                default = default_value(file, tree.version)
                if default is None or not same_value(file, value, default):
                    found.append(f"{cgroup.path}: no {file}")
            elif not same_value(file, value, here.read(file)):
                found.append(f"{cgroup.path}: {file} is {here.read(file)}, not {value}")
    return found


def made_paths(cgroup_root: Cgroup) -> set[str]:
    """Every cgroup below the test's own, in any hierarchy, by its path of the plan."""
    return {
        f"/{directory.relative_to(top.parent)}"
        for top in placed(cgroup_root, path_of(cgroup_root)).paths()
        for directory in cgroups_below(top)
    }


def container_path(tree: Tree, pod_name: str, name: str = "c") -> str:
    return next(c.path for c in tree.cgroups if c.pod.endswith(f"/{pod_name}") and c.container == name)


@any_version
@pytest.mark.req("B10", "D5", "A11", "A16")
def test_the_hierarchy_is_made_with_every_value_and_a_second_pass_writes_nothing(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    tree = planned(driver, cgroup_root, *three_pods())

    report = reconcile(driver, tree)

    assert report.failures == ()
    assert differences(tree, cgroup_root) == []
    top = f"{path_of(cgroup_root)}/kubepods"
    assert made_paths(cgroup_root) == {
        top,
        f"{top}/podguaranteed",
        f"{top}/podguaranteed/c",
        f"{top}/podguaranteed/pod.infrastructure",
        f"{top}/burstable",
        f"{top}/burstable/podburstable",
        f"{top}/burstable/podburstable/c",
        f"{top}/burstable/podburstable/d",
        f"{top}/burstable/podburstable/pod.infrastructure",
        f"{top}/besteffort",
        f"{top}/besteffort/podbesteffort",
        f"{top}/besteffort/podbesteffort/c",
        f"{top}/besteffort/podbesteffort/pod.infrastructure",
    }
    assert reconcile(driver, tree, last=report).done == ()


@pytest.mark.cgroup("v1")
@pytest.mark.req("D6")
def test_on_v1_the_soft_limit_is_the_containers_request(driver: CgroupfsDriver, cgroup_root: Cgroup):
    tree = planned(driver, cgroup_root, *three_pods())
    reconcile(driver, tree)

    held = {
        name: placed(cgroup_root, container_path(tree, *name)).read("memory.soft_limit_in_bytes")
        for name in (("burstable", "c"), ("guaranteed", "c"), ("burstable", "d"))
    }

    assert held["burstable", "c"] == str(32 * MIB)
    assert held["guaranteed", "c"] == str(64 * MIB)
    assert int(held["burstable", "d"]) > 1 << 60, "no request, no soft limit"


@pytest.mark.cgroup("v2")
@pytest.mark.req("B13", "C1", "C2", "C4")
def test_switching_memory_qos_off_restores_defaults_under_running_pods_and_on_again_reapplies(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    on = planned(driver, cgroup_root, *three_pods(), memory_throttling_factor=0.8)
    off = planned(driver, cgroup_root, *three_pods(), feature_gates={"MemoryQoS": False})
    reconcile(driver, on)
    path = container_path(on, "burstable")
    here = placed(cgroup_root, path)
    program = spawn("memory", cgroup=here)
    program.ask(f"allocate {8 * MIB}")
    assert here.read("memory.min") == str(32 * MIB)
    assert here.read("memory.high") == str(int(64 * MIB * 0.8) // 4096 * 4096)

    report = reconcile(driver, off)

    assert report.failures == ()
    for cgroup in off.cgroups:
        one = placed(cgroup_root, cgroup.path)
        assert (one.read("memory.min"), one.read("memory.high")) == ("0", "max"), cgroup.path
    assert here.read("memory.max") == str(64 * MIB), "the limit stays (C3)"

    reconcile(driver, on)

    assert differences(on, cgroup_root) == []
    assert program.ask("touch") == f"touched {8 * MIB}", "and the pod runs on"


@any_version
@pytest.mark.req("B13", "B4")
def test_limits_on_daemons_go_back_to_what_was_found_when_they_are_no_longer_enforced(
    cgroup_root: Cgroup, spawn: Spawn
):
    daemons = cgroup_root.child("daemons")
    path = f"{path_of(cgroup_root)}/daemons"
    is_v2 = daemons.has("memory.max")
    limit, weight = ("memory.max", "cpu.weight") if is_v2 else ("memory.limit_in_bytes", "cpu.shares")
    daemons.write(limit, 96 * MIB)
    daemons.write(weight, 77)
    daemon = spawn("memory", cgroup=daemons)
    daemon.ask(f"allocate {8 * MIB}")
    driver = made_driver(cgroup_root)
    reserving: dict[str, Any] = {
        "system_reserved": {"memory": "64Mi", "cpu": "500m"},
        "system_reserved_cgroup": path,
        "enforce_node_allocatable": ("pods", "system-reserved"),
    }
    on, off = (
        planned(driver, cgroup_root, *three_pods(), **reserving),
        planned(driver, cgroup_root, *three_pods()),
    )

    before = found_before(on, driver.observe_only(not_only_ours(on)), {})
    assert reconcile(driver, restoring(on, before)).failures == ()
    assert daemons.read(limit) == str(64 * MIB)
    assert differences(on, cgroup_root) == []
    again = found_before(on, driver.observe_only(not_only_ours(on)), before)
    report = reconcile(driver, restoring(off, again))

    assert report.failures == ()
    assert (daemons.read(limit), daemons.read(weight)) == (str(96 * MIB), "77")
    if is_v2:
        assert daemons.read("memory.min") == "0"
    assert daemon.ask("touch") == f"touched {8 * MIB}"
    assert reconcile(driver, restoring(off, again)).done == ()
    driver.close()


@any_version
@pytest.mark.req("A23", "B13")
def test_cores_of_ones_own_are_given_back_when_the_policy_is_switched_off(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    some = pod(container({"cpu": "1"}, {"cpu": "1"}), name="x")
    static = planned(driver, cgroup_root, PlannedPod(some, exclusive_cpus={"c": (0,)}))
    none = planned(driver, cgroup_root, PlannedPod(some))
    reconcile(driver, static)
    here = placed(cgroup_root, container_path(static, "x"))
    program = spawn("memory", cgroup=here)
    program.ask("free")
    assert os.sched_getaffinity(program.pid) == {0}

    report = reconcile(driver, restoring(none))

    assert report.failures == ()
    assert os.sched_getaffinity(program.pid) == os.sched_getaffinity(0)
    assert reconcile(driver, restoring(none), last=report).done == ()
    assert reconcile(driver, restoring(none)).done == ()
    reconcile(driver, static)
    assert os.sched_getaffinity(program.pid) == {0}, "and on again"


@any_version
@pytest.mark.req("B6", "B13")
def test_pods_move_and_run_on_when_classes_are_switched_on_and_off(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    flat: dict[str, Any] = {"cgroups_per_qos": False, "enforce_node_allocatable": ()}
    first = planned(driver, cgroup_root, *three_pods(), **flat)
    second = planned(driver, cgroup_root, *three_pods()[:2])
    reconcile(driver, first)
    kept, ended = container_path(first, "burstable"), container_path(first, "besteffort")
    program = spawn("family", "respawn", 4, cgroup=placed(cgroup_root, kept))
    program.answer()
    gone = spawn("memory", cgroup=placed(cgroup_root, ended))
    gone.ask("free")

    for before, after in ((first, second), (second, planned(driver, cgroup_root, *three_pods()[:2], **flat))):
        config = KubeletConfiguration(cgroup_root=path_of(cgroup_root), cgroups_per_qos=after is second)
        relocation = relocate(driver, defaulted(config), after)

        assert relocation.failures == ()
        assert {old for old, _ in relocation.moved} == {
            c.path for c in before.cgroups if c.kind == Kind.POD and "besteffort" not in c.path
        }
        assert reconcile(driver, after).failures == ()
        assert program.is_alive()
        assert program.pid in driver.processes(container_path(after, "burstable"))
        assert differences(after, cgroup_root) == []
        assert made_paths(cgroup_root) == {c.path for c in after.cgroups} - {path_of(cgroup_root)}
        assert relocate(driver, defaulted(config), after) == Relocation(), "and then there is nothing to move"
    assert gone.wait() == -signal.SIGKILL, "what is not in the plan is ended"


@any_version
@pytest.mark.req("B13", "D2")
def test_a_limit_that_leaves_the_plan_leaves_the_kernel(driver: CgroupfsDriver, cgroup_root: Cgroup):
    limited = planned(driver, cgroup_root, pod(container(None, {"cpu": "500m", "memory": "64Mi"}), name="x"))
    unlimited = planned(driver, cgroup_root, pod(container({"cpu": "500m", "memory": "64Mi"}), name="x"))
    reconcile(driver, limited)
    reconcile(driver, unlimited)
    assert differences(unlimited, cgroup_root) == []


@any_version
@pytest.mark.req("E9")
def test_drift_is_repaired_and_reported_and_hands_off_is_left_alone(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    tree = planned(driver, cgroup_root, *three_pods())
    first = reconcile(driver, tree)
    file = "cpu.weight" if tree.version == Version.V2 else "cpu.shares"
    changed, left = container_path(tree, "burstable"), container_path(tree, "burstable", "d")
    wanted = placed(cgroup_root, changed).read(file)
    for path in (changed, left):
        placed(cgroup_root, path).write(file, "77")

    report = reconcile(driver, tree, hands_off=(left,), last=first)

    assert [(r.path, r.file, r.found, r.restored, r.rule) for r in report.repairs] == [
        (changed, file, "77", wanted, "A11")
    ]
    assert placed(cgroup_root, left).read(file) == "77"
    again = reconcile(driver, tree, last=report)
    assert [repair.path for repair in again.repairs] == [left], "until the hands are on again"


@any_version
@pytest.mark.req("E9")
def test_a_pod_removed_behind_our_back_is_made_again_and_a_stranger_removed(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    tree = planned(driver, cgroup_root, *three_pods())
    first = reconcile(driver, tree)
    top = f"{path_of(cgroup_root)}/kubepods"
    placed(cgroup_root, f"{top}/burstable/podburstable").remove()
    stranger = placed(cgroup_root, top).child("stranger")
    intruder = spawn("spin", cgroup=stranger)
    intruder.answer()

    report = reconcile(driver, tree, last=first)

    assert report.failures == ()
    assert intruder.wait() == -signal.SIGKILL
    assert differences(tree, cgroup_root) == []
    assert {(r.path.rpartition("/")[2], r.found) for r in report.repairs} == {
        ("stranger", "made by others"),
        ("podburstable", "removed by others"),
        ("pod.infrastructure", "removed by others"),
        ("c", "removed by others"),
        ("d", "removed by others"),
    }
    assert reconcile(driver, tree, last=report).done == ()


@any_version
@pytest.mark.req("E9")
def test_after_any_number_of_quiet_passes_a_stranger_in_one_hierarchy_is_found(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    tree = planned(driver, cgroup_root, *three_pods())
    report = reconcile(driver, tree)
    for place in placed(cgroup_root, container_path(tree, "burstable").rpartition("/")[0]).paths():
        for _ in range(4):
            report = reconcile(driver, tree, last=report)
            assert report.done == ()
        (place / "stranger").mkdir()
        report = reconcile(driver, tree, last=report)
        assert [repair.found for repair in report.repairs] == ["made by others"]
        assert not (place / "stranger").exists()
    for _ in range(4):
        report = reconcile(driver, tree, last=report)
    placed(cgroup_root, container_path(tree, "burstable", "d")).remove()
    report = reconcile(driver, tree, last=report)
    assert [repair.found for repair in report.repairs] == ["removed by others"]
    assert differences(tree, cgroup_root) == []


@any_version
def test_a_pod_that_leaves_the_plan_leaves_nothing_behind(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    tree = planned(driver, cgroup_root, *three_pods())
    reconcile(driver, tree)
    path = container_path(tree, "burstable")
    program = spawn("family", "respawn", 6, cgroup=placed(cgroup_root, path))
    program.answer()
    fewer = planned(driver, cgroup_root, *three_pods()[::2])

    report = reconcile(driver, fewer)

    assert report.failures == ()
    assert program.wait() == -signal.SIGKILL
    assert not any("podburstable" in path for path in made_paths(cgroup_root))
    assert differences(fewer, cgroup_root) == []
    driver.remove(f"{path_of(cgroup_root)}/kubepods")
    assert made_paths(cgroup_root) == set()


class Vanishing:
    """A driver under which a cgroup is removed between reading and writing."""

    def __init__(self, driver: CgroupfsDriver, victim: Cgroup) -> None:
        self._driver = driver
        self._victim = victim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def observe(self, tree: Tree) -> Observed:
        observed = self._driver.observe(tree)
        self._victim.remove()
        return observed


@any_version
def test_a_cgroup_that_vanishes_between_reading_and_writing_is_made_on_the_next_pass(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    tree = planned(driver, cgroup_root, *three_pods())
    first = reconcile(driver, tree)
    other = planned(driver, cgroup_root, *three_pods(), memory_bytes=4 << 30, fair_cpu_sharing=True)
    path = container_path(tree, "burstable").rpartition("/")[0]

    report = reconcile(Vanishing(driver, placed(cgroup_root, path)), other, last=first)

    assert report.failures
    assert all("vanished" in str(error) and error.path.startswith(path) for error in report.failures)
    healed = reconcile(driver, other, last=report)
    assert healed.failures == ()
    assert differences(other, cgroup_root) == []


@any_version
@pytest.mark.req("B10", "E9")
def test_pods_that_come_and_go_change_their_own_cgroups_and_what_is_above_them(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    first, second, third = three_pods()
    before = planned(driver, cgroup_root, first, second)
    report = reconcile(driver, before)
    file = "cpu.weight" if before.version == Version.V2 else "cpu.shares"
    left = container_path(before, "guaranteed")
    placed(cgroup_root, left).write(file, "77")
    leaving = spawn("spin", cgroup=placed(cgroup_root, container_path(before, "burstable")))
    leaving.answer()

    after = planned(driver, cgroup_root, first, third)
    changed = reconcile_changed(driver, before, after, last=report)

    assert (changed.failures, changed.repairs) == ((), ())
    assert leaving.wait() == -signal.SIGKILL
    assert [line for line in differences(after, cgroup_root) if left not in line] == []
    assert placed(cgroup_root, left).read(file) == "77", "what has not changed is not looked at"
    whole = reconcile(driver, after, last=changed)
    assert [(repair.path, repair.file) for repair in whole.repairs] == [(left, file)]
    assert made_paths(cgroup_root) == {c.path for c in after.cgroups} - {path_of(cgroup_root)}
    assert reconcile(driver, after, last=whole).done == ()


@any_version
def test_a_change_finds_what_a_crash_left_half_made(driver: CgroupfsDriver, cgroup_root: Cgroup):
    before = planned(driver, cgroup_root)
    reconcile(driver, before)
    after = planned(driver, cgroup_root, *three_pods())
    half = container_path(after, "burstable")
    driver.create(half)
    driver.write(half, "pids.max", "3")
    file = "cpu.weight" if after.version == Version.V2 else "cpu.shares"
    driver.write(half, file, "77")

    report = reconcile_changed(driver, before, after)

    assert report.failures == ()
    assert differences(after, cgroup_root) == []


@pytest.mark.cgroup("v1")
def test_a_limit_below_what_is_used_fails_alone_on_v1(
    driver: CgroupfsDriver, cgroup_root: Cgroup, spawn: Spawn
):
    def tree_with(limit: str) -> Tree:
        limits = {"cpu": "1", "memory": limit}
        some = pod(container({"cpu": "100m", "memory": "4Mi"}, limits), name="x")
        return planned(driver, cgroup_root, some, fail_swap_on=False)

    before, after = tree_with("64Mi"), tree_with("8Mi")
    reconcile(driver, before)
    path = container_path(before, "x")
    spawn("memory", cgroup=placed(cgroup_root, path)).ask(f"allocate {24 * MIB}")

    report = reconcile(driver, after)

    assert {(error.file, error.reason) for error in report.failures} == {("memory.limit_in_bytes", "EBUSY")}
    assert all(step.setting.file.startswith("memory.memsw") for step in report.skipped if step.setting)
    assert placed(cgroup_root, path).read("memory.limit_in_bytes") == str(64 * MIB)
    assert not [line for line in differences(after, cgroup_root) if "memory." not in line]


@pytest.mark.cgroup("v1")
@pytest.mark.req("E7")
def test_without_a_controller_the_rest_is_applied_and_the_mend_is_reported(cgroup_root: Cgroup):
    driver = made_driver(cgroup_root, without=("pids",))
    tree = planned(driver, cgroup_root, *three_pods(), pod_pids_limit=100)

    first = reconcile(driver, tree)
    second = reconcile(driver, tree, last=first)

    for report in (first, second):
        assert len(report.failures) == 1
        assert isinstance(report.failures[0], MissingController)
        assert "mount -t cgroup -o pids" in report.failures[0].hint
    assert second.done == ()
    assert all(line.endswith("no pids.max") for line in differences(tree, cgroup_root))
    driver.close()


LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "cpu.max", "pids.max")
PROTECTIONS = ("memory.min", "memory.low", "memory.soft_limit_in_bytes")


class Witness:
    """A driver that looks after every change whether a promise was broken on the way."""

    def __init__(self, driver: CgroupfsDriver, cgroup_root: Cgroup, before: Tree | None, after: Tree) -> None:
        self._driver = driver
        self._root = cgroup_root
        self._before = {c.path: c for c in before.cgroups} if before else {}
        self._after = {c.path: c for c in after.cgroups}
        self._children: dict[str, list[str]] = {}
        for path in {*self._before, *self._after}:
            self._children.setdefault(path.rpartition("/")[0], []).append(path)
        self.broken: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def write(self, path: str, file: str, value: str) -> None:
        self._driver.write(path, file, value)
        self._check_bounds(path, file)
        if file == "memory.min":
            self._check_protection(path)
            self._check_protection(path.rpartition("/")[0])

    def _check_bounds(self, path: str, file: str) -> None:
        """Between two plans a cgroup is allowed no more than the larger, and protected by no less than the smaller."""
        was, will_be = self._before.get(path), self._after.get(path)
        ends = [end for end in (c.value(file) if c else None for c in (was, will_be)) if end is not None]
        now = placed(self._root, path).read(file)
        if len(ends) == 2 and file in LIMITS and all(direction(file, end, now) > 0 for end in ends):
            self.broken.append(f"{path} was allowed {file} {now}, more than {ends}")
        if len(ends) == 2 and file in PROTECTIONS and all(direction(file, end, now) < 0 for end in ends):
            self.broken.append(f"{path} was protected by {file} {now}, less than {ends}")

    def _check_protection(self, path: str) -> None:
        """The children's protection together is within that of their parent."""
        if path not in self._after:
            return
        children = [placed(self._root, child) for child in self._children.get(path, ())]
        promised = sum(int(child.read("memory.min")) for child in children if child.has("memory.min"))
        has = int(placed(self._root, path).read("memory.min"))
        if promised > has:
            self.broken.append(f"{path} protects {has}, its children {promised}")


def is_too_small_for_v1(tree: Tree) -> bool:
    """What the kernel needs for cgroups is charged to those above, and v1 takes no limit below what is charged."""
    limits = (c.value("memory.limit_in_bytes") for c in tree.cgroups if c.kind == Kind.POD)
    return any(limit is not None and 0 <= int(limit) < 4 * MIB for limit in limits)


@any_version
@pytest.mark.req("B10", "B13", "D5")
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    derandomize=True,
)
@given(
    plans=st.lists(st.tuples(nodes, planned_pods(most=3)), min_size=1, max_size=3), is_partly=st.booleans()
)
def test_any_sequence_of_plans_ends_with_the_kernel_as_the_last_one_says(
    driver: CgroupfsDriver, cgroup_root: Cgroup, plans: list[tuple[Any, list[PlannedPod]]], is_partly: bool
):
    last: Report | None = None
    profile = None
    for node, pods in plans:
        config = node.config._replace(cgroup_root=path_of(cgroup_root), kube_reserved_cgroup="")
        tree = plan(on_this_machine(node)._replace(config=config), pods, driver.version)
        tree = tree._replace(cgroups=tuple(c for c in tree.cgroups if c.kind != Kind.RESERVED))
        assume(not is_too_small_for_v1(tree))
        # Another profile is another start of the agent, whose first pass puts back what its plan does not name (B13).
        is_start = node.profile != profile
        profile = node.profile
        wanted = restoring(tree) if is_start and last else tree
        witness = Witness(driver, cgroup_root, last.tree if last else None, wanted)

        # A part of the tree may be changed by itself where the rest of it, and the place of it, stay.
        if last is not None and is_partly and not is_start:
            last = reconcile_changed(witness, last.tree, tree, last=last)
        else:
            last = reconcile(witness, wanted, last=None if is_start else last)

        assert [str(error) for error in last.failures] == []
        assert witness.broken == []
        assert last.repairs == ()
        missing = {one.file for one in last.unavailable}
        assert [
            line for line in differences(tree, cgroup_root) if line.rpartition(" ")[2] not in missing
        ] == []
        paths = {c.path for c in tree.cgroups}
        assert made_paths(cgroup_root) == paths - {path_of(cgroup_root)}
        again = reconcile(driver, tree, last=last)
        assert again.done == ()
    driver.remove(f"{path_of(cgroup_root)}/kubepods")


@any_version
def test_kubelets_root_has_every_cpu_and_what_is_above_it_keeps_its_weight(
    driver: CgroupfsDriver, cgroup_root: Cgroup
):
    node = on_this_machine(
        node_view(
            NodeCapacity(1000, 1 << 30),
            KubeletConfiguration(cgroup_root=path_of(cgroup_root), profile="kubernetes"),
        )
    )
    weight = "cpu.weight" if driver.version == Version.V2 else "cpu.shares"
    before = cgroup_root.read(weight)

    report = reconcile(driver, plan(node, [PlannedPod(one) for one in three_pods()], driver.version))

    assert [str(error) for error in report.failures] == []
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    assert placed(cgroup_root, f"{path_of(cgroup_root)}/kubepods").read("cpuset.cpus") == online
    assert cgroup_root.read(weight) == before
    driver.remove(f"{path_of(cgroup_root)}/kubepods")


@any_version
def test_the_command_shows_the_plan_applies_it_and_then_has_nothing_to_do(
    cgroup_root: Cgroup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(SMALL_POD)
    command = ["plan", "-f", str(manifest), "--node", "8Gi,2cpu", "--cgroup-root", path_of(cgroup_root)]
    limit = f"{path_of(cgroup_root)}/kubepods/burstable/podweb/c"

    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"+ {limit}\n" in shown
    assert str(64 * MIB) in shown
    assert shown.endswith("--apply changes it\n")
    assert made_paths(cgroup_root) == set(), "and nothing was done"

    assert main([*command, "--apply"]) == 0
    assert "cgroups created" in capsys.readouterr().out
    here = placed(cgroup_root, limit)
    file = "memory.max" if here.has("memory.max") else "memory.limit_in_bytes"
    assert here.read(file) == str(64 * MIB)

    assert main(command) == 0
    assert "nothing to do: " in capsys.readouterr().out

    here.write(file, str(32 * MIB))
    assert main([*command, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [
        {
            "action": "write",
            "path": limit,
            "file": file,
            "before": str(32 * MIB),
            "after": str(64 * MIB),
            "rule": "C3",
            "reason": "limit 64Mi",
        }
    ]


@pytest.mark.cgroup("v2")
def test_the_command_says_what_failed_and_ends_with_1(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(SMALL_POD)
    top = path_of(cgroup_root)
    spawn("memory", cgroup=cgroup_root.child("kubepods")).ask("free")  # in the way: controllers stop here

    command = ["plan", "-f", str(manifest), "--node", "8Gi,2cpu", "--cgroup-root", top, "--apply"]
    assert main(command) == 1

    shown = capsys.readouterr().out
    assert "failed cgroup" in shown
    assert f"cgroup.subtree_control of cgroup {top}/kubepods: processes run in it" in shown
    assert "move them to a cgroup of their own below it" in shown
    assert main([*command, "-o", "json"]) == 1
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert {failure["file"].partition(".")[0] for failure in failures} == {"cpu", "memory"}


@pytest.mark.cgroup("v1")
def test_the_command_says_what_failed_and_ends_with_1_on_v1_too(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(SMALL_POD)
    top = path_of(cgroup_root)
    command = ["plan", "-f", str(manifest), "--node", "8Gi,2cpu", "--cgroup-root", top, "--apply"]
    assert main(command) == 0
    here = placed(cgroup_root, f"{top}/kubepods/burstable/podweb/c")
    spawn("memory", cgroup=here).ask(f"allocate {24 * MIB}")
    manifest.write_text(SMALL_POD.replace("64Mi", "8Mi").replace("32Mi", "4Mi"))
    capsys.readouterr()

    assert main(command) == 1

    assert f"cannot write {8 * MIB} to memory.limit_in_bytes" in capsys.readouterr().out
    assert here.read("memory.soft_limit_in_bytes") == str(4 * MIB), "the rest is done"
