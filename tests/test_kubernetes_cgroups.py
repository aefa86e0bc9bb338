"""Kubelet's amounts in the plan; that they are kubelet's is shown by conformance."""

import pytest

from evenkeel.api.config import MemorySwapConfiguration, Profile
from evenkeel.api.scalars import Duration
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Version
from evenkeel.policy.provision import PlannedPod
from tests.strategies import GIB, MIB, asks, container, node, planned, pod

BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = pod(container(BOTH, BOTH), name="g")
BURSTABLE = pod(container({"cpu": "500m", "memory": "256Mi"}, {"cpu": "2", "memory": "512Mi"}), name="b")
BEST_EFFORT = pod(container(), name="n")
POD = "burstable/podb"


def kubelet(**config):
    return node(profile="kubernetes", **config)


def test_pods_have_the_linear_weight_and_containers_the_quadratic():
    found = planned(kubelet(), GUARANTEED, BURSTABLE, BEST_EFFORT)
    assert (found["podg"]["cpu.weight"], found["podg/c"]["cpu.weight"]) == ("39", "100")
    assert found["burstable"]["cpu.weight"] == "20"
    assert found["besteffort"]["cpu.weight"] == "1"
    assert found["podg/c"]["oom_score_adj"] == "-997"
    assert found["podg/pod.infrastructure"]["oom_score_adj"] == "-998"


def test_nothing_is_protected_or_throttled_by_default():
    found = planned(kubelet(), GUARANTEED, BURSTABLE)
    assert {files.get("memory.min", "0") for files in found.values()} == {"0"}
    assert {files.get("memory.high", "max") for files in found.values()} == {"max"}
    assert found[f"{POD}/c"]["memory.max"] == found[POD]["memory.max"] == str(512 * MIB)


def test_tiered_reservation_protects_guaranteed_pods_by_min_and_burstable_by_low():
    found = planned(kubelet(memory_reservation_policy="TieredReservation"), GUARANTEED, BURSTABLE)
    assert (found["podg/c"]["memory.min"], found["podg/c"]["memory.low"]) == (str(GIB), "0")
    assert (found[f"{POD}/c"]["memory.min"], found[f"{POD}/c"]["memory.low"]) == ("0", str(256 * MIB))
    assert found["burstable"]["memory.low"] == str(256 * MIB)
    assert found[""]["memory.min"] == str(GIB + 256 * MIB)


@pytest.mark.req("C1")
def test_protection_passes_through_the_cgroups_above_the_root():
    tree = plan(
        kubelet(memory_reservation_policy="TieredReservation"),
        [PlannedPod(GUARANTEED), PlannedPod(BURSTABLE)],
    )
    found = {cgroup.path: cgroup for cgroup in tree.cgroups}
    for file in ("memory.min", "memory.low"):
        assert found["/evenkeel"].value(file) == found["/evenkeel/kubepods"].value(file)
    assert found["/evenkeel"].value("memory.max") is None


def test_memory_high_is_between_request_and_limit():
    found = planned(kubelet(memory_throttling_factor=0.5), BURSTABLE)
    assert found[f"{POD}/c"]["memory.high"] == str(384 * MIB)


@pytest.mark.req("C4")
def test_with_the_gate_off_the_kernels_defaults_are_back():
    view = kubelet(memory_throttling_factor=0.5, feature_gates={"MemoryQoS": False})
    files = planned(view, BURSTABLE)[f"{POD}/c"]
    assert (files["memory.min"], files["memory.low"], files["memory.high"]) == ("0", "0", "max")


@pytest.mark.req("A19")
def test_single_processes_are_killed_alone_only_if_the_setting_says_so():
    assert planned(kubelet(), BURSTABLE)[f"{POD}/c"]["memory.oom.group"] == "1"
    assert planned(kubelet(single_process_oom_kill=True), BURSTABLE)[f"{POD}/c"]["memory.oom.group"] == "0"


def test_pod_level_resources_decide():
    own = pod(container(), own=asks({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "2Gi"}), name="b")
    found = planned(kubelet(), own)
    assert (found[POD]["cpu.max"], found[POD]["memory.max"]) == ("200000 100000", str(2 * GIB))
    assert (found[f"{POD}/c"]["cpu.max"], found[f"{POD}/c"]["memory.max"]) == ("200000 100000", str(2 * GIB))


