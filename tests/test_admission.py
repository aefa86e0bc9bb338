"""Admission: which pods a node admits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.resources import Totals, add_to
from evenkeel.policy.admission import admit, requested
from tests.strategies import amounts, asks, container, node, pod, valid_pods

NODE = amounts({"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi", "pods": "3"})


def verdicts(*pods, allocatable=NODE, profile=Profile.DOCUMENTS, conditions=()):
    found = admit(pods, allocatable, profile, conditions)
    assert [verdict.pod for verdict in found] == list(pods)
    return [verdict.refusal for verdict in found]


def asking(**requests):
    return pod(container({name.replace("_", "-"): text for name, text in requests.items()}))


@pytest.mark.req("A6", "B2")
def test_pods_are_taken_while_their_requests_fit_to_the_last_byte():
    assert verdicts(asking(memory="3Gi"), asking(memory="1Gi", cpu="2")) == [None, None]


@pytest.mark.req("A6")
def test_a_pod_that_does_not_fit_is_refused_with_reason_and_figures():
    _, refusal = verdicts(asking(memory="3Gi"), asking(memory="1025Mi"))
    assert refusal.reason == "OutOfmemory"
    assert refusal.message == (
        "requests 1025Mi of memory, 1Gi is free: 3Gi of 4Gi allocatable is requested already"
    )
    (refusal,) = verdicts(asking(cpu="2001m"))
    assert refusal.reason == "OutOfcpu"
    assert refusal.message == "requests 2001m of cpu, 2 is free: 0 of 2 allocatable is requested already"


@pytest.mark.req("A6")
def test_a_refused_pod_takes_nothing_from_those_after_it():
    assert [bool(refusal) for refusal in verdicts(asking(memory="5Gi"), asking(memory="4Gi"))] == [
        True,
        False,
    ]


@pytest.mark.req("A6")
def test_limits_do_not_count():
    assert verdicts(pod(container({"memory": "1Gi"}, {"memory": "100Gi", "cpu": "100"}))) == [None]


@pytest.mark.req("A6")
def test_pods_that_request_nothing_are_taken_until_there_are_enough():
    *taken, refusal = verdicts(*[pod(container())] * 4)
    assert taken == [None] * 3
    assert (refusal.reason, refusal.message) == ("OutOfpods", "the node takes 3 pods and has 3")


@pytest.mark.req("B12")
def test_ephemeral_storage_and_what_the_node_does_not_have_count_too():
    assert verdicts(asking(ephemeral_storage="11Gi"))[0].reason == "OutOfephemeral-storage"
    (refusal,) = verdicts(pod(container({"example.com/gpu": "1"})))
    assert refusal.reason == "OutOfexample.com/gpu"
    assert verdicts(pod(container({"example.com/gpu": "0"}))) == [None]


@pytest.mark.req("A6", "D4")
def test_overhead_counts_and_init_containers_do_where_they_need_more():
    little, much = container({"memory": "1Gi"}), container({"memory": "4Gi"}, name="i")
    assert verdicts(pod(little, init=(much,))) == [None]
    assert verdicts(pod(little, init=(much,), overhead={"memory": "1"}))[0].reason == "OutOfmemory"


@pytest.mark.req("D1")
def test_a_pods_own_limit_does_not_count_but_to_kubelet_its_request_does():
    whole = pod(container({"memory": "1Gi"}), own=asks({"memory": "5Gi"}, {"memory": "5Gi"}))
    assert verdicts(whole) == [None]
    assert verdicts(whole, profile=Profile.KUBERNETES)[0].reason == "OutOfmemory"


def test_no_request_is_too_large_to_be_refused():
    (refusal,) = verdicts(asking(memory="1e400"))
    assert refusal.message.startswith("requests 1e400 of memory, 4Gi is free")


@pytest.mark.req("B16")
def test_a_node_under_pressure_takes_nothing_that_would_add_to_it():
    nothing, some = pod(container()), asking(memory="1Gi")
    assert [bool(refusal) for refusal in verdicts(nothing, some, conditions=["MemoryPressure"])] == [
        True,
        False,
    ]
    assert [bool(refusal) for refusal in verdicts(nothing, some, conditions=["DiskPressure"])] == [True, True]
    assert verdicts(nothing, conditions=["MemoryPressure"])[0].reason == "Evicted"


@pytest.mark.req("A6", "B2")
@given(st.lists(valid_pods(), max_size=6), st.sampled_from(list(Profile)))
def test_admitted_pods_fit_and_refused_pods_would_not(pods, profile):
    view = node(memory="4Gi", cpus=2, profile=str(profile), max_pods=3)
    used: Totals = {}
    for some, refusal in admit(pods, view.allocatable, profile):
        asked = requested(some, profile)
        with_it = dict(used)
        add_to(with_it, asked)
        fits = all(amount <= view.allocatable[name] for name, amount in with_it.items())
        assert fits == (refusal is None)
        if fits:
            used = with_it
