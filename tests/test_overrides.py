"""Overrides of planned settings: the pass that repairs drift keeps them, and their end restores the planned values."""

from evenkeel.cgroup.overrides import Overrides
from evenkeel.cgroup.reconcile import reconcile, reconcile_changed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from tests.models.kernel import Kernel

PLANNED = Setting("cpu.weight", "100", "A11", "requests 1")
LEAST = Setting("cpu.weight", "1", "A22", "others are short of cpu")
ONE = Cgroup("/top/pod1", Kind.POD, (PLANNED, Setting("memory.max", "max", "C3", "no limit")))
OTHER = Cgroup("/top/pod2", Kind.POD, (PLANNED,))
TREE = Tree(Version.V2, Naming.CGROUPFS, (Cgroup("/top", Kind.ROOT, ()), ONE, OTHER))


def test_what_is_wanted_takes_the_place_of_what_is_planned_and_nothing_else_changes():
    overrides = Overrides()
    assert overrides.on(TREE) is TREE
    assert overrides.set("cpu", {"/top/pod1": (LEAST,), "/top/gone": (LEAST,)})
    assert not overrides.set("cpu", {"/top/pod1": (LEAST,), "/top/gone": (LEAST,)})
    made = overrides.on(TREE)
    assert [cgroup.path for cgroup in made.cgroups] == [cgroup.path for cgroup in TREE.cgroups]
    assert made.cgroups[1].settings == (LEAST, ONE.settings[1])
    assert made.cgroups[2] is OTHER
    assert overrides.on(TREE).cgroups[1] is made.cgroups[1]  # so that it is not compared for changes
    overrides.set("cpu", {})
    assert overrides.on(TREE) is TREE


def test_those_of_two_sources_stand_beside_each_other():
    overrides = Overrides()
    limit = Setting("memory.max", "5000", "C8", "for the test")
    overrides.set("cpu", {"/top/pod1": (LEAST,)})
    overrides.set("stall", {"/top/pod1": (limit,)})
    assert overrides.on(TREE).cgroups[1].settings == (LEAST, limit)
    overrides.set("cpu", {})
    assert overrides.on(TREE).cgroups[1].settings == (PLANNED, limit)


def test_a_file_that_is_not_planned_gets_the_kernel_s_default_when_it_ends():
    overrides = Overrides()
    high = Setting("memory.high", "5000", "A15", "for the test")
    overrides.set("throttle", {"/top/pod2": (high,)})
    assert overrides.on(TREE).cgroups[2].settings == (PLANNED, high)
    overrides.set("throttle", {})
    after = overrides.on(TREE).cgroups[2]
    assert after.settings == (PLANNED, Setting("memory.high", "max", "A15", "no longer for the test"))
    assert overrides.on(TREE).cgroups[2] is after
    assert overrides.on(TREE._replace(cgroups=TREE.cgroups[:2])).cgroups == TREE.cgroups[:2]
    assert overrides.on(TREE) is TREE  # a new cgroup of that name: nothing was written there


def test_a_setting_of_a_former_agent_is_restored():
    overrides = Overrides()
    overrides.was_set("/top/pod2", Setting("memory.high", "", "A15", "for the test"))
    overrides.was_set("/top/pod1", Setting("cpu.weight", "", "A22", "for the test"))
    made = overrides.on(TREE)
    assert made.cgroups[2].value("memory.high") == "max"
    assert made.cgroups[1].settings == ONE.settings


def test_healing_keeps_them_and_their_end_is_no_drift():
    kernel, overrides = Kernel(), Overrides()
    report = reconcile(kernel, TREE)
    overrides.set("cpu", {"/top/pod1": (LEAST,)})
    made = overrides.on(TREE)
    report = reconcile_changed(kernel, TREE, made, last=report)
    assert kernel.cgroups["/top/pod1"]["cpu.weight"] == "1"
    report = reconcile(kernel, made, last=report)
    assert not report.done
    kernel.cgroups["/top/pod1"]["cpu.weight"] = "77"
    report = reconcile(kernel, made, last=report)
    (repair,) = report.repairs
    assert (repair.found, repair.restored, repair.rule) == ("77", "1", "A22")
    overrides.set("cpu", {})
    report = reconcile_changed(kernel, made, overrides.on(TREE), last=report)
    assert kernel.cgroups["/top/pod1"]["cpu.weight"] == "100"
    assert not report.repairs
