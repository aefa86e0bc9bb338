"""Settings that another configuration left in the kernel are restored: to the kernel's default, or to the value that
was found."""

import json
from typing import Any

import pytest

from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import reconcile
from evenkeel.cgroup.reconfigure import found_before, not_only_ours, restoring, still_needed
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.policy.provision import PlannedPod
from tests.models.kernel import Kernel
from tests.strategies import container, node, pod

ENFORCED: dict[str, Any] = {
    "kube_reserved": {"memory": "1Gi", "cpu": "1"},
    "kube_reserved_cgroup": "/kube",
    "enforce_node_allocatable": ("pods", "kube-reserved"),
}
POD = PlannedPod(pod(container({"cpu": "1"}), name="p"))


def tree(version: Version = Version.V2, **config: Any) -> Tree:
    return plan(node(**config), [POD], version)


@pytest.mark.req("B13")
def test_limits_on_daemons_go_back_to_what_was_found_when_they_are_no_longer_enforced():
    kernel = Kernel()
    kernel.cgroups["/kube"] = {"memory.max": "7516192768", "cpu.weight": "50"}
    on, off = tree(**ENFORCED), tree()

    before = found_before(on, kernel.observe_only(not_only_ours(on)), {})
    reconcile(kernel, restoring(on, before))
    assert kernel.cgroups["/kube"]["memory.max"] == str(1 << 30)
    before = json.loads(json.dumps(before))

    again = found_before(on, kernel.observe_only(not_only_ours(on)), before)
    assert again == before, "what we wrote ourselves is not what was found"

    reconcile(kernel, restoring(off, before))
    assert kernel.cgroups["/kube"]["memory.max"] == "7516192768"
    assert kernel.cgroups["/kube"]["cpu.weight"] == "50"
    assert kernel.cgroups["/kube"]["memory.min"] == "0"
    assert "/kube" not in still_needed(off, before)
    assert still_needed(on, before) == before


@pytest.mark.req("B13", "E8")
def test_a_file_of_the_daemons_that_is_no_longer_named_is_put_back_and_the_others_stay():
    before = {"/kube": {"memory.max": "max", "pids.max": "77"}}
    of_daemons = next(c for c in restoring(tree(**ENFORCED), before).cgroups if c.path == "/kube")
    assert of_daemons.value("memory.max") == str(1 << 30)
    assert (of_daemons.value("pids.max"), of_daemons.settings[-1].rule) == ("77", "B13")
    assert still_needed(tree(**ENFORCED), before) == {"/kube": {"memory.max": "max"}}


def test_a_cgroup_of_daemons_that_has_gone_is_not_made_to_put_something_back():
    kernel = Kernel()
    report = reconcile(kernel, restoring(tree(), {"/gone": {"memory.max": "max"}}))
    assert (report.failures, "/gone" in kernel.cgroups) == ((), False)


def test_of_a_cgroup_that_we_make_the_kernels_defaults_are_remembered():
    found = found_before(tree(), {}, {})
    assert found == {"/evenkeel": {"cpu.weight": "100", "memory.min": "0"}}


@pytest.mark.req("B13")
@pytest.mark.parametrize("version", list(Version))
def test_huge_pages_that_the_other_profile_kept_from_pods_are_theirs_again(version):
    kernel = Kernel(version)
    pages: dict[str, Any] = {"hugepages": {2 << 20: 8}}
    reconcile(kernel, plan(node(profile="kubernetes", **pages), [POD], version))
    last = "max" if version == Version.V2 else "limit_in_bytes"
    path = next(path for path in kernel.cgroups if path.endswith("/podp"))
    assert kernel.cgroups[path][f"hugetlb.2MB.{last}"] == "0"

    reconcile(kernel, restoring(plan(node(**pages), [POD], version)))

    for file in (f"hugetlb.2MB.{last}", f"hugetlb.2MB.rsvd.{last}"):
        assert kernel.cgroups[path][file] in ("max", "9223372036854771712")


@pytest.mark.req("A23", "B13")
@pytest.mark.parametrize("version", list(Version))
def test_cores_of_ones_own_are_given_back(version):
    kernel = Kernel(version)
    static = plan(node(), [POD._replace(exclusive_cpus={"c": (1,)})], version)
    reconcile(kernel, static)
    path = next(c.path for c in static.cgroups if c.kind == Kind.CONTAINER)
    assert kernel.cgroups[path]["cpuset.cpus"] == "1"

    report = reconcile(kernel, restoring(tree(version)))

    assert kernel.cgroups[path]["cpuset.cpus"] == ""
    assert [(step.path, step.before) for step in report.done] == [(path, "1")]
    assert reconcile(kernel, restoring(tree(version))).done == ()
