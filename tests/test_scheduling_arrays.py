"""One pass over arrays chooses as the loop over nodes does, pod by pod, score by score, refusal by refusal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.node import Node, NodeSpec, NodeStatus, Taint
from evenkeel.api.pod import ObjectMeta, Toleration
from evenkeel.quantity import Quantity
from evenkeel.simulate import array_cluster
from evenkeel.simulate.array_cluster import ArrayCluster
from evenkeel.simulate.node_info import NodeInfo, PodDemand
from evenkeel.simulate.node_table import MAX_EXACT
from evenkeel.simulate.plain_cluster import Cluster, Scoring, ShapePoint, Strategy

GPU = "example.com/gpu"
NAMES = ("cpu", "memory", "ephemeral-storage", GPU)

# Few values, so that ties, full nodes and quotients that just reach a whole number are common.
small = st.sampled_from([0, 1, 2, 3, 7, 10, 33, 99, 100, 101])
around_the_bound = st.sampled_from(
    [MAX_EXACT // 100, MAX_EXACT - 1, MAX_EXACT, MAX_EXACT + 1, 2**53 + 1, 2**63 - 1]
)
capacities = st.one_of(small, small, st.integers(0, 10**12), around_the_bound)
requests = st.one_of(small, small, small, st.integers(0, 10**11), around_the_bound)


def amounts(values, always=()):
    chosen = {name: values if name in always else values | st.none() for name in NAMES}
    return st.fixed_dictionaries(chosen).map(
        lambda found: tuple((name, amount) for name, amount in sorted(found.items()) if amount is not None)
    )


@st.composite
def nodes(draw):
    allocatable = dict(draw(amounts(capacities, always=("cpu", "memory"))))
    quantities = {
        name: Quantity.of_milli(amount) if name == "cpu" else Quantity.of(amount)
        for name, amount in allocatable.items()
    }
    quantities["pods"] = Quantity.of(draw(st.sampled_from([0, 1, 2, 5, 110])))
    taints = draw(st.sampled_from([(), (), (), (Taint("key", "value", "NoSchedule"),)]))
    return Node(ObjectMeta(name="n"), NodeSpec(taints=taints), NodeStatus(allocatable=quantities))


@st.composite
def pods(draw):
    """Figures as pods have them, and some that only a pod with a status of its own could have."""
    stated = draw(amounts(requests))
    needed = tuple(item for item in stated if item[1])
    if draw(st.booleans()):
        missing = {"cpu": 100, "memory": 200 << 20} | dict(stated)
        scored = occupied = tuple(sorted(missing.items()))
        counted = stated
    else:
        counted, scored, occupied = draw(st.tuples(*[amounts(requests)] * 3))
    tolerations = draw(st.sampled_from([(), (Toleration("key", "Exists"),)]))
    return PodDemand(needed, counted, scored, occupied, tolerations)


scorings = st.builds(
    Scoring,
    strategy=st.sampled_from(Strategy),
    resources=st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(1, 100)), min_size=1, unique_by=lambda item: item[0]
    ).map(tuple)
    | st.just(Scoring().resources),
    shape=st.lists(st.integers(0, 100), min_size=1, max_size=4, unique=True).flatmap(
        lambda at: st.tuples(*(st.builds(ShapePoint, st.just(x), st.integers(0, 10)) for x in sorted(at)))
    ),
    balanced=st.lists(st.sampled_from(NAMES), unique=True).map(tuple) | st.just(Scoring().balanced),
    strategy_weight=st.sampled_from([0, 1, 1, 3, 100]),
    balanced_weight=st.sampled_from([0, 1, 1, 3, 100]),
)


def choices_of_both(the_nodes, the_pods, scoring):
    plain = Cluster([NodeInfo(node) for node in the_nodes], scoring)
    fast = ArrayCluster([NodeInfo(node) for node in the_nodes], scoring)
    for pod in the_pods:
        choice = plain.best(pod)
        yield (choice, plain.refusals(pod)), (fast.best(pod), fast.refusals(pod))
        if choice is not None:
            plain.add(choice.place, pod)
            fast.add(choice.place, pod)


@pytest.mark.req("A9", "A10")
@settings(max_examples=50)
@given(
    st.lists(nodes(), max_size=9),
    st.lists(pods(), min_size=1, max_size=4),
    st.data(),
    st.just(Scoring()) | scorings,
)
def test_arrays_choose_as_the_loop_does(the_nodes, shapes, data, scoring):
    order = data.draw(st.lists(st.sampled_from(shapes), max_size=12))
    for plain, fast in choices_of_both(the_nodes, order, scoring):
        assert fast == plain


@pytest.mark.req("A9", "A10")
@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from(Strategy),
)
def test_arrays_choose_as_the_loop_does_while_equal_nodes_fill_up(sizes, random, strategy):
    the_nodes = [
        Node(
            ObjectMeta(name="n"),
            status=NodeStatus(
                allocatable={
                    "cpu": Quantity.of(size),
                    "memory": Quantity.of(4 * size),
                    "pods": Quantity.of(9),
                }
            ),
        )
        for size in random.choices(sizes, k=24)
    ]
    shapes = []
    for _ in range(6):
        items = (("cpu", random.randrange(1, 90_000)), ("memory", random.randrange(1, 400)))
        shapes.append(PodDemand(items, items, items, items, ()))
    order = random.choices(shapes, k=60)
    for plain, fast in choices_of_both(the_nodes, order, Scoring(strategy)):
        assert fast == plain


def test_more_shapes_than_are_remembered_are_still_right(monkeypatch):
    monkeypatch.setattr(array_cluster, "MAX_KNOWN", 4)
    monkeypatch.setattr(array_cluster, "MAX_KEPT", 2)
    node = Node(
        ObjectMeta(name="n"),
        status=NodeStatus(
            allocatable={"cpu": Quantity.of(8), "memory": Quantity.of(900), "pods": Quantity.of(1500)}
        ),
    )
    shapes = [
        PodDemand(items, items, items, items, ())
        for items in ((("cpu", 10 * i), ("memory", 7 - i)) for i in range(1, 6))
    ]
    order = [shapes[i % 5] for i in range(1100)]
    compared = list(choices_of_both([node] * 8, order, Scoring()))
    assert all(fast == plain for plain, fast in compared)
    assert compared[-1][0][0] is not None


@pytest.mark.parametrize("capacity", [3, 7, 49, 10**6 + 3, MAX_EXACT - 1, MAX_EXACT])
@pytest.mark.parametrize("strategy", [Strategy.LEAST_ALLOCATED, Strategy.MOST_ALLOCATED])
def test_quotients_next_to_a_whole_number_are_rounded_as_integers_are(capacity, strategy):
    node = Node(
        ObjectMeta(name="n"),
        status=NodeStatus(allocatable={"memory": Quantity.of(capacity), "pods": Quantity.of(9)}),
    )
    scoring = Scoring(strategy, resources=(("memory", 1),), balanced=("memory",), balanced_weight=0)
    fast = ArrayCluster([NodeInfo(node)], scoring)
    plain = Cluster([NodeInfo(node)], scoring)
    for percent in range(101):
        for near in (-1, 0, 1):
            amount = capacity * percent // 100 + near
            if 0 <= amount <= capacity:
                pod = PodDemand((), (("memory", amount),), (("memory", amount),), (), ())
                assert fast.best(pod) == plain.best(pod)
    assert not fast._table.plain  # noqa: SLF001
