"""Exclusive cores of containers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.policy.exclusive_cores import assign, assign_on, whole_cores
from tests.strategies import container, node, pod, sidecar

DOCUMENTS, KUBERNETES = Profile.DOCUMENTS, Profile.KUBERNETES


def whole(cpu, name="c"):
    return container({"cpu": cpu, "memory": "1Gi"}, {"cpu": cpu, "memory": "1Gi"}, name)


def guaranteed(cpu, name="p"):
    return pod(whole(cpu), name=name)


@pytest.mark.req("A23")
@pytest.mark.parametrize(
    "some, cores",
    [
        (guaranteed("2"), 2),
        (guaranteed("1500m"), 0),
        (guaranteed("2000m"), 2),
        (pod(container({"cpu": "2"}, {"cpu": "2"})), 0),
        (pod(container({"cpu": "2", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"})), 0),
        (pod(container()), 0),
    ],
)
def test_only_whole_cores_of_guaranteed_pods_are_exclusive(some, cores):
    assert whole_cores(some, some.spec.containers[0], DOCUMENTS) == cores


@pytest.mark.req("A23")
def test_an_init_container_that_ends_has_none_and_a_sidecar_has():
    both = {"cpu": "1", "memory": "1Gi"}
    ends, stays = container(both, both, "i"), sidecar(both, both)
    some = pod(whole("1"), init=(ends, stays))
    assert [whole_cores(some, each, DOCUMENTS) for each in some.spec.every_container] == [0, 1, 1]


@pytest.mark.req("A23")
def test_cores_are_given_from_the_top_in_order_of_admission():
    found = assign([guaranteed("2", "a"), guaranteed("1", "b")], range(8), (), DOCUMENTS)
    assert found.exclusive == {("a", "c"): (6, 7), ("b", "c"): (5,)}
    assert found.shared == (0, 1, 2, 3, 4)
    assert found.of_pod("a") == {"c": (6, 7)}
    assert found.of_pod("z") == {}


@pytest.mark.req("A23")
@pytest.mark.parametrize(
    ("cpu", "cores"), [("1", (5,)), ("2", (3, 5)), ("3", (3, 5, 7)), ("4", (3, 5, 6, 7)), ("1500m", None)]
)
def test_a_container_that_is_resized_keeps_what_it_can(cpu, cores):
    kept = {("a", "c"): (3, 5), ("b", "c"): (4,)}
    newer, resized, other = guaranteed("2", "n"), guaranteed(cpu, "a"), guaranteed("1", "b")
    found = assign([other, resized], range(8), (), DOCUMENTS, kept)
    assert found.exclusive.get(("a", "c")) == cores
    assert found.exclusive["b", "c"] == (4,)
    assert not {*found.shared} & {*(cores or ()), 4}
    # Not even one that was admitted before is given its cores.
    assert assign([newer, other, resized], range(8), (), DOCUMENTS, kept).exclusive.get(("a", "c")) == cores


@pytest.mark.req("A23")
def test_a_container_for_which_too_few_are_left_shares():
    found = assign([guaranteed("4", "a"), guaranteed("3", "b")], range(4), (), DOCUMENTS)
    assert found.exclusive == {("b", "c"): (1, 2, 3)}
    assert found.shared == (0,)


def test_kubelets_profile_gives_out_every_core_that_is_not_reserved_from_the_first():
    # As the real kubelet did with the same settings (tests/kubelet).
    assert assign([guaranteed("1")], range(2), (0,), KUBERNETES) == ({("p", "c"): (1,)}, (0,))
    amount = node(cpus=4, profile=KUBERNETES, cpu_manager_policy="static", kube_reserved={"cpu": "1500m"})
    assert assign_on(amount, [guaranteed("2")]) == ({("p", "c"): (2, 3)}, (0, 1))


@pytest.mark.req("A23")
def test_reserved_cpus_are_never_exclusive_and_shared_only_in_kubelets_profile():
    pods = [guaranteed("2", "a")]
    assert assign(pods, range(4), (0,), DOCUMENTS) == ({("a", "c"): (2, 3)}, (1,))
    assert assign(pods, range(4), (0, 9), KUBERNETES) == ({("a", "c"): (1, 2)}, (0, 3))


@pytest.mark.req("A23")
def test_cores_that_were_given_are_kept_whatever_the_order():
    kept = {("b", "c"): (0, 1), ("gone", "c"): (2,)}
    found = assign([guaranteed("2", "a"), guaranteed("2", "b")], range(6), (), DOCUMENTS, kept)
    assert found.exclusive == {("b", "c"): (0, 1), ("a", "c"): (4, 5)}


@pytest.mark.req("A23")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1,), (1, 3)),
        ((1, 1), (1, 3)),
        ((0, 1), (1, 3)),
        ((3, 4), (2, 3)),
        ((1, 2, 3), (2, 3)),
        ((0, 9), (2, 3)),
    ],
)
def test_for_cores_that_cannot_be_kept_others_are_given(before, after):
    found = assign([guaranteed("2", "a")], range(4), (0,), DOCUMENTS, {("a", "c"): before})
    assert found.exclusive == {("a", "c"): after}


@pytest.mark.req("A23")
def test_one_core_stays_shared_even_against_what_was_given():
    found = assign([guaranteed("3", "a")], range(4), (0,), DOCUMENTS, {("a", "c"): (1, 2, 3)})
    assert (found.exclusive, found.shared) == ({}, (1, 2, 3))


@pytest.mark.req("A23")
def test_a_node_gives_cores_only_with_the_static_policy():
    pods = [guaranteed("2", "a")]
    assert assign_on(node(cpus=4), pods) == ({}, ())
    assert assign_on(node(cpus=4, cpu_manager_policy="static"), pods) == ({("a", "c"): (2, 3)}, (0, 1))


@pytest.mark.req("A23", "B3")
def test_as_many_cores_stay_shared_as_are_reserved():
    reserved = node(cpus=4, cpu_manager_policy="static", kube_reserved={"cpu": "1500m"})
    assert assign_on(reserved, [guaranteed("3", "a")]) == ({}, (0, 1, 2, 3))
    assert assign_on(reserved, [guaranteed("2", "a")]).shared == (0, 1)
    named = node(cpus=4, cpu_manager_policy="static", reserved_system_cpus="3")
    assert assign_on(named, [guaranteed("2", "a")]) == ({("a", "c"): (1, 2)}, (0,))


@pytest.mark.req("A23")
def test_a_core_that_was_noted_twice_is_given_once():
    found = assign([guaranteed("3", "a")], range(5), (), DOCUMENTS, {("a", "c"): (2, 0, 0, 1)})
    assert found.exclusive == {("a", "c"): (0, 1, 2)}


@pytest.mark.req("A23")
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), unique_by=lambda each: each[0]),
    st.integers(0, 12),
    st.sets(st.integers(0, 12)),
    st.dictionaries(
        st.tuples(st.sampled_from("abcdef"), st.just("c")),
        st.lists(st.integers(0, 12), max_size=5).map(tuple),
    ),
    st.sampled_from(list(Profile)),
)
def test_no_core_is_given_twice_or_is_reserved_or_is_the_last(asked, count, reserved, kept, profile):
    pods = [guaranteed(str(cores), name) for name, cores in asked]
    found = assign(pods, range(count), reserved, profile, kept)
    given_out = [cpu for cpus in found.exclusive.values() for cpu in cpus]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(range(count)) - reserved
    assert not set(given_out) & set(found.shared)
    if given_out:  # in kubelet's profile reserved cores are shared, too
        assert set(found.shared) - (reserved if profile == DOCUMENTS else set())
    for (name, _), cpus in found.exclusive.items():
        assert len(cpus) == dict(asked)[name]
    assert assign(pods, range(count), reserved, profile, found.exclusive) == found
