from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.node import Node, NodeStatus
from evenkeel.api.pod import ObjectMeta
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.policy.allocatable import (
    CgroupLimits,
    NodeCapacity,
    node_allocatable,
    node_capacity,
    parse_reserved,
    pods_cgroup_limits,
    reservation,
    reservation_problems,
    reserved_cgroup_limits,
    reserved_of,
)
from evenkeel.policy.node_view import capacity_of, parse_node
from evenkeel.quantity import Quantity

MIB, GIB = 2**20, 2**30
NODE = NodeCapacity(millicpu=8000, memory_bytes=32 * GIB, ephemeral_storage_bytes=100 * GIB, pids=10_000)
# The example of document B.
DOCUMENT_B = KubeletConfiguration(
    kube_reserved={"memory": "2Gi"},
    system_reserved={"memory": "1Gi"},
    eviction_hard={"memory.available": "100Mi"},
)


@pytest.mark.req("B1", "B9")
def test_the_worked_example_of_the_document():
    allocatable = node_allocatable(NODE, DOCUMENT_B)["memory"].value
    assert allocatable == 32 * GIB - 2 * GIB - 1 * GIB - 100 * MIB
    assert round(allocatable / GIB, 1) == 28.9
    assert pods_cgroup_limits(NODE, DOCUMENT_B).memory_bytes == 29 * GIB


@pytest.mark.req("B8")
def test_the_pods_cgroup_may_use_allocatable_and_the_threshold_together():
    allocatable = node_allocatable(NODE, DOCUMENT_B)["memory"].value
    assert pods_cgroup_limits(NODE, DOCUMENT_B).memory_bytes == allocatable + 100 * MIB


@pytest.mark.req("B7")
def test_the_threshold_can_be_left_out_of_allocatable_without_changing_the_cgroup():
    config = DOCUMENT_B._replace(experimental_node_allocatable_ignore_eviction_threshold=True)
    assert node_allocatable(NODE, config)["memory"] == Quantity("29Gi")
    assert pods_cgroup_limits(NODE, config) == pods_cgroup_limits(NODE, DOCUMENT_B)


@pytest.mark.req("B3")
def test_nothing_is_reserved_unless_asked_for():
    config = KubeletConfiguration(eviction_hard={})
    assert reserved_of(config) == ({}, {})
    assert reservation(NODE, config) == {}
    assert node_allocatable(NODE, config) == node_capacity(NODE, config)


@pytest.mark.req("B2")
def test_capacity_and_allocatable_are_what_a_nodes_status_reports():
    config = KubeletConfiguration(kube_reserved={"cpu": "500m"}, eviction_hard={}, max_pods=40)
    assert {name: str(amount) for name, amount in node_capacity(NODE, config).items()} == {
        "cpu": "8",
        "memory": "32Gi",
        "ephemeral-storage": "100Gi",
        "pods": "40",
    }
    assert str(node_allocatable(NODE, config)["cpu"]) == "7500m"


def test_pods_per_core_lowers_the_number_of_pods_and_never_raises_it():
    assert node_capacity(NODE, KubeletConfiguration(pods_per_core=2))["pods"].value == 16
    assert node_capacity(NODE, KubeletConfiguration(pods_per_core=100))["pods"].value == 110


@pytest.mark.req("B1")
def test_allocatable_is_never_below_zero_and_the_excess_is_reported_with_its_flags():
    config = KubeletConfiguration(
        kube_reserved={"memory": "20Gi"}, system_reserved={"memory": "20Gi", "cpu": "1"}, eviction_hard={}
    )
    assert node_allocatable(NODE, config)["memory"].value == 0
    assert pods_cgroup_limits(NODE, config).memory_bytes == 0
    (problem,) = reservation_problems(NODE, config)
    assert problem.field == "memory"
    assert "--kube-reserved 20Gi + --system-reserved 20Gi" in problem.message
    assert "32Gi" in problem.message


@pytest.mark.req("B12")
def test_ephemeral_storage_is_reserved_and_its_threshold_counts():
    config = KubeletConfiguration(
        kube_reserved={"ephemeral-storage": "10Gi"},
        system_reserved={"ephemeral-storage": "5Gi"},
        eviction_hard={"nodefs.available": "1Gi"},
    )
    assert node_allocatable(NODE, config)["ephemeral-storage"] == Quantity("84Gi")


@pytest.mark.req("B12")
def test_storage_that_is_not_known_or_not_counted_is_not_reported():
    unknown = NODE._replace(ephemeral_storage_bytes=None)
    assert "ephemeral-storage" not in node_allocatable(unknown, DOCUMENT_B)
    uncounted = DOCUMENT_B._replace(local_storage_capacity_isolation=False)
    assert "ephemeral-storage" not in node_allocatable(NODE, uncounted)


