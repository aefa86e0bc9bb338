"""Requests and limits of a pod as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.pod import ContainerStatus, PodCondition, PodStatus
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.policy.pod_resources import container_limits, eviction_request, pod_limits, pod_requests
from evenkeel.quantity import ZERO, Quantity
from tests.strategies import amounts, asks, container, pod, sidecar, valid_pods


def spelled(totals):
    return {name: str(amount) for name, amount in totals.items()}


def cpu(text, name="c"):
    return container({"cpu": text}, name=name)


@pytest.mark.req("A6")
def test_containers_run_side_by_side():
    some = pod(container({"cpu": "1", "memory": "1Gi"}), container({"memory": "1Gi"}))
    assert spelled(pod_requests(some)) == {"cpu": "1", "memory": "2Gi"}


@pytest.mark.req("A6")
@pytest.mark.parametrize(
    "init, total",
    [
        ((cpu("3"), cpu("1")), "3"),  # one after the other: the largest
        ((cpu("1"),), "2"),  # less than what runs in the end
        ((sidecar({"cpu": "1"}), cpu("3")), "4"),  # a sidecar runs beside what comes after it
        ((cpu("3"), sidecar({"cpu": "1"})), "3"),  # and not beside what came before
        ((sidecar({"cpu": "1"}), sidecar({"cpu": "2"}), cpu("1")), "5"),  # and on beside the containers
    ],
)
def test_init_containers_run_in_turn_and_sidecars_stay(init, total):
    assert spelled(pod_requests(pod(cpu("2"), init=init))) == {"cpu": total}


@pytest.mark.req("D4")
def test_overhead_is_requested_but_never_makes_a_limit():
    some = pod(container({"cpu": "1"}, {"cpu": "2"}), overhead={"cpu": "100m", "memory": "64Mi"})
    assert spelled(pod_requests(some)) == {"cpu": "1100m", "memory": "64Mi"}
    assert spelled(pod_requests(some, with_overhead=False)) == {"cpu": "1"}
    assert spelled(pod_limits(some)) == {"cpu": "2100m"}
    assert spelled(pod_limits(some, with_overhead=False)) == {"cpu": "2"}


def test_pod_level_resources_stand_for_those_of_the_containers():
    own = asks({"cpu": "3", "ephemeral-storage": "9Gi"}, {"memory": "4Gi"})
    some = pod(
        container({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}, {"memory": "2Gi"}), own=own
    )
    assert spelled(pod_requests(some)) == {"cpu": "3", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert spelled(pod_limits(some)) == {"memory": "4Gi"}
    assert spelled(pod_requests(some, with_pod_level=False))["cpu"] == "1"
    assert spelled(pod_limits(some, with_pod_level=False)) == {"memory": "2Gi"}


def test_requests_that_are_not_stated_can_be_stood_in_for():
    some = pod(container({"cpu": "0"}), container({"memory": "1Gi"}))
    found = pod_requests(some, if_missing=amounts({"cpu": "100m", "memory": "200Mi"}))
    assert spelled(found) == {"cpu": "100m", "memory": "1224Mi"}


def resizing(requests, allocated=None, in_force=None, reason="Deferred"):
    """A pod that asks for `requests` while its status says something else."""
    status = ContainerStatus(
        name="c",
        allocated_resources=amounts(allocated or {}),
        resources=None if in_force is None else asks(in_force, in_force),
    )
    return pod(container(requests, requests))._replace(
        status=PodStatus(
            container_statuses=(status,), conditions=(PodCondition(type="PodResizePending", reason=reason),)
        )
    )


@pytest.mark.parametrize(
    "asked, allocated, in_force, reason, counted",
    [
        ("3", "1", "2", "Deferred", "3"),
        ("1", "3", "2", "Deferred", "3"),
        ("1", "2", "3", "Deferred", "3"),
        ("3", "1", "2", "Infeasible", "2"),
        ("3", None, "2", "Deferred", "3"),
        ("3", "1", None, "Infeasible", "1"),
    ],
)
def test_while_a_resize_is_under_way_the_largest_counts(asked, allocated, in_force, reason, counted):
    some = resizing(
        {"cpu": asked},
        None if allocated is None else {"cpu": allocated},
        None if in_force is None else {"cpu": in_force},
        reason,
    )
    assert spelled(pod_requests(some, from_status=True)) == {"cpu": counted}
    assert spelled(pod_requests(some)) == {"cpu": asked}


def test_limits_in_force_count_while_a_resize_is_under_way():
    assert spelled(pod_limits(resizing({"cpu": "1"}, in_force={"cpu": "2"}), from_status=True)) == {
        "cpu": "2"
    }
    infeasible = resizing({"cpu": "3"}, in_force={"cpu": "2"}, reason="Infeasible")
    assert spelled(container_limits(infeasible, from_status=True)) == {"cpu": "2"}


def test_the_amounts_in_the_pods_status_count_without_its_overhead():
    some = pod(cpu("1"), own=asks({"cpu": "1"}, {"cpu": "1"}), overhead={"cpu": "100m"})._replace(
        status=PodStatus(
            resources=asks({"cpu": "2100m"}, {"cpu": "3100m"}), allocated_resources=amounts({"cpu": "1"})
        )
    )
    assert spelled(pod_requests(some, from_status=True)) == {"cpu": "2100m"}
    assert spelled(pod_limits(some, from_status=True)) == {"cpu": "3100m"}
    assert spelled(pod_requests(some, from_status=True, from_pod_status=False)) == {"cpu": "1100m"}


def test_eviction_counts_overhead_only_where_something_is_requested():
    assert eviction_request(pod(container(), overhead={"memory": "64Mi"}), MEMORY) == ZERO
    assert eviction_request(
        pod(container({"memory": "1Mi"}), overhead={"memory": "64Mi"}), MEMORY
    ) == Quantity("65Mi")
    own = pod(container({"memory": "1Gi"}), own=asks({"cpu": "1"}))
    assert eviction_request(own, MEMORY) == ZERO
    assert eviction_request(own, MEMORY, with_pod_level=False) == Quantity("1Gi")


@given(valid_pods(), st.sampled_from([CPU, MEMORY]))
def test_a_pod_requests_no_less_than_any_of_its_containers_and_no_more_than_all(some, resource):
    each = [one.resources.requests.get(resource, ZERO) for one in some.spec.every_container]
    total = pod_requests(some, with_pod_level=False, with_overhead=False).get(resource, ZERO)
    assert max(each) <= total <= sum(each, ZERO)
    with_overhead = pod_requests(some, with_pod_level=False).get(resource, ZERO)
    assert with_overhead == total + some.spec.overhead.get(resource, ZERO)
