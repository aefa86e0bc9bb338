"""Predicates and priorities: what fits, which node is best, and where pods end up."""

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.node import Node, NodeSpec, NodeStatus, Taint
from evenkeel.api.pod import ContainerStatus, ObjectMeta, Pod, PodSpec, PodStatus, Toleration
from evenkeel.api.resources import ResourceRequirements
from evenkeel.errors import EvenkeelError
from evenkeel.quantity import Quantity
from evenkeel.simulate.array_cluster import ArrayCluster
from evenkeel.simulate.node_info import NodeInfo, pod_demand
from evenkeel.simulate.plain_cluster import (
    Cluster,
    Insufficient,
    NodeRefusal,
    Scoring,
    ShapePoint,
    Strategy,
    balanced_score,
    evenness,
    exceeding,
    fits,
    insufficient,
    node_infos,
    schedule,
    scorer,
    shape_score,
    strategy_score,
)

GIB = 1 << 30
UNTAINTED = NodeSpec()
CLUSTERS = pytest.mark.parametrize("kind", [Cluster, ArrayCluster])


def quantities(amounts):
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in amounts.items()}


def a_node(name="n", spec=UNTAINTED, **allocatable):
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"} | allocatable
    return Node(ObjectMeta(name=name), spec, NodeStatus(allocatable=quantities(allocatable)))


def a_container(requests, limits=None):
    return Container(resources=ResourceRequirements(quantities(requests), quantities(limits or {})))


def a_pod(name="p", *, limits=None, tolerations=(), node_name="", **requests):
    spec = PodSpec((a_container(requests, limits),), tolerations=tolerations, node_name=node_name)
    return Pod(ObjectMeta(name=name), spec)


def figures(pod, profile=Profile.DOCUMENTS):
    return pod_demand(pod, profile)


def a_cluster(kind, *nodes, scoring=None):
    return kind([NodeInfo(node) for node in nodes], scoring or Scoring())


def placed(cluster, *pods):
    return [placement.node for placement in schedule(cluster, pods, Profile.DOCUMENTS)]


@pytest.mark.req("A9")
def test_a_pod_fits_by_its_requests_however_high_its_limits_are():
    node = NodeInfo(a_node(memory="4Gi"))
    assert fits(figures(a_pod(memory="4Gi", limits={"memory": "64Gi", "cpu": "64"})), node)
    assert not fits(figures(a_pod(memory="4097Mi")), node)


@pytest.mark.req("A9")
def test_pods_already_there_exceed_a_node_by_requests_and_not_by_limits():
    node = NodeInfo(a_node(memory="4Gi", pods="3"))
    for _ in range(3):
        node.add(figures(a_pod(memory="1Gi", limits={"memory": "4Gi"})))
    assert exceeding(node) == ()
    node.add(figures(a_pod(memory="1025Mi", cpu="100m")))
    assert exceeding(node) == (
        Insufficient("pods", 0, 4, 3),
        Insufficient("memory", 0, 4 * GIB + (1 << 20), 4 * GIB),
    )


@pytest.mark.req("A9")
def test_every_resource_that_is_short_is_named_with_its_figures():
    node = NodeInfo(a_node(pods="1"))
    node.add(figures(a_pod(cpu="3500m")))
    short = insufficient(figures(a_pod(cpu="1", memory="16Gi", **{"example.com/gpu": "2"})), node)
    assert short == (
        Insufficient("pods", 1, 1, 1),
        Insufficient("cpu", 1000, 3500, 4000),
        Insufficient("example.com/gpu", 2, 0, 0),
        Insufficient("memory", 16 * GIB, 0, 8 * GIB),
    )


@pytest.mark.req("A9")
def test_a_resource_that_a_pod_does_not_request_never_refuses_it():
    node = NodeInfo(a_node(cpu="1"))
    node.add(figures(a_pod(cpu="3")))
    assert fits(figures(a_pod(memory="1Gi")), node)
    assert fits(figures(a_pod(cpu="0")), node)
    assert not fits(figures(a_pod(cpu="1m")), node)


def test_a_node_without_allocatable_is_taken_at_its_capacity():
    stated = quantities({"cpu": "2", "memory": "1Gi", "pods": "5"})
    bare = NodeInfo(Node(ObjectMeta(name="n"), status=NodeStatus(capacity=stated)))
    assert (bare.allocatable, bare.allowed_pods) == ({"cpu": 2000, "memory": GIB}, 5)


@pytest.mark.parametrize(
    "amounts, said",
    [
        ({"memory": "20E"}, "node n: memory: 20E is too much; write at most 9223372036854775807"),
        ({"cpu": "20P"}, "node n: cpu: 20P is too much; write at most 9223372036854775"),
        ({"pods": "1e99"}, "node n: pods: 1e99 is too many; write a number such as 110"),
        ({"cpu": "-1"}, "node n: cpu: -1 is less than nothing; write 0 or more"),
    ],
)
def test_amounts_that_cannot_be_counted_are_refused_with_a_sentence(amounts, said):
    with pytest.raises(EvenkeelError, match=said):
        NodeInfo(a_node(**amounts))


