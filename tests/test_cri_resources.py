"""The resources in the messages to a container runtime: the plan's own settings, each in its field."""

import json

import pytest

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Kind, Setting, Version
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from evenkeel.runtime.cri.configs import resources
from evenkeel.runtime.cri.cri_status import cgroup_path, location

NODE = node_view(NodeCapacity(8 << 30, 4000), defaulted(KubeletConfiguration()))
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-1}
spec:
  containers:
  - name: main
    image: x
    command: [a]
    resources: {requests: {cpu: 500m, memory: 64Mi}, limits: {cpu: "1", memory: 100Mi}}
"""


def planned(version: Version, placed: tuple[tuple[str, str], ...] | None = ()):
    (pod,) = read_manifests(POD, "x.yaml").pods
    tree = plan(NODE, [PlannedPod(pod, placed=placed)], version)
    return {cgroup.kind: cgroup for cgroup in tree.cgroups}


@pytest.mark.req("C6")
def test_on_v2_what_has_no_field_goes_into_unified_as_the_plan_has_it():
    container = planned(Version.V2)[Kind.CONTAINER]
    reported = resources(Version.V2, container.settings, -5)
    assert (reported.cpu_quota, reported.cpu_period) == (100_000, 100_000)
    assert reported.memory_limit_in_bytes == 100 << 20
    assert reported.oom_score_adj == -5
    assert reported.unified["memory.min"] == str(64 << 20)
    assert reported.unified["memory.high"] == container.value("memory.high")
    assert reported.unified["memory.oom.group"] == "1"
    assert reported.unified["cpu.weight"] == container.value("cpu.weight")
    assert reported.cpu_shares == 0, "the plan's weight counts, and nobody's conversion of shares"


def test_on_v1_settings_go_into_fields_and_nothing_into_unified():
    reported = resources(Version.V1, planned(Version.V1)[Kind.CONTAINER].settings)
    assert reported.cpu_shares == 512
    assert (reported.cpu_quota, reported.cpu_period) == (100_000, 100_000)
    assert reported.memory_limit_in_bytes == 100 << 20
    assert not reported.unified


def test_a_limit_that_is_taken_away_is_reported_as_no_limit():
    v2 = resources(
        Version.V2, (Setting("cpu.max", "max 100000", "", ""), Setting("memory.max", "max", "", ""))
    )
    assert (v2.cpu_quota, v2.memory_limit_in_bytes) == (-1, -1)
    v1 = resources(Version.V1, (Setting("memory.limit_in_bytes", "-1", "", ""),))
    assert v1.memory_limit_in_bytes == -1


def test_what_this_kernel_lacks_is_not_told():
    reported = resources(
        Version.V2, (Setting("cpu.max.burst", "5", "", ""),), is_there=lambda file: file != "cpu.max.burst"
    )
    assert not reported.unified


def test_huge_pages_have_a_field_of_their_own_on_either_version():
    for version, file in ((Version.V1, "hugetlb.2MB.limit_in_bytes"), (Version.V2, "hugetlb.2MB.max")):
        (limit,) = resources(version, (Setting(file, "4194304", "", ""),)).hugepage_limits
        assert (limit.page_size, limit.limit) == ("2MB", 4194304)


@pytest.mark.req("A24")
def test_a_cgroup_that_a_runtime_made_stands_in_the_plan_under_the_runtimes_name():
    names = (("main", "cri-containerd-abc.scope"), ("", "def"))
    tree = planned(Version.V2, names)
    pod = tree[Kind.POD].path
    assert tree[Kind.CONTAINER].path == f"{pod}/cri-containerd-abc.scope"
    assert tree[Kind.INFRASTRUCTURE].path == f"{pod}/def"
    assert not tree[Kind.CONTAINER].is_ours_to_make
    assert tree[Kind.CONTAINER].settings == planned(Version.V2, None)[Kind.CONTAINER].settings


def test_a_cgroup_is_found_by_what_its_runtime_says_of_it():
    assert cgroup_path("/kubepods/pod1/abc") == "/kubepods/pod1/abc"
    assert cgroup_path("kubepods-burstable-pod1.slice:cri-containerd:abc") == (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-abc.scope"
    )
    assert cgroup_path("relative/abc") == ""


def test_a_status_without_particulars_tells_nothing_and_breaks_nothing():
    for info in ({}, {"info": "no json"}, {"info": "[1]"}, {"info": '{"pid": "x", "runtimeSpec": 3}'}):
        assert location(info, "u-1") == (0, "")
    said = '{"pid": 7, "runtimeSpec": {"linux": {"cgroupsPath": "/a/podu-1/b"}}}'
    assert location({"info": said}, "u-1") == (7, "/a/podu-1/b")


@pytest.mark.parametrize("path", ["/", "/a", "/podu-2/b", "/podu-1", "/podu-1/..", "/../podu-1/b", "/podu-1/",
                                  "a-podu_1.slice:cri:..", "a-podu_2.slice:cri:b", "/podu-1/b/c"])  # fmt: skip
def test_a_cgroup_that_is_not_the_pods_own_is_not_taken_for_it(path):
    """What a container's cgroup holds is killed when the container is to end."""
    info = {"info": json.dumps({"pid": 1, "runtimeSpec": {"linux": {"cgroupsPath": path}}})}
    pid, cgroup = location(info, "u-1")
    assert pid == 0, "init is no container's"
    assert cgroup in ("", "/a.slice/a-podu_1.slice/cri-...scope")