@pytest.mark.req("D4")
def test_kubelet_adds_overhead_to_a_pods_limit():
    heavy = GUARANTEED._replace(spec=GUARANTEED.spec._replace(overhead=asks({"memory": "64Mi"}).requests))
    assert planned(kubelet(), heavy)["podg"]["memory.max"] == str(GIB + 64 * MIB)


@pytest.mark.req("A23")
def test_cores_of_its_own_need_no_quota_unless_the_gate_is_off():
    def files(**config):
        planned_pod = PlannedPod(GUARANTEED, None, {"c": (2, 3)}, (0, 1))
        other = PlannedPod(BURSTABLE, None, {}, (0, 1))
        found = planned(kubelet(**config), planned_pod, other)
        assert found[f"{POD}/c"]["cpuset.cpus"] == "0-1"
        return found["podg"]["cpu.max"], found["podg/c"]["cpu.max"], found["podg/c"]["cpuset.cpus"]

    assert files() == ("max 100000", "max 100000", "2-3")
    kept = files(feature_gates={"DisableCPUQuotaWithExclusiveCPUs": False})
    assert kept == ("100000 100000", "100000 100000", "2-3")


def test_quotas_follow_their_period_and_can_be_switched_off():
    short = planned(kubelet(cpu_cfs_quota_period=Duration.parse("20ms")), BURSTABLE)
    assert short[f"{POD}/c"]["cpu.max"] == short[POD]["cpu.max"] == "40000 20000"
    assert planned(kubelet(cpu_cfs_quota=False), BURSTABLE)[POD]["cpu.max"] == "max 100000"


@pytest.mark.req("A21")
def test_fair_sharing_works_here_too():
    half = pod(container({"cpu": "500m"}), name="b")
    found = planned(kubelet(cpus=1, fair_cpu_sharing=True), half, BEST_EFFORT, version=Version.V1)
    assert [found[path]["cpu.shares"] for path in (POD, "besteffort/podn")] == ["768", "256"]
    assert [found[path]["cpu.shares"] for path in ("burstable", "besteffort")] == ["768", "256"]