def test_huge_pages_are_taken_out_of_allocatable_memory_but_limited_apart_in_the_cgroup():
    node = NODE._replace(hugepages={2 * MIB: 512, GIB: 2})
    config = KubeletConfiguration(eviction_hard={})
    allocatable = node_allocatable(node, config)
    assert allocatable["memory"] == Quantity("29Gi")
    assert allocatable["hugepages-2Mi"] == Quantity("1Gi")
    limits = pods_cgroup_limits(node, config)
    assert limits.memory_bytes == 32 * GIB
    assert limits.hugepage_bytes == {2 * MIB: GIB, GIB: 2 * GIB}


def test_the_pods_cgroup_is_limited_in_cpu_and_processes_too():
    config = KubeletConfiguration(kube_reserved={"cpu": "1", "pid": "1000"}, system_reserved={"pid": "500"})
    limits = pods_cgroup_limits(NODE, config)
    assert (limits.millicpu, limits.cpu_shares, limits.pids) == (7000, 7168, 8500)


@pytest.mark.req("B4")
@pytest.mark.parametrize("change", [{"enforce_node_allocatable": ()}, {"cgroups_per_qos": False}])
def test_where_pods_are_not_enforced_their_cgroup_may_use_the_machine(change):
    limits = pods_cgroup_limits(NODE, DOCUMENT_B._replace(**change))
    assert limits == CgroupLimits(millicpu=8000, memory_bytes=32 * GIB, pids=10_000)


@pytest.mark.req("B4")
def test_a_reservation_limits_its_cgroup_only_where_it_is_enforced():
    config = KubeletConfiguration(
        kube_reserved={"cpu": "500m", "memory": "1Gi", "pid": "100"}, system_reserved={"memory": "2Gi"}
    )
    assert reserved_cgroup_limits(config) == (None, None)
    enforced = config._replace(enforce_node_allocatable=("pods", "kube-reserved"))
    assert reserved_cgroup_limits(enforced) == (CgroupLimits(500, GIB, 100), None)
    compressible = config._replace(
        enforce_node_allocatable=("kube-reserved-compressible", "system-reserved-compressible")
    )
    assert reserved_cgroup_limits(compressible) == (CgroupLimits(500), CgroupLimits())


@pytest.mark.req("B4")
def test_enforcing_a_reservation_of_nothing_does_nothing():
    assert (
        reserved_cgroup_limits(KubeletConfiguration(enforce_node_allocatable=("kube-reserved",))).kube is None
    )


def test_whole_cpus_kept_back_replace_reservations_of_cpu():
    config = KubeletConfiguration(
        kube_reserved={"cpu": "500m"}, system_reserved={"cpu": "1"}, reserved_system_cpus="0-1,7"
    )
    kube, system = reserved_of(config)
    assert kube == {}
    assert system == {"cpu": Quantity("3")}


@pytest.mark.req("B3", "B12")
def test_cpu_memory_storage_and_processes_can_be_reserved():
    text = {"cpu": "500m", "memory": "5Mi", "ephemeral-storage": "1Gi", "pid": "100"}
    assert {name: str(amount) for name, amount in parse_reserved(text).items()} == text


@pytest.mark.parametrize(
    "text, milli", [("0.0004", 0), ("0.0005", 1), ("1.2345", 1235), ("1.2344999", 1235), ("1.2344", 1234)]
)
def test_reserved_cpu_is_rounded_to_thousandths_as_kubelet_does(text, milli):
    assert parse_reserved({"cpu": text})["cpu"].milli == milli


@pytest.mark.req("B3")
def test_every_mistake_in_a_reservation_is_named_with_field_flag_and_mend():
    with pytest.raises(InvalidInput) as caught:
        parse_reserved(
            {"mem": "1Gi", "cpu": "-1", "memory": "1GB", "hugepages-2Mi": "4Mi"}, "system_reserved"
        )
    found = {problem.field: problem.message for problem in caught.value.problems}
    assert set(found) == {
        "systemReserved[mem]",
        "systemReserved[cpu]",
        "systemReserved[memory]",
        "systemReserved[hugepages-2Mi]",
    }
    assert all(message.startswith("--system-reserved") for message in found.values())
    assert "did you mean memory?" in found["systemReserved[mem]"]
    assert "write 500m" in found["systemReserved[cpu]"]


@pytest.mark.parametrize(
    "text", ["32Gi,8cpu", "8cpu,32Gi", "memory=32Gi,cpu=8", " 8 cores , 32Gi", "8000mcpu,32Gi"]
)
def test_a_nodes_size_can_be_written_in_any_order(text):
    node = parse_node(text)
    assert (node.millicpu, node.memory_bytes) == (8000, 32 * GIB)