def test_a_request_that_cannot_be_counted_is_refused_with_the_pod_named():
    with pytest.raises(EvenkeelError, match="pod default/p: its requests: memory: 20E is too much"):
        figures(a_pod(memory="20E"))


@pytest.mark.req("A10")
def test_least_allocated_counts_requests_and_not_limits():
    node = NodeInfo(a_node())
    node.add(figures(a_pod(cpu="1", memory="2Gi", limits={"cpu": "4", "memory": "8Gi"})))
    pod = figures(a_pod(cpu="1", memory="2Gi", limits={"cpu": "4", "memory": "8Gi"}))
    assert scorer(pod, Scoring())(node).strategy == 50


@pytest.mark.req("A10")
def test_balanced_allocation_counts_requests_and_not_limits():
    node = NodeInfo(a_node())
    limits = {"cpu": "4", "memory": "2Gi"}
    pod = figures(a_pod(cpu="1", memory="2Gi", limits=limits))
    assert balanced_score(dict(pod.requests), node, ("cpu", "memory")) == 75


@pytest.mark.req("A10")
def test_balanced_allocation_prefers_the_node_that_the_pod_evens_out():
    even, tilted = NodeInfo(a_node()), NodeInfo(a_node())
    tilted.add(figures(a_pod(cpu="2", memory="1Gi")))
    even.add(figures(a_pod(cpu="1", memory="2Gi")))
    pod = dict(figures(a_pod(memory="2Gi")).requests)
    assert balanced_score(pod, tilted, ("cpu", "memory")) > 75 > balanced_score(pod, even, ("cpu", "memory"))


@pytest.mark.req("A10")
def test_a_missing_request_counts_as_100m_and_200mi_and_a_written_zero_as_nothing():
    silent, zero = figures(a_pod()), figures(a_pod(cpu="0", memory="0"))
    assert (dict(silent.scored), silent.needed) == ({"cpu": 100, "memory": 200 << 20}, ())
    assert dict(zero.scored) == {"cpu": 0, "memory": 0}
    assert scorer(silent, Scoring())(NodeInfo(a_node())).balanced == 0


