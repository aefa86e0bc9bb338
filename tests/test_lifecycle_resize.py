"""When a changed pod is changed in place, and when it is a new one."""

import pytest
from hypothesis import given

from evenkeel.api.config import Profile
from evenkeel.api.container import ContainerResizePolicy
from evenkeel.api.defaults import default_pod
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, ContainerRecord, PodState
from evenkeel.policy.lifecycle.resize import Change, Resize, in_force, resize, restarts_for
from evenkeel.policy.qos import pod_class
from tests.strategies import asks, container, pod, sidecar, valid_pods

SMALL, LARGE = {"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "2Gi"}


def of(*containers, **more):
    return default_pod(pod(*containers, **more), Profile.DOCUMENTS)


def kind(before, after, profile=Profile.DOCUMENTS):
    return resize(before, after, profile).kind


def test_the_same_pod_is_unchanged_whatever_the_node_added_to_it():
    before = of(container(SMALL))
    after = before._replace(metadata=before.metadata._replace(uid="other", creation_timestamp="now"))
    assert resize(before, after) == Resize(Change.UNCHANGED)
    assert kind(of(container({"memory": "1024Mi"})), of(container({"memory": "1Gi"}))) == Change.UNCHANGED


@pytest.mark.parametrize(
    "before, after",
    [
        (container(SMALL), container(LARGE)),
        (container(SMALL, LARGE), container(SMALL, {"cpu": "3", "memory": "3Gi"})),
        (container(SMALL, SMALL), container(LARGE, LARGE)),
        (container(SMALL), container(SMALL, {"memory": "2Gi"})),
        (container(SMALL, LARGE), container(SMALL, {"memory": "2Gi"})),
    ],
)
def test_cpu_and_memory_change_in_place_while_the_class_stays(before, after):
    assert resize(of(before), of(after)) == Resize(Change.IN_PLACE)


@pytest.mark.parametrize(
    "before, after",
    [
        (container(), container(SMALL)),
        (container(SMALL, SMALL), container(SMALL, LARGE)),
        (container({**SMALL, "ephemeral-storage": "1Gi"}), container({**SMALL, "ephemeral-storage": "2Gi"})),
        (container(SMALL), container(SMALL)._replace(command=("other",))),
        (container(SMALL), container(SMALL, name="other")),
        (container(SMALL), container(SMALL)._replace(image="/rootfs")),
    ],
)
def test_anything_else_takes_a_new_pod(before, after):
    changed = resize(of(before), of(after))
    assert changed.kind == Change.REPLACE
    assert changed.why


def test_another_container_or_another_policy_takes_a_new_pod():
    one = of(container(SMALL))
    assert kind(one, of(container(SMALL), container(name="d"))) == Change.REPLACE
    assert kind(one, of(container(SMALL), restart_policy="Never")) == Change.REPLACE
    assert kind(of(container(SMALL), init=(container(name="i"),)), one) == Change.REPLACE


def test_amounts_of_sidecars_change_in_place_and_those_of_init_containers_do_not():
    main = container(SMALL)
    assert kind(of(main, init=(sidecar(SMALL),)), of(main, init=(sidecar(LARGE),))) == Change.IN_PLACE
    first, second = container(SMALL, name="i"), container(LARGE, name="i")
    assert kind(of(main, init=(first,)), of(main, init=(second,))) == Change.REPLACE


def test_in_kubelet_those_of_init_containers_change_in_place_and_never_restart_one():
    restarts = (ContainerResizePolicy("cpu", "RestartContainer"),)
    first, second = (container(each, name="i")._replace(resize_policy=restarts) for each in (SMALL, LARGE))
    before, after = (of(container(SMALL), init=(each,)) for each in (first, second))
    assert kind(before, after, Profile.KUBERNETES) == Change.IN_PLACE
    assert restarts_for(before, after, Profile.KUBERNETES) == ()


def test_in_kubelet_the_pods_limit_restarts_a_container_without_one_of_its_own():
    restarts = (ContainerResizePolicy("memory", "RestartContainer"),)
    without = container({"cpu": "1"}, name="without")._replace(resize_policy=restarts)
    with_own = container({"cpu": "1"}, SMALL, name="with")._replace(resize_policy=restarts)
    before, after = (of(without, with_own, own=asks(limits={"memory": each})) for each in ("4Gi", "5Gi"))
    assert restarts_for(before, after, Profile.KUBERNETES) == ("without",)
    assert restarts_for(before, after, Profile.DOCUMENTS) == ()


def test_a_container_that_restarts_for_other_amounts_has_its_old_ones_to_its_end():
    before, after = of(container(SMALL)), of(container(LARGE))
    (small,), (large,) = before.spec.containers, after.spec.containers
    stopping = ContainerRecord(attempt=1, started_at=1.0, stopped_as=AS_RESTART, resources=small.resources)

    def state(record):
        return PodState(containers={"c": record})

    assert in_force(after, state(stopping)) == before
    assert in_force(after, state(stopping._replace(stopped_as=""))) == after
    assert in_force(after, state(stopping._replace(started_at=None))) == after  # it has ended
    assert in_force(after, state(stopping._replace(resources=large.resources))) == after


def test_the_pods_own_limit_changes_in_place():
    before = of(container(SMALL), own=asks(limits={"memory": "4Gi"}))
    assert kind(before, of(container(SMALL), own=asks(limits={"memory": "5Gi"}))) == Change.IN_PLACE
    assert kind(before, of(container(SMALL))) == Change.IN_PLACE


def test_kubelet_lets_no_request_or_limit_be_taken_away():
    before, after = of(container(SMALL, LARGE)), of(container(SMALL, {"memory": "2Gi"}))
    assert kind(before, after, Profile.DOCUMENTS) == Change.IN_PLACE
    assert kind(before, after, Profile.KUBERNETES) == Change.REPLACE
    assert kind(after, before, Profile.KUBERNETES) == Change.IN_PLACE


def test_labels_and_annotations_need_no_new_pod():
    before = of(container(SMALL))
    for more in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}):
        after = before._replace(metadata=before.metadata._replace(**more))
        assert resize(before, after) == Resize(Change.IN_PLACE)


def test_a_container_is_restarted_where_its_policy_for_the_resource_says_so():
    policies = (
        ContainerResizePolicy("memory", "RestartContainer"),
        ContainerResizePolicy("cpu", "NotRequired"),
    )

    def with_policies(requests):
        return container(requests)._replace(resize_policy=policies)

    before = of(with_policies(SMALL), container(SMALL, name="d"))
    faster = of(with_policies({**SMALL, "cpu": "2"}), container(SMALL, name="d"))
    larger = of(with_policies({**SMALL, "memory": "2Gi"}), container(LARGE, name="d"))
    assert resize(before, faster) == resize(before, larger) == Resize(Change.IN_PLACE)
    assert restarts_for(before, faster) == ()
    assert restarts_for(before, larger) == ("c",)


@given(valid_pods(), valid_pods())
def test_a_change_in_place_keeps_class_and_containers(before, after):
    changed = resize(before, after)
    assert resize(before, before).kind == Change.UNCHANGED
    assert changed.kind == resize(after, before).kind
    if changed.kind == Change.IN_PLACE:
        assert pod_class(before, Profile.DOCUMENTS) == pod_class(after, Profile.DOCUMENTS)
        names = [[each.name for each in one.spec.every_container] for one in (before, after)]
        assert names[0] == names[1]
