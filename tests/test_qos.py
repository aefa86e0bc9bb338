"""QoS classes of pods, and of the resources of containers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.defaults import default_pod
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.policy.qos import QoSClass, container_class, pod_class
from tests.strategies import asks, container, pod

PROFILES = list(Profile)


BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = container(BOTH, BOTH)
NOTHING = container()


@pytest.mark.req("A7")
@pytest.mark.parametrize(
    "requests, limits, of_memory",
    [
        ({"memory": "1Gi"}, {"memory": "1Gi"}, "Guaranteed"),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, "Guaranteed"),
        ({"memory": "1Gi"}, {"memory": "2Gi"}, "Burstable"),
        ({"memory": "1Gi"}, {}, "Burstable"),
        ({"memory": "0"}, {"memory": "1Gi"}, "BestEffort"),
        ({"memory": "0"}, {"memory": "0"}, "BestEffort"),
        ({"cpu": "1"}, {"cpu": "1"}, "BestEffort"),
        ({}, {}, "BestEffort"),
    ],
)
def test_a_container_has_a_class_for_each_resource(requests, limits, of_memory):
    assert container_class(container(requests, limits), MEMORY) == of_memory


@pytest.mark.req("A7")
def test_the_classes_of_cpu_and_memory_are_independent():
    mixed = container({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "2Gi"})
    assert container_class(mixed, CPU) == QoSClass.GUARANTEED
    assert container_class(mixed, MEMORY) == QoSClass.BURSTABLE


@pytest.mark.req("A7")
@pytest.mark.parametrize("profile", PROFILES)
def test_a_pod_is_guaranteed_only_if_every_container_is_in_cpu_and_memory(profile):
    assert pod_class(pod(GUARANTEED, GUARANTEED), profile) == "Guaranteed"
    assert pod_class(pod(GUARANTEED, NOTHING), profile) == "Burstable"
    assert pod_class(pod(container({"cpu": "1"}, {"cpu": "1"})), profile) == "Burstable"


@pytest.mark.req("A7")
@pytest.mark.parametrize("profile", PROFILES)
def test_init_containers_count_for_the_pods_class(profile):
    assert pod_class(pod(GUARANTEED, init=(NOTHING,)), profile) == "Burstable"
    assert pod_class(pod(NOTHING, init=(GUARANTEED,)), profile) == "Burstable"


@pytest.mark.req("A7")
@pytest.mark.parametrize("profile", PROFILES)
def test_zero_and_resources_other_than_cpu_and_memory_make_no_class(profile):
    zero = container({"cpu": "0"}, {"memory": "0"})
    storage = container({"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "1Gi", "example.com/gpu": "1"})
    assert pod_class(pod(zero, storage), profile) == "BestEffort"


@pytest.mark.req("A7", "D7")
def test_pod_level_limits_leave_the_class_alone_in_the_documents_profile():
    own = asks(limits={"cpu": "2", "memory": "384M"})
    assert pod_class(pod(NOTHING, own=own), Profile.DOCUMENTS) == "BestEffort"
    assert pod_class(pod(GUARANTEED, own=own), Profile.DOCUMENTS) == "Guaranteed"


@pytest.mark.req("A7")
def test_pod_level_resources_decide_alone_in_the_kubernetes_profile():
    assert pod_class(pod(NOTHING, own=asks(BOTH, BOTH)), Profile.KUBERNETES) == "Guaranteed"
    assert pod_class(pod(GUARANTEED, own=asks({"cpu": "1"})), Profile.KUBERNETES) == "Burstable"
    assert pod_class(pod(GUARANTEED, own=asks({"cpu": "0"})), Profile.KUBERNETES) == "BestEffort"


@pytest.mark.req("A7")
def test_empty_or_foreign_pod_level_resources_decide_nothing():
    assert pod_class(pod(GUARANTEED, own=asks()), Profile.KUBERNETES) == "Guaranteed"
    foreign = asks({"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "1Gi"})
    assert pod_class(pod(GUARANTEED, own=foreign), Profile.KUBERNETES) == "Guaranteed"


amounts = st.sampled_from(["0", "1", "2", "1k"])
lists = st.dictionaries(st.sampled_from([CPU, MEMORY, "ephemeral-storage"]), amounts)
containers = st.builds(container, lists, lists)
pods = st.builds(
    lambda some, init: pod(*some, init=tuple(init)), st.lists(containers, min_size=1), st.lists(containers)
)


@pytest.mark.req("A7")
@given(pods)
def test_the_pods_class_agrees_with_the_classes_of_its_containers(some):
    some = default_pod(some, Profile.DOCUMENTS)
    each = {
        container_class(container, resource)
        for container in some.spec.every_container
        for resource in (CPU, MEMORY)
    }
    within_limits = all(
        amount <= container.resources.limits.get(name, amount)
        for container in some.spec.every_container
        for name, amount in container.resources.requests.items()
    )
    whole = pod_class(some, Profile.DOCUMENTS)
    if whole == QoSClass.BEST_EFFORT:
        assert each == {QoSClass.BEST_EFFORT}
    if within_limits:
        assert (whole == QoSClass.GUARANTEED) == (each == {QoSClass.GUARANTEED})