def test_qos_reserved_keeps_memory_of_higher_classes_from_lower_ones():
    view = kubelet(qos_reserved={"memory": "50%"}, feature_gates={"QOSReserved": True}, eviction_hard={})
    found = planned(view, GUARANTEED, BURSTABLE)
    assert found["burstable"]["memory.max"] == str(32 * GIB - GIB // 2)
    assert found["besteffort"]["memory.max"] == str(32 * GIB - GIB // 2 - 128 * MIB)


def test_a_container_without_a_limit_is_throttled_by_capacity_less_reservations():
    """Kubelet does not take the hard eviction threshold off here, as it does for the scheduler."""
    view = kubelet(
        memory_throttling_factor=0.5,
        kube_reserved={"memory": "1Gi"},
        system_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "4Gi"},
        enforce_node_allocatable=(),
    )
    found = planned(view, pod(container({"memory": "2Gi"}), name="b"), BEST_EFFORT)
    assert found[f"{POD}/c"]["memory.high"] == str(2 * GIB + (30 * GIB - 2 * GIB) // 2)
    assert found["besteffort/podn/c"]["memory.high"] == str(15 * GIB)


def test_reserved_classes_share_capacity_less_reservations():
    view = kubelet(
        qos_reserved={"memory": "100%"},
        feature_gates={"QOSReserved": True},
        kube_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "4Gi"},
    )
    assert planned(view, GUARANTEED)["burstable"]["memory.max"] == str(32 * GIB - GIB - GIB)


def test_more_reserved_than_there_is_leaves_nothing_to_throttle_by():
    view = kubelet(memory_throttling_factor=0.5, kube_reserved={"memory": "64Gi"})
    assert planned(view, BEST_EFFORT)["besteffort/podn/c"]["memory.high"] == "max"


def test_what_requests_more_than_the_node_has_gets_no_swap():
    view = kubelet(memory_swap=MemorySwapConfiguration("LimitedSwap"))
    view = view._replace(kubelet=view.kubelet._replace(swap_bytes=GIB))
    for request, swap in (("32Gi", GIB), ("33Gi", 0)):
        found = planned(view, pod(container({"memory": request}), name="b"))
        assert found[f"{POD}/c"]["memory.swap.max"] == str(swap)


RESERVED = {
    "system_reserved": {"memory": "1Gi", "cpu": "500m", "pid": "100"},
    "system_reserved_cgroup": "/system",
    "enforce_node_allocatable": ("pods", "system-reserved"),
}


@pytest.mark.req("B4")
def test_reservations_cap_and_protect_their_cgroups():
    amounts = {"cpu.weight": "20", "memory.max": str(GIB), "pids.max": "100", "cpuset.cpus": "0-7"}
    protected = planned(kubelet(**RESERVED))["/system"]
    assert protected == {**amounts, "memory.min": str(GIB)}
    assert planned(kubelet(**RESERVED, feature_gates={"MemoryQoS": False}))["/system"] == amounts


def test_without_a_static_policy_the_roots_have_every_cpu_by_name():
    for path in ("", "/system"):
        assert planned(kubelet(**RESERVED))[path]["cpuset.cpus"] == "0-7"
        static = kubelet(cpu_manager_policy="static", **RESERVED)
        assert "cpuset.cpus" not in planned(static)[path]
        # A cpuset of v1 has the CPUs of the one above it.
        assert "cpuset.cpus" not in planned(kubelet(**RESERVED), version=Version.V1)[path]
    gaps = kubelet()
    gaps = gaps._replace(capacity=gaps.capacity._replace(online_cpus=(0, 1, 3)))
    assert planned(gaps)[""]["cpuset.cpus"] == "0-1,3"


@pytest.mark.parametrize("version", [Version.V1, Version.V2])
def test_a_cgroup_root_above_the_pods_keeps_its_weight(version):
    found = {cgroup.path: cgroup for cgroup in plan(kubelet(), [PlannedPod(GUARANTEED)], version).cgroups}
    assert found["/evenkeel"].value("cpu.weight") is found["/evenkeel"].value("cpu.shares") is None


def test_huge_pages_of_a_container_are_those_it_asked_for():
    some = pod(container({"memory": "1Gi", "hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}), name="b")
    found = planned(kubelet(hugepages={2 * MIB: 512, GIB: 1}), some)
    assert (found[f"{POD}/c"]["hugetlb.2MB.max"], found[f"{POD}/c"]["hugetlb.1GB.max"]) == (str(4 * MIB), "0")
    assert found[POD]["hugetlb.2MB.max"] == str(4 * MIB)
    assert found[POD]["hugetlb.1GB.max"] == "0", "of a size that is not asked for, none"
    for path in ("", "burstable", "besteffort"):
        assert found[path]["hugetlb.2MB.max"] == found[path]["hugetlb.1GB.max"] == str(1 << 62)
    for files in found.values():
        assert all(
            files[file.replace(".max", ".rsvd.max")] == value
            for file, value in files.items()
            if file in ("hugetlb.2MB.max", "hugetlb.1GB.max")
        )


def test_reserved_cgroups_have_no_huge_pages():
    view = kubelet(
        hugepages={2 * MIB: 512, GIB: 1},
        system_reserved={"memory": "1Gi"},
        system_reserved_cgroup="/system",
        enforce_node_allocatable=("pods", "system-reserved"),
    )
    found = planned(view, version=Version.V1)["/system"]
    assert (found["hugetlb.1GB.limit_in_bytes"], found["hugetlb.1GB.rsvd.limit_in_bytes"]) == ("0", "0")


def test_where_there_is_no_quota_the_period_is_the_kernels():
    view = kubelet(cpu_cfs_quota_period=Duration.parse("20ms"))
    assert planned(view, BEST_EFFORT)["besteffort/podn"]["cpu.max"] == "max 100000"
    off = kubelet(cpu_cfs_quota_period=Duration.parse("20ms"), cpu_cfs_quota=False)
    assert planned(off, BURSTABLE)[POD]["cpu.max"] == "max 20000"


def test_every_setting_is_kubelets():
    tree = plan(kubelet(), [PlannedPod(BURSTABLE)])
    assert {setting.rule for cgroup in tree.cgroups for setting in cgroup.settings} == {"kubelet"}
    assert kubelet().profile is Profile.KUBERNETES
