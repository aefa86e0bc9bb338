"""The settings of each cgroup in the documents profile, as files of the plan."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.defaults import default_pod
from evenkeel.api.scalars import Duration
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Version
from evenkeel.policy.amounts import pod_own_bytes
from evenkeel.policy.provision import PlannedPod
from tests.strategies import GIB, MIB, asks, container, node, nodes, planned, planned_pods, pod, sidecar

BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = pod(container(BOTH, BOTH), name="g")
BURSTABLE = pod(container({"cpu": "500m", "memory": "256Mi"}, {"cpu": "2", "memory": "512Mi"}), name="b")
BEST_EFFORT = pod(container(), name="n")
POD = "burstable/podb"


def reason(view, pod_or_planned, path, file, version=Version.V2):
    planned_pod = pod_or_planned if isinstance(pod_or_planned, PlannedPod) else PlannedPod(pod_or_planned)
    for cgroup in plan(view, [planned_pod], version).cgroups:
        if cgroup.path.endswith(path):
            for setting in cgroup.settings:
                if setting.file == file:
                    return setting.rule, setting.reason
    raise AssertionError(f"no {file} on {path}")


# CPU


@pytest.mark.req("A11")
@pytest.mark.parametrize(
    "version, file, values", [("v2", "cpu.weight", "50 100 1"), ("v1", "cpu.shares", "512 1024 2")]
)
def test_weights_and_shares_come_from_requests(version, file, values):
    found = planned(node(), BURSTABLE, GUARANTEED, BEST_EFFORT, version=Version(version))
    paths = (f"{POD}/c", "podg/c", "besteffort/podn/c")
    assert [found[path][file] for path in paths] == values.split()
    assert [found[path.rpartition("/")[0]][file] for path in paths] == values.split()


@pytest.mark.req("A11", "B10")
def test_a_branch_weighs_what_its_pods_do_and_best_effort_the_least():
    other = pod(container({"cpu": "1"}), name="c")
    found = planned(node(), BURSTABLE, other, GUARANTEED)
    assert found["burstable"]["cpu.weight"] == "150"
    assert found["besteffort"]["cpu.weight"] == "1"


@pytest.mark.req("A4", "E11")
def test_idle_cpu_is_shared_two_to_one_between_600m_and_300m():
    six, three = (pod(container({"cpu": f"{n}00m"}), name=f"p{n}") for n in (6, 3))
    found = planned(node(cpus=1), six, three)
    weights = [int(found[f"burstable/podp{n}"]["cpu.weight"]) for n in (6, 3)]
    assert weights[0] == 2 * weights[1]


@pytest.mark.req("B8", "E11")
def test_the_pods_root_leaves_system_cgroups_their_reserved_share():
    reserved: dict[str, Any] = {"kube_reserved": {"cpu": "1"}, "system_reserved": {"cpu": "1"}}
    assert planned(node(cpus=8))[""]["cpu.weight"] == "800"
    weight = int(planned(node(cpus=8, **reserved))[""]["cpu.weight"])
    assert 100 / (100 + weight) >= 2 / 8
    assert weight == 300
    assert reason(node(cpus=8, **reserved), BURSTABLE, "/kubepods", "cpu.weight")[0] == "E11"


@pytest.mark.req("A4")
def test_a_limit_is_a_quota_and_without_one_there_is_none():
    found = planned(node(), BURSTABLE, BEST_EFFORT)
    assert found[f"{POD}/c"]["cpu.max"] == "200000 100000"
    assert found["besteffort/podn/c"]["cpu.max"] == "max 100000"
    v1 = planned(node(), BURSTABLE, BEST_EFFORT, version=Version.V1)
    assert v1[f"{POD}/c"]["cpu.cfs_quota_us"] == "200000"
    assert v1["besteffort/podn/c"]["cpu.cfs_quota_us"] == "-1"


@pytest.mark.req("E10")
def test_the_period_can_be_chosen_and_quotas_switched_off():
    short = node(cpu_cfs_quota_period=Duration.parse("20ms"))
    assert planned(short, BURSTABLE)[f"{POD}/c"]["cpu.max"] == "40000 20000"
    off = node(cpu_cfs_quota=False)
    found = planned(off, BURSTABLE)
    assert found[POD]["cpu.max"] == found[f"{POD}/c"]["cpu.max"] == "max 100000"
    for path in (POD, f"{POD}/c"):
        assert reason(off, BURSTABLE, path, "cpu.max") == ("E10", "cpuCFSQuota is off")


@pytest.mark.req("A23", "E10")
def test_bursts_are_for_fractional_limits_and_pass_through_the_pod():
    view = node(cpu_burst=50)
    fraction = pod(container(limits={"cpu": "500m"}), name="b")
    found = planned(view, fraction)
    assert found[f"{POD}/c"]["cpu.max.burst"] == found[POD]["cpu.max.burst"] == "25000"
    whole = planned(view, BURSTABLE)
    assert whole[f"{POD}/c"]["cpu.max.burst"] == whole[POD]["cpu.max.burst"] == "0"
    shared = pod(container(), own=asks(limits={"cpu": "1500m"}), name="n")
    assert planned(view, shared)["besteffort/podn"]["cpu.max.burst"] == "75000"
    assert planned(node(), fraction)[POD]["cpu.max.burst"] == "0"
    v1 = planned(view, fraction, version=Version.V1)
    assert v1[POD]["cpu.cfs_burst_us"] == "25000"


@pytest.mark.req("A23")
def test_whole_cores_of_its_own_need_no_quota_and_the_rest_share_the_others():
    alone = PlannedPod(default_pod(GUARANTEED, Profile.DOCUMENTS), None, {"c": (6, 7)}, (0, 1))
    others = PlannedPod(default_pod(BURSTABLE, Profile.DOCUMENTS), None, {}, (0, 1))
    for version, file, none in (
        (Version.V2, "cpu.max", "max 100000"),
        (Version.V1, "cpu.cfs_quota_us", "-1"),
    ):
        found = planned(node(), alone, others, version=version)
        assert found["podg/c"]["cpuset.cpus"] == "6-7"
        assert found["podg/c"][file] == found["podg"][file] == none
        assert found[f"{POD}/c"]["cpuset.cpus"] == "0-1"
    assert "cpuset.cpus" not in planned(node(), GUARANTEED)["podg/c"]


@pytest.mark.req("A21")
@pytest.mark.parametrize("version, file", [(Version.V2, "cpu.weight"), (Version.V1, "cpu.shares")])
def test_fair_sharing_gives_a_half_requester_three_quarters(version, file):
    half = pod(container({"cpu": "500m"}), name="h")
    found = planned(node(cpus=1, fair_cpu_sharing=True), half, BEST_EFFORT, version=version)
    shares = [int(found[path][file]) for path in ("burstable/podh", "besteffort/podn")]
    assert abs(shares[0] / sum(shares) - 0.75) < 0.01
    assert [found[branch][file] for branch in ("burstable", "besteffort")] == [str(share) for share in shares]


@pytest.mark.req("A21")
def test_fair_shares_of_a_branch_are_those_of_its_pods_together():
    others = [pod(container({"cpu": "1"}), name=name) for name in "xyz"]
    found = planned(node(cpus=8, fair_cpu_sharing=True), *others, GUARANTEED, version=Version.V1)
    assert int(found["burstable"]["cpu.shares"]) == sum(
        int(found[f"burstable/pod{name}"]["cpu.shares"]) for name in "xyz"
    )
    # One core each was requested of eight, so four are left for four pods: two cores each.
    assert found["podg"]["cpu.shares"] == "2048"


@pytest.mark.req("A21")
@pytest.mark.parametrize("version, file", [(Version.V2, "cpu.weight"), (Version.V1, "cpu.shares")])
def test_fair_shares_of_a_pod_are_divided_among_its_containers(version, file):
    two = pod(container({"cpu": "500m"}), container(name="d"), name="b")
    found = planned(node(cpus=1, fair_cpu_sharing=True), two, version=version)
    shares = [int(found[f"{POD}/{name}"][file]) for name in "cd"]
    assert sum(shares) == pytest.approx(int(found[POD][file]), abs=1)
    assert shares[0] / sum(shares) == pytest.approx(0.75, abs=0.01)
    alone = planned(node(cpus=1, fair_cpu_sharing=True), BEST_EFFORT, version=version)
    assert alone["besteffort/podn/c"][file] == alone["besteffort/podn"][file]
    asking = pod(container(), name="n", overhead={"cpu": "250m"})
    found = planned(node(cpus=1, fair_cpu_sharing=True), asking, version=version)
    part, whole = (int(found[path][file]) for path in ("besteffort/podn/c", "besteffort/podn"))
    assert part / whole == pytest.approx(0.75, abs=0.01), "overhead is the infrastructure's"


# Memory


@pytest.mark.req("A16", "B8", "B9")
def test_the_worked_example_is_on_the_pods_root():
    view = node(
        kube_reserved={"memory": "2Gi"},
        system_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "100Mi"},
    )
    assert planned(view)[""]["memory.max"] == str(29 * GIB)
    assert planned(view, version=Version.V1)[""]["memory.limit_in_bytes"] == str(29 * GIB)
    assert view.allocatable_bytes == 29 * GIB - 100 * MIB
    assert reason(view, BURSTABLE, "/kubepods", "memory.max") == ("B8", "capacity 32Gi − reserved 3Gi")


@pytest.mark.req("B4")
def test_the_pods_root_has_no_limit_where_none_is_enforced():
    view = node(enforce_node_allocatable=(), kube_reserved={"memory": "2Gi"})
    assert planned(view)[""]["memory.max"] == "max"


@pytest.mark.req("C1")
def test_requests_protect_containers_pods_branches_and_all_above():
    other = pod(container({"memory": "1Gi"}, name="x"), container({"memory": "1Gi"}, name="y"), name="o")
    tree = plan(
        node(cgroup_root="/a/b"), [PlannedPod(each) for each in (BURSTABLE, other, GUARANTEED, BEST_EFFORT)]
    )
    found = {cgroup.path: int(cgroup.value("memory.min") or 0) for cgroup in tree.cgroups}
    root = "/a/b/kubepods"
    assert found[f"{root}/burstable/podo/x"] == GIB
    assert found[f"{root}/burstable/podo"] == 2 * GIB
    assert found[f"{root}/burstable"] == 2 * GIB + 256 * MIB
    assert found[f"{root}/besteffort"] == 0
    assert found[f"{root}/podg/c"] == found[f"{root}/podg"] == GIB
    assert found[root] == found["/a/b"] == found["/a"] == 3 * GIB + 256 * MIB


@pytest.mark.req("C1")
def test_a_pod_is_protected_by_what_its_containers_are_though_each_is_rounded_up():
    some = pod(container({"memory": "500m"}, name="x"), container({"memory": "500m"}, name="y"), name="b")
    found = planned(node(), some)
    assert [found[path]["memory.min"] for path in (f"{POD}/x", f"{POD}/y", POD, "burstable", "")] == [
        "1",
        "1",
        "2",
        "2",
        "2",
    ]


@pytest.mark.req("C1", "E8")
def test_reserved_cgroups_are_protected_and_capped_unless_they_only_protect():
    config: dict[str, Any] = {
        "kube_reserved": {"memory": "2Gi", "cpu": "1", "pid": "100"},
        "kube_reserved_cgroup": "/kube",
        "enforce_node_allocatable": ("pods", "kube-reserved"),
    }
    files = planned(node(**config))["/kube"]
    assert files == {
        "cpu.weight": "100",
        "memory.min": str(2 * GIB),
        "memory.max": str(2 * GIB),
        "pids.max": "100",
    }
    kind = planned(node(**config, reserved_protect_only=True))["/kube"]
    assert (kind["memory.min"], kind["memory.max"]) == (str(2 * GIB), "max")
    assert "/kube" not in planned(node(**{**config, "enforce_node_allocatable": ("pods",)}))
    light = planned(node(**{**config, "enforce_node_allocatable": ("kube-reserved-compressible",)}))["/kube"]
    assert light == {"cpu.weight": "100"}


@pytest.mark.req("C1")
def test_daemons_below_one_of_our_own_cgroups_are_protected_through_it():
    view = node(
        kube_reserved={"memory": "2Gi"},
        system_reserved={"memory": "1Gi"},
        kube_reserved_cgroup="/evenkeel/kube",
        system_reserved_cgroup="/evenkeel/kube/system",
        enforce_node_allocatable=("pods", "kube-reserved", "system-reserved"),
    )
    tree = plan(view, [PlannedPod(GUARANTEED)])
    found = {cgroup.path: int(cgroup.value("memory.min") or 0) for cgroup in tree.cgroups}
    assert found["/evenkeel/kube/system"] == GIB
    assert found["/evenkeel/kube"] == 3 * GIB
    assert found["/evenkeel"] == 3 * GIB + found["/evenkeel/kubepods"]
    assert list(found)[:4] == ["/evenkeel", "/evenkeel/kube", "/evenkeel/kube/system", "/evenkeel/kubepods"]


@pytest.mark.req("C2")
def test_memory_high_is_four_fifths_of_the_limit_to_a_page():
    found = planned(node(), BURSTABLE)[f"{POD}/c"]
    assert int(found["memory.high"]) == 512 * MIB * 8 // 10 // 4096 * 4096
    other = planned(node(memory_throttling_factor=0.9), BURSTABLE)[f"{POD}/c"]
    assert int(other["memory.high"]) == 512 * MIB * 9 // 10 // 4096 * 4096


@pytest.mark.req("C2")
def test_without_a_limit_memory_high_comes_from_the_nodes_allocatable():
    view = node(kube_reserved={"memory": "2Gi"}, eviction_hard={})
    for some, path in (
        (BEST_EFFORT, "besteffort/podn/c"),
        (pod(container({"memory": "1Gi"}), name="b"), f"{POD}/c"),
    ):
        assert int(planned(view, some)[path]["memory.high"]) == 30 * GIB * 8 // 10 // 4096 * 4096


@pytest.mark.req("C2")
@pytest.mark.parametrize("request_text", ["512Mi", "410Mi", "1024Gi"])
def test_memory_high_is_left_out_where_it_is_not_above_memory_min(request_text):
    limits = {"memory": "512Mi"} if request_text != "1024Gi" else {}
    some = pod(container({"memory": request_text}, limits), name="b")
    assert planned(node(), some)[f"{POD}/c"]["memory.high"] == "max"
    assert reason(node(), some, f"{POD}/c", "memory.high")[1].endswith("is not above the request")


@pytest.mark.req("C3")
def test_memory_max_stays_the_limit():
    found = planned(node(), BURSTABLE, BEST_EFFORT)
    assert found[f"{POD}/c"]["memory.max"] == str(512 * MIB)
    assert found["besteffort/podn/c"]["memory.max"] == "max"


@pytest.mark.req("C4")
def test_with_the_gate_off_min_and_high_are_the_kernels_own_everywhere():
    view = node(
        feature_gates={"MemoryQoS": False},
        kube_reserved={"memory": "2Gi"},
        kube_reserved_cgroup="/kube",
        enforce_node_allocatable=("pods", "kube-reserved"),
    )
    found = planned(view, BURSTABLE, GUARANTEED, BEST_EFFORT)
    assert {files["memory.min"] for files in found.values()} == {"0"}
    assert {files["memory.high"] for files in found.values() if "memory.high" in files} == {"max"}
    assert found[f"{POD}/c"]["memory.max"] == str(512 * MIB)


@pytest.mark.req("D5", "D6")
def test_on_v1_the_soft_limit_is_the_request():
    found = planned(node(), BURSTABLE, BEST_EFFORT, version=Version.V1)
    assert found[f"{POD}/c"]["memory.soft_limit_in_bytes"] == str(256 * MIB)
    assert found[f"{POD}/c"]["memory.limit_in_bytes"] == str(512 * MIB)
    assert found["besteffort/podn/c"]["memory.soft_limit_in_bytes"] == "-1"
    of_v2 = {"memory.min", "memory.low", "memory.high", "memory.max"}
    assert not any(of_v2.intersection(files) for files in found.values())


@pytest.mark.req("A18", "B13")
def test_swap_is_kept_from_guarantees_only_where_it_may_be_on():
    unlimited = {"memory.swap.max": "max", "memory.memsw.limit_in_bytes": "-1"}
    pods = (BURSTABLE, GUARANTEED, BEST_EFFORT, pod(container({"memory": "1Gi"}), name="u"))
    for version in Version:
        # Written out, so that a limit which is there from before goes.
        for files in planned(node(), *pods, version=version).values():
            assert all(files.get(file, value) == value for file, value in unlimited.items())
    view = node(fail_swap_on=False)
    found = planned(view, *pods)
    assert found[f"{POD}/c"]["memory.swap.max"] == found["podg/c"]["memory.swap.max"] == "0"
    assert found["besteffort/podn/c"]["memory.swap.max"] == "max"
    v1 = planned(view, *pods, version=Version.V1)
    assert v1[f"{POD}/c"]["memory.memsw.limit_in_bytes"] == str(512 * MIB)
    assert v1["burstable/podu/c"]["memory.memsw.limit_in_bytes"] == "-1"
    # Without a limit there is none on swap either: the kernel is told not to swap it out.
    assert v1["burstable/podu/c"]["memory.swappiness"] == v1["podg/c"]["memory.swappiness"] == "0"
    assert "memory.swappiness" not in v1["besteffort/podn/c"]
    assert not any(
        "memory.swappiness" in files for files in planned(node(), *pods, version=Version.V1).values()
    )


@pytest.mark.req("A19", "E5")
def test_a_container_is_killed_whole_unless_the_node_or_the_container_says_otherwise():
    def chosen(view, **annotations):
        notes = {f"evenkeel.dev/oom-kill.{name}": word for name, word in annotations.items()}
        found = planned(view, pod(container(), container(name="d"), name="n", annotations=notes))
        return [found[f"besteffort/podn/{name}"]["memory.oom.group"] for name in "cd"]

    assert chosen(node()) == ["1", "1"]
    assert chosen(node(), c="process") == ["0", "1"]
    assert chosen(node(), c="whatever") == ["1", "1"]
    assert chosen(node(oom_group_kill=False)) == ["0", "0"]
    assert chosen(node(single_process_oom_kill=True), d="container") == ["0", "1"]


# The pod's own cgroup


def limits_of(some, view=None, version=Version.V2, path=None, init=None):
    planned_pod = PlannedPod(default_pod(some, Profile.DOCUMENTS), init)
    found = planned(view or node(), planned_pod, version=version)
    files = found[path or next(each for each in found if each.endswith(f"pod{some.metadata.uid}"))]
    if version == Version.V1:
        return files["cpu.cfs_quota_us"], files["memory.limit_in_bytes"]
    return files["cpu.max"].split()[0], files["memory.max"]


@pytest.mark.req("D2", "D5")
@pytest.mark.parametrize("version, none", [(Version.V2, "max"), (Version.V1, "-1")])
def test_a_pod_is_limited_only_where_every_container_is_resource_by_resource(version, none):
    assert limits_of(GUARANTEED, version=version) == ("100000", str(GIB + pod_own_bytes(2, 8)))
    assert limits_of(BURSTABLE, version=version) == ("200000", str(512 * MIB))
    half = pod(container(limits={"cpu": "1", "memory": "1Gi"}), container(limits={"cpu": "1"}, name="d"))
    assert limits_of(half, version=version) == ("200000", none)
    assert limits_of(BEST_EFFORT, version=version) == (none, none)


@pytest.mark.req("D1", "D5", "D7")
@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("some", [BURSTABLE, BEST_EFFORT])
def test_a_pods_own_limit_is_shared_by_its_containers(some, version):
    own = some._replace(spec=some.spec._replace(resources=asks(limits={"cpu": "3", "memory": "2Gi"})))
    assert limits_of(own, version=version) == ("300000", str(2 * GIB))
    memory_only = some._replace(spec=some.spec._replace(resources=asks(limits={"memory": "2Gi"})))
    assert limits_of(memory_only, version=version) == (limits_of(some, version=version)[0], str(2 * GIB))


@pytest.mark.req("A5", "D2")
@pytest.mark.parametrize("version", list(Version))
def test_a_pods_limit_leaves_room_beside_what_its_containers_request(version):
    room = pod_own_bytes(3, 8)
    tight = (container({"memory": "1Gi"}, {"memory": "1Gi"}), container({"memory": "1Gi"}, name="d"))
    own = pod(*tight, own=asks(limits={"memory": "2Gi"}))
    assert limits_of(own, version=version)[1] == str(2 * GIB + room)
    with_overhead = pod(*tight, own=asks(limits={"memory": "2Gi"}), overhead={"memory": "64Mi"})
    assert limits_of(with_overhead, version=version)[1] == str(2 * GIB + 64 * MIB + room)
    roomy = pod(*tight, own=asks(limits={"memory": "3Gi"}))
    assert limits_of(roomy, version=version)[1] == str(3 * GIB), (
        "to the letter where nothing is promised at its limit"
    )


@pytest.mark.req("A5")
def test_the_room_in_a_pods_limit_is_in_the_reason():
    planned_pod = PlannedPod(default_pod(GUARANTEED, Profile.DOCUMENTS))
    assert reason(node(), planned_pod, "/kubepods/podg", "memory.max") == (
        "D2",
        "limits of its containers 1Gi, and 1120Ki that the pod itself may need (A5)",
    )


@pytest.mark.req("D7")
def test_a_guaranteed_pod_is_not_affected_by_a_limit_of_its_own():
    own = GUARANTEED._replace(
        spec=GUARANTEED.spec._replace(resources=asks(limits={"cpu": "3", "memory": "2Gi"}))
    )
    assert planned(node(), own) == planned(node(), GUARANTEED)


@pytest.mark.req("D1")
def test_a_pods_own_limit_changes_nothing_about_its_containers():
    own = BURSTABLE._replace(spec=BURSTABLE.spec._replace(resources=asks(limits={"memory": "2Gi"})))
    found, without = planned(node(), own), planned(node(), BURSTABLE)
    assert {path: files for path, files in found.items() if path != POD} == {
        path: files for path, files in without.items() if path != POD
    }


@pytest.mark.req("D3")
def test_a_pods_own_limit_waits_for_its_init_containers():
    init = container(limits={"memory": "3Gi", "cpu": "1"}, name="i")
    limited = container({"memory": "512Mi"}, {"memory": "1Gi", "cpu": "1"})
    some = pod(limited, init=(init,), own=asks(limits={"memory": "4Gi"}), name="b")
    # The larger of the biggest init container and of the others together.
    assert limits_of(some, init=0)[1] == str(3 * GIB + pod_own_bytes(3, 8))
    assert limits_of(some)[1] == str(4 * GIB)
    unlimited = pod(limited, init=(container(name="i"),), own=asks(limits={"memory": "4Gi"}), name="b")
    assert limits_of(unlimited, init=0)[1] == "max"
    planned_pod = PlannedPod(default_pod(unlimited, Profile.DOCUMENTS), 0)
    assert reason(node(), planned_pod, POD, "memory.max") == (
        "D2",
        "a container has no limit; the pod's own limit is set when its init containers are done (D3)",
    )


@pytest.mark.req("D3")
def test_sidecars_do_not_hold_the_pods_own_limit_back():
    own = asks(limits={"memory": "4Gi"})
    some = pod(container(), init=(container(name="i"), sidecar(name="s")), own=own, name="n")
    assert limits_of(some, init=0)[1] == "max"
    assert limits_of(some, init=1)[1] == str(4 * GIB)
    before = pod(container(), init=(sidecar(name="s"), container(name="i")), own=own, name="n")
    assert limits_of(before, init=0)[1] == "max"


@pytest.mark.req("D4")
@pytest.mark.parametrize("version", list(Version))
def test_overhead_is_the_request_of_the_infrastructure_and_never_a_limit(version):
    heavy = GUARANTEED._replace(
        spec=GUARANTEED.spec._replace(overhead=asks({"cpu": "250m", "memory": "64Mi"}).requests)
    )
    found, without = planned(node(), heavy, version=version), planned(node(), GUARANTEED, version=version)
    assert found["podg/pod.infrastructure"]["oom_score_adj"] == "-999"
    if version == Version.V2:
        assert found["podg/pod.infrastructure"]["cpu.weight"] == "25"
        assert found["podg/pod.infrastructure"]["memory.min"] == str(64 * MIB)
        assert found["podg"]["memory.min"] == str(GIB + 64 * MIB)
        assert found["podg"]["cpu.weight"] == "125"
    else:
        assert found["podg/pod.infrastructure"]["cpu.shares"] == "256"
    of_memory = "memory.max" if version == Version.V2 else "memory.limit_in_bytes"
    limits = ("cpu.max", "memory.high", "cpu.cfs_quota_us", of_memory)
    for path, files in found.items():
        assert {f: v for f, v in files.items() if f in limits and (path, f) != ("podg", of_memory)} == {
            f: v for f, v in without[path].items() if f in limits and (path, f) != ("podg", of_memory)
        }
    # It is promised, so that at the pod's limit there must be room for it (A5).
    assert int(found["podg"][of_memory]) == int(without["podg"][of_memory]) + 64 * MIB
    assert not any(file in found["podg/pod.infrastructure"] for file in limits)


@pytest.mark.req("B16")
def test_a_pods_processes_are_limited_where_asked_for():
    assert planned(node(), BURSTABLE)[POD]["pids.max"] == "max"
    assert planned(node(pod_pids_limit=100), BURSTABLE)[POD]["pids.max"] == "100"
    assert planned(node(pod_pids_limit=10**12), BURSTABLE)[POD]["pids.max"] == "max"


def test_huge_pages_are_limited_to_what_was_asked_of_what_the_node_has():
    some = pod(container({"memory": "1Gi", "hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}), name="b")
    view = node(hugepages={2 * MIB: 512, GIB: 1})
    found = planned(view, some)
    assert found[""]["hugetlb.2MB.max"] == str(GIB)
    assert found[f"{POD}/c"]["hugetlb.2MB.max"] == str(4 * MIB)
    assert found[f"{POD}/c"]["hugetlb.1GB.max"] == "0"
    v1 = planned(view, some, version=Version.V1)
    assert v1[f"{POD}/c"]["hugetlb.2MB.limit_in_bytes"] == str(4 * MIB)


def test_a_limit_beyond_what_the_kernel_can_count_is_none():
    some = pod(container({"memory": "1", "cpu": "1"}, {"memory": "1e40", "cpu": "1e30"}), name="b")
    found = planned(node(cpu_burst=100, fail_swap_on=False), some)[f"{POD}/c"]
    assert (found["memory.max"], found["cpu.max"], found["cpu.max.burst"]) == ("max", "max 100000", "0")
    v1 = planned(node(fail_swap_on=False), some, version=Version.V1)[f"{POD}/c"]
    assert [
        v1[f"memory.{kind}.limit_in_bytes" if kind else "memory.limit_in_bytes"] for kind in ("", "memsw")
    ] == ["-1"] * 2
    assert v1["cpu.cfs_quota_us"] == "-1"


@pytest.mark.req("A12")
def test_scores_are_in_the_plan_with_their_reason():
    found = planned(node(), BURSTABLE, GUARANTEED, BEST_EFFORT)
    assert [found[path]["oom_score_adj"] for path in (f"{POD}/c", "podg/c", "besteffort/podn/c")] == [
        "993",
        "-999",
        "1000",
    ]
    (cgroup,) = (each for each in plan(node(), [PlannedPod(BURSTABLE)]).cgroups if each.container)
    assert cgroup.oom_score_adj.reason == "memory is Burstable: 1000 − 1000 × 256Mi ÷ 32Gi, within 2…999"


documents_nodes = nodes.filter(lambda view: view.profile == Profile.DOCUMENTS)


def child_sums(found):
    """For each cgroup its own memory.min, and that of its children together."""
    for path, own in found.items():
        children = [
            files for other, files in found.items() if other.rpartition("/")[0] == path and other != path
        ]
        yield int(own.get("memory.min", 0)), sum(int(files.get("memory.min", 0)) for files in children)


@pytest.mark.req("C1")
@settings(max_examples=50)
@given(documents_nodes, planned_pods())
def test_no_children_are_protected_by_more_than_their_parent(view, some):
    tree = plan(view, some)
    found = {cgroup.path: {s.file: s.value for s in cgroup.settings} for cgroup in tree.cgroups}
    for own, children in child_sums(found):
        assert children <= own


@pytest.mark.req("C2", "C3")
@settings(max_examples=50)
@given(documents_nodes, planned_pods())
def test_min_high_and_max_of_a_container_are_in_order(view, some):
    for cgroup in plan(view, some).cgroups:
        high, least, most = (cgroup.value(f"memory.{name}") for name in ("high", "min", "max"))
        if cgroup.container and high != "max":
            assert high is not None
            assert least is not None
            assert most is not None
            assert int(least) < int(high)
            assert most == "max" or int(high) <= int(most)


@pytest.mark.req("A4", "D1")
@settings(max_examples=50)
@given(documents_nodes, planned_pods(), st.sampled_from(list(Version)))
def test_no_container_is_allowed_more_than_its_pod(view, some, version):
    tree = plan(view, some, version)
    by_path = {cgroup.path: cgroup for cgroup in tree.cgroups}
    memory = "memory.max" if version == Version.V2 else "memory.limit_in_bytes"
    for cgroup in tree.cgroups:
        if cgroup.container:
            own, of_pod = (each.value(memory) for each in (cgroup, by_path[cgroup.path.rpartition("/")[0]]))
            assert own is not None
            assert of_pod is not None
            if own not in ("max", "-1") and of_pod not in ("max", "-1"):
                assert int(own) <= int(of_pod)