@pytest.mark.parametrize(
    "strategy, score",
    [
        (Strategy.LEAST_ALLOCATED, (2 * 74 + 49) // 3),
        (Strategy.MOST_ALLOCATED, (2 * 25 + 50) // 3),
        (Strategy.REQUESTED_TO_CAPACITY_RATIO, round((2 * 25 + 50) / 3)),
    ],
)
def test_strategies_weigh_resources(strategy, score):
    scoring = Scoring(strategy, resources=(("cpu", 2), ("memory", 1)))
    asked = {"cpu": 1001, "memory": 4 * GIB + 1}
    assert strategy_score(asked, NodeInfo(a_node()), scoring) == score


def test_a_falling_shape_is_cut_towards_zero():
    shape = (ShapePoint(0, 0), ShapePoint(40, 9), ShapePoint(80, 5), ShapePoint(100, 1))
    assert [shape_score(shape, at) for at in (0, 1, 40, 41, 79, 80, 81, 100)] == [
        0,
        2,
        90,
        89,
        51,
        50,
        48,
        10,
    ]
    assert shape_score((ShapePoint(20, 2), ShapePoint(50, 10)), 60) == 100


def test_ratio_drops_zeros_from_the_mean_and_rounds_half_up():
    scoring = Scoring(
        Strategy.REQUESTED_TO_CAPACITY_RATIO,
        resources=(("cpu", 1), ("memory", 1)),
        shape=(ShapePoint(0, 0), ShapePoint(100, 10)),
    )
    node = NodeInfo(a_node())
    assert strategy_score({"cpu": 0, "memory": 4 * GIB}, node, scoring) == 50
    assert strategy_score({"cpu": 2040, "memory": 4 * GIB}, node, scoring) == 51
    assert strategy_score({"cpu": 0, "memory": 0}, node, scoring) == 0


def test_evenness_of_one_resource_is_whole_and_of_three_falls_with_their_spread():
    assert evenness([7], [10]) == evenness([], []) == 100
    assert evenness([1, 1, 1], [2, 2, 2]) == 100
    assert evenness([0, 1, 1], [1, 1, 2]) == 59


@pytest.mark.parametrize(
    "scoring, said",
    [
        (Scoring(resources=()), "at least one resource"),
        (Scoring(resources=(("cpu", 0),)), "the weight of cpu must be from 1 to 100, not 0"),
        (Scoring(resources=(("cpu", 1), ("cpu", 1))), "weighed once only"),
        (Scoring(balanced_weight=101), "from 0 to 100, not 101"),
        (Scoring(shape=()), "at least one point"),
        (Scoring(shape=(ShapePoint(101, 0),)), "0 to 100, not 101"),
        (Scoring(shape=(ShapePoint(0, 11),)), "0 to 10, not 11"),
        (Scoring(shape=(ShapePoint(50, 1), ShapePoint(50, 2))), "must rise"),
    ],
)
def test_a_scoring_that_makes_no_sense_is_refused_with_a_sentence(scoring, said):
    with pytest.raises(EvenkeelError, match=said):
        Cluster([], scoring)


@CLUSTERS
@pytest.mark.req("A10")
def test_pods_spread_over_equal_nodes_and_the_first_of_equals_is_taken(kind):
    cluster = a_cluster(kind, a_node("a"), a_node("b"), a_node("c"))
    pods = [a_pod(cpu="1", memory="2Gi") for _ in range(4)]
    assert placed(cluster, *pods) == ["a", "b", "c", "a"]


@CLUSTERS
def test_most_allocated_packs(kind):
    scoring = Scoring(Strategy.MOST_ALLOCATED)
    cluster = a_cluster(kind, a_node("a"), a_node("b"), scoring=scoring)
    pods = [a_pod(cpu="1", memory="2Gi") for _ in range(5)]
    assert placed(cluster, *pods) == ["a", "a", "a", "a", "b"]


@CLUSTERS
@pytest.mark.req("A9")
def test_a_pod_that_fits_nowhere_learns_how_many_nodes_lack_what(kind):
    nodes = [a_node(f"n{i}") for i in range(3)] + [a_node("small", cpu="500m"), a_node("full", pods="0")]
    cluster = a_cluster(kind, *nodes)
    cluster.add(0, figures(a_pod(cpu="3")))
    (placement,) = schedule(cluster, [a_pod(cpu="3500m", memory="9Gi")], Profile.DOCUMENTS)
    assert (placement.node, placement.refusals) == (
        "",
        (
            NodeRefusal(5, "memory", 9 * GIB, 8 * GIB),
            NodeRefusal(2, "cpu", 3500, 1000),
            NodeRefusal(1, "pods", 1, 0),
        ),
    )


@CLUSTERS
def test_taints_keep_pods_away_that_do_not_tolerate_them(kind):
    gpu = NodeSpec(taints=(Taint("gpu", "yes", "NoSchedule"), Taint("soft", "", "PreferNoSchedule")))
    cluster = a_cluster(kind, a_node("gpu", gpu, cpu="64"), a_node("drained", NodeSpec(unschedulable=True)))
    refused, tolerant, wrong, everywhere = schedule(
        cluster,
        [
            a_pod(cpu="1"),
            a_pod(cpu="1", tolerations=(Toleration("gpu", "Equal", "yes", "NoSchedule"),)),
            a_pod(cpu="1", tolerations=(Toleration("gpu", "", "no"), Toleration("other", "Exists"))),
            a_pod(cpu="128", tolerations=(Toleration(operator="Exists"),)),
        ],
        Profile.DOCUMENTS,
    )
    assert tolerant.node == "gpu"
    assert refused.refusals == (
        NodeRefusal(1, taint="gpu=yes:NoSchedule"),
        NodeRefusal(1, taint="node.kubernetes.io/unschedulable:NoSchedule"),
    )
    assert wrong.refusals == refused.refusals
    assert everywhere.refusals == (NodeRefusal(2, "cpu", 128_000, 63_000),)


@CLUSTERS
def test_no_nodes_take_no_pod(kind):
    (placement,) = schedule(a_cluster(kind), [a_pod()], Profile.DOCUMENTS)
    assert (placement.node, placement.refusals) == ("", ())


def test_pods_with_a_node_name_count_on_that_node_unless_they_have_ended():
    running = a_pod("r", cpu="1", memory="1Gi", node_name="b")
    ended = a_pod("e", cpu="1", node_name="b")._replace(status=PodStatus(phase="Succeeded"))
    infos = node_infos([a_node("a"), a_node("b")], [running, ended], Profile.DOCUMENTS)
    assert [(info.pods, info.requested) for info in infos] == [(0, {}), (1, {"cpu": 1000, "memory": GIB})]


def test_pod_level_requests_count_in_the_kubernetes_profile_only():
    containers = (a_container({"cpu": "1", "memory": "1Gi"}), a_container({"memory": "1Gi"}))
    resources = ResourceRequirements(quantities({"memory": "3Gi"}))
    pod = Pod(spec=PodSpec(containers, resources=resources))
    documents, today = figures(pod), figures(pod, Profile.KUBERNETES)
    assert dict(documents.needed) == {"cpu": 1000, "memory": 2 * GIB}
    assert dict(today.needed) == {"cpu": 1000, "memory": 3 * GIB}
    # Kubernetes adds 100m for the container without a cpu request while it compares nodes, and not afterwards.
    assert (dict(today.scored)["cpu"], dict(today.occupied)["cpu"]) == (1100, 1000)


def test_a_resize_under_way_counts_at_its_larger_end_on_the_node():
    status = ContainerStatus("", allocated_resources=quantities({"cpu": "3", "memory": "1Gi"}))
    pod = a_pod(cpu="1", memory="1Gi")._replace(status=PodStatus(container_statuses=(status,)))
    counted = figures(pod)
    assert (dict(counted.needed)["cpu"], dict(counted.requests)["cpu"]) == (1000, 3000)