def test_a_nodes_size_can_be_written_in_full():
    text = "memory=32Gi,cpu=8,ephemeral-storage=50Gi,pids=1000,hugepages-2Mi=1Gi"
    assert parse_node(text) == NodeCapacity(8000, 32 * GIB, 50 * GIB, {2 * MIB: 512}, 1000)


def test_a_size_gets_defaults_for_resources_that_it_leaves_out():
    assert parse_node("2cpu") == NodeCapacity(2000, 16 * GIB, 100 * GIB)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "does not say what it is"),
        ("8", "does not say what it is"),
        ("32GB", "write 32G or 32Gi"),
        ("32Gi,64Gi", "memory stands twice"),
        ("cpu=0", "cpu must be more than nothing"),
        ("cpu=-1", "cpu must be more than nothing"),
        ("ephemeral-storage=-1", "must be not negative"),
        ("cpus=8", "did you mean cpu?"),
        ("gpu=zz", "is nothing a node has"),
        ("hugepages-3Mi=3Mi", "names no size of huge pages"),
        ("hugepages-2Mi=3Mi", "whole number of pages"),
        ("1Gi,hugepages-1Gi=2Gi", "more than the memory"),
        ("memory=1e30", "fit a machine"),
    ],
)
def test_a_size_that_is_none_is_refused_by_the_name_of_its_flag(text, words):
    with pytest.raises(EvenkeelError, match=r"^--node: ") as caught:
        parse_node(text)
    assert words in str(caught.value)


def test_a_node_objects_capacity_is_its_size():
    capacity = {
        "cpu": "7500m",
        "memory": "4Gi",
        "hugepages-2Mi": "4Mi",
        "pods": "110",
        "example.com/gpu": "1",
    }
    node = Node(status=NodeStatus(capacity={name: Quantity(text) for name, text in capacity.items()}))
    assert capacity_of(node) == NodeCapacity(7500, 4 * GIB, None, {2 * MIB: 2})


def test_a_node_object_without_memory_is_refused():
    node = Node(ObjectMeta(name="n1"), status=NodeStatus(capacity={"cpu": Quantity("4")}))
    with pytest.raises(EvenkeelError, match=r"status.capacity of the node n1: memory is missing"):
        capacity_of(node)


amounts = st.sampled_from(["0", "1", "500m", "1.5", "100Mi", "9Gi", "64Gi", "1e3", "10E"])
thresholds = st.sampled_from(["0%", "1%", "33.3%", "99.99%", "100Mi", "1Ti", "nan%"])


nodes = st.tuples(
    st.integers(0, 10**6),
    st.integers(0, 2**45),
    st.none() | st.integers(0, 2**50),
    st.dictionaries(st.sampled_from([2 * MIB, GIB]), st.integers(0, 1000)),
).map(lambda fields: NodeCapacity(*fields))


def configured(fields: dict[str, Any]) -> KubeletConfiguration:
    return KubeletConfiguration(**fields)


configs = st.fixed_dictionaries(
    {
        "kube_reserved": st.dictionaries(
            st.sampled_from(["cpu", "memory", "ephemeral-storage", "pid"]), amounts
        ),
        "system_reserved": st.dictionaries(st.sampled_from(["cpu", "memory", "pid"]), amounts),
        "eviction_hard": st.dictionaries(
            st.sampled_from(["memory.available", "nodefs.available"]), thresholds
        ),
    }
).map(configured)


@pytest.mark.req("B1")
@given(nodes, configs)
def test_nothing_is_ever_less_than_nothing_nor_more_than_there_is(node, config):
    capacity = node_capacity(node, config)
    for name, amount in node_allocatable(node, config).items():
        assert 0 <= amount.nanos <= capacity[name].nanos
    limits = pods_cgroup_limits(node, config)
    assert 0 <= limits.memory_bytes <= node.memory_bytes
    assert 0 <= limits.millicpu <= node.millicpu
    assert 0 <= limits.pids <= node.pids
    assert limits.memory_bytes >= node_allocatable(node, config)["memory"].value


@given(st.text(max_size=20) | st.text("0123456789.,=cpuGiMmemory-", max_size=20))
def test_no_text_for_a_node_is_answered_with_anything_but_a_node_or_a_sentence(text):
    try:
        node = parse_node(text)
    except EvenkeelError as error:
        sentence = str(error)
    else:
        sentence = ""
        assert node.millicpu > 0
    assert not sentence or sentence.startswith("--node: ")
