"""OOM scores: which process the kernel's OOM killer takes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.pod import ObjectMeta
from evenkeel.policy.oom_score import BEST_EFFORT_SCORE, oom_score_adj
from evenkeel.policy.qos import is_critical, is_node_critical
from tests.strategies import GIB, asks, container, pod, sidecar

CAPACITY = 32 * GIB
DOCUMENTS, KUBERNETES = Profile.DOCUMENTS, Profile.KUBERNETES


def score(some, profile=DOCUMENTS, capacity=CAPACITY, whole=None):
    return oom_score_adj(whole or pod(some), some, capacity, profile)


def burstable(memory_bytes):
    return container({"memory": str(memory_bytes)})


@pytest.mark.req("A12")
@pytest.mark.parametrize(
    "some, expected",
    [
        (container(), 1000),
        (container({"cpu": "1"}, {"cpu": "1"}), 1000),
        (container({"memory": "0"}, {"memory": "1Gi"}), 1000),
        (container({"memory": "1Gi"}, {"memory": "1Gi"}), -999),
        (container({"memory": "8Gi"}, {"memory": "16Gi"}), 750),
        (container({"memory": "16Gi"}), 500),
        (container({"memory": "1"}), 999),
        (container({"memory": "32Mi"}), 999),
        (container({"memory": "33Mi"}), 999),
        (container({"memory": "66Mi"}), 998),
        (container({"memory": "32Gi"}), 2),
        (container({"memory": "64Gi"}), 2),
    ],
)
def test_the_score_follows_the_containers_own_memory_class(some, expected):
    assert score(some) == expected


@pytest.mark.req("A12")
def test_over_998_thousandths_of_the_node_the_score_is_2():
    assert score(burstable(998), capacity=1000) == 2
    assert score(burstable(997), capacity=1000) == 3
    assert score(burstable(9981), capacity=10_000) == 2
    assert score(burstable(9980), capacity=10_000) == 2
    assert score(burstable(9979), capacity=10_000) == 3


@pytest.mark.req("A12")
def test_a_burstable_pod_may_hold_a_container_whose_memory_is_guaranteed():
    safe = container({"memory": "1Gi"}, {"memory": "1Gi"})
    whole = pod(safe, container(name="d"))
    assert score(safe, whole=whole) == -999
    assert score(safe, KUBERNETES, whole=whole) == 969


def test_kubelets_scores_follow_the_pods_class():
    both = {"cpu": "1", "memory": "1Gi"}
    assert score(container(both, both), KUBERNETES) == -997
    assert score(container(), KUBERNETES) == 1000
    assert score(container({"memory": "32Gi"}), KUBERNETES) == 3
    assert score(container({"cpu": "1"}), KUBERNETES) == 999


@pytest.mark.req("E12")
def test_a_small_sidecar_is_not_killed_before_the_containers_it_serves():
    small, large = sidecar({"memory": "1Mi"}), container({"memory": "16Gi"})
    whole = pod(large, init=(small,))
    assert (
        oom_score_adj(whole, small, CAPACITY, KUBERNETES)
        == oom_score_adj(whole, large, CAPACITY, KUBERNETES)
        == 500
    )


def test_memory_that_the_pod_requests_for_no_container_in_particular_is_divided():
    first, second = container({"memory": "1Gi"}, name="a"), container(name="b")
    whole = pod(first, second, own=asks({"memory": "17Gi"}))
    assert [oom_score_adj(whole, each, CAPACITY, KUBERNETES) for each in (first, second)] == [719, 750]


def test_a_node_without_memory_is_no_division_by_zero():
    assert score(burstable(1), capacity=0) == 2


requests = st.integers(1, CAPACITY)


@pytest.mark.req("A12", "E12")
@given(requests, st.sampled_from(list(Profile)))
def test_scores_order_the_classes(request, profile):
    guaranteed = container({"cpu": "1", "memory": "1"}, {"cpu": "1", "memory": "1"})
    within = score(burstable(request), profile)
    assert score(container(), profile) == BEST_EFFORT_SCORE > within > score(guaranteed, profile)


def badness(some, usage_bytes):
    """What the kernel compares: pages used, and the score in thousandths of all memory."""
    return usage_bytes + score(some) * CAPACITY // 1000


thousandths = st.integers(0, 1000)
# A score is in thousandths of the node, kept within 2…999 (A12). A container with next to no request has up to one
# thousandth too little, one that requests nearly all memory up to two too much. Rounded up: bytes are whole.
ROUNDING = -(-3 * CAPACITY // 1000)


@pytest.mark.req("A5", "A12", "E12")
@given(requests, requests, st.integers(1, CAPACITY), thousandths)
def test_a_container_above_its_request_is_killed_before_one_within_it(one, other, over, part):
    greedy = badness(burstable(one), one + ROUNDING + over)
    assert greedy > badness(burstable(other), other * part // 1000)


@pytest.mark.req("A12")
@given(requests, thousandths, st.integers(0, CAPACITY))
def test_a_best_effort_container_is_killed_before_one_within_its_request(request, part, any_usage):
    assert badness(container(), any_usage) > badness(burstable(request), request * part // 1000) - ROUNDING


@pytest.mark.req("A12")
@given(requests, thousandths, st.integers(0, CAPACITY))
def test_a_guaranteed_container_is_killed_after_every_other(request, part, any_usage):
    safe = container({"memory": str(request)}, {"memory": str(request)})
    assert badness(safe, request * part // 1000) < badness(burstable(request), any_usage)


def critical(annotations=None, priority=None, name=""):
    some = pod(container(), priority=priority, priority_class_name=name)
    return some._replace(metadata=ObjectMeta(annotations=annotations or {}))


@pytest.mark.parametrize(
    "some, kubernetes, documents",
    [
        (critical(), False, False),
        (critical(priority=2 * 10**9), True, True),
        (critical(priority=2 * 10**9 - 1), False, False),
        (critical({"kubernetes.io/config.source": "file"}), True, False),
        (critical({"kubernetes.io/config.source": "api"}), False, False),
        (critical({"kubernetes.io/config.mirror": ""}), True, False),
        (critical(name="system-node-critical"), False, True),
    ],
)
def test_critical_pods_are_those_of_system_priority_and_to_kubelet_those_from_files(
    some, kubernetes, documents
):
    assert is_critical(some, KUBERNETES) == kubernetes
    assert is_critical(some, DOCUMENTS) == documents


def test_a_node_critical_pod_is_as_safe_as_a_guaranteed_one_to_kubelet():
    some = critical(priority=2 * 10**9, name="system-node-critical")
    assert is_node_critical(some, KUBERNETES)
    assert oom_score_adj(some, some.spec.containers[0], CAPACITY, KUBERNETES) == -997
    assert oom_score_adj(some, some.spec.containers[0], CAPACITY, DOCUMENTS) == 1000
    other = critical(priority=2 * 10**9, name="system-cluster-critical")
    assert not is_node_critical(other, KUBERNETES)
