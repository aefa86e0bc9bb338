"""Deployments, ReplicaSets, DaemonSets and StatefulSets: which pods are made and ended, and in which order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.workloads import replicas_of, template_of
from evenkeel.policy.workloads.replicas import bounds_of, revision_of, split_by_template
from tests.models.workload_world import World, workload


def deployment(replicas=3, name="w", **spec):
    return workload("Deployment", {"replicas": replicas, **spec}, name)


def rolling(surge, unavailable):
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def other_template(world, **spec):
    """The workload of the world with another template."""
    kind = type(world.workload).__name__
    plain = {"replicas": replicas_of(world.workload)} if kind != "DaemonSet" else {}
    after = workload(kind, {**plain, **spec}, priority=5)
    world.change(world.workload._replace(spec=after.spec))


def conditions(world):
    return {one.type: (one.status, one.reason) for one in world.workload.status.conditions}


def test_a_deployment_has_as_many_pods_as_replicas_each_with_its_name():
    world, again = World(deployment()), World(deployment())
    world.settle()
    again.settle()
    assert len(world.pods) == 3
    assert list(world.pods) == list(again.pods)
    assert all(name.startswith("w-") for name in world.pods)
    status = world.workload.status
    assert (status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas) == (
        3,
        3,
        3,
        3,
    )
    assert conditions(world) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    (pod, *_) = world.pods.values()
    assert pod.pod.metadata.labels["pod-template-hash"] in pod.name
    assert pod.pod.metadata.owner_references[0][:4] == ("apps/v1", "Deployment", "w", "uid-w")


def test_a_pod_that_was_deleted_comes_back_with_its_name():
    world = World(deployment())
    world.settle()
    name = next(iter(world.pods))
    world.pods[name] = world.pods[name]._replace(is_deleting=True)
    world.step()
    assert world.made.count(name) == 1
    world.goes(name)
    world.step()
    assert world.made.count(name) == 2


def test_scaling_makes_and_ends_pods_and_the_first_stay():
    world = World(deployment(2))
    world.settle()
    first = set(world.pods)
    world.set(replicas=4)
    world.settle()
    assert len(world.pods) == 4
    assert first < set(world.pods)
    world.set(replicas=2)
    world.settle()
    assert set(world.pods) == first
    world.set(replicas=0)
    world.settle()
    assert not world.pods


def test_a_changed_template_replaces_pods_one_by_one_each_after_the_last_is_ready():
    world = World(deployment(2, strategy=rolling(0, 1)))
    world.settle()
    old = set(world.pods)
    other_template(world, strategy=rolling(0, 1))
    world.step()
    (leaving,) = [name for name, pod in world.pods.items() if pod.is_deleting]
    world.step()
    assert world.alive == [name for name in world.pods if name != leaving]
    world.goes(leaving)
    world.step()
    (new,) = set(world.pods) - old
    world.step()
    assert sum(pod.is_deleting for pod in world.pods.values()) == 0  # the new one is not ready
    world.comes_up(new)
    world.step()
    assert sum(pod.is_deleting for pod in world.pods.values()) == 1
    world.settle()
    assert not old & set(world.pods)


def test_a_pod_counts_only_after_min_ready_seconds():
    world = World(deployment(1, minReadySeconds=30))
    world.step()
    (name,) = world.pods
    world.comes_up(name)
    decision = world.step()
    assert world.workload.status.ready_replicas == 1
    assert world.workload.status.available_replicas == 0
    assert decision.wake_at == world.now + 30
    world.now += 30
    world.step()
    assert world.workload.status.available_replicas == 1


def test_recreate_ends_every_old_pod_before_the_first_new_one():
    world = World(deployment(2, strategy={"type": "Recreate"}))
    world.settle()
    old = list(world.pods)
    other_template(world, strategy={"type": "Recreate"})
    world.step()
    world.goes(old[0])
    world.step()
    assert set(world.pods) == {old[1]}
    world.goes(old[1])
    world.step()
    assert len(world.pods) == 2


def test_a_rollout_that_does_not_come_forward_is_reported_after_its_deadline():
    world = World(deployment(1, progressDeadlineSeconds=60))
    world.step()
    decision = world.step()
    assert decision.wake_at == world.now + 60
    world.now += 60
    world.step()
    assert conditions(world)["Progressing"] == ("False", "ProgressDeadlineExceeded")


def test_without_room_for_a_new_pod_an_old_one_ends_first_unless_the_author_forbids_it():
    for strategy, leaving in ((None, 1), (rolling(1, 0), 0)):
        more = {} if strategy is None else {"strategy": strategy}
        world = World(deployment(1, **more))
        world.settle()
        other_template(world, **more)
        world.step()
        (new,) = [name for name, pod in world.pods.items() if not pod.is_ready]
        world.pods[new] = world.pods[new]._replace(is_refused=True)
        world.step()
        assert sum(pod.is_deleting for pod in world.pods.values()) == leaving


def test_a_paused_deployment_keeps_its_pods():
    world = World(deployment(2))
    world.settle()
    old = set(world.pods)
    other_template(world, paused=True)
    world.settle()
    assert set(world.pods) == old
    other_template(world)
    world.settle()
    assert not set(world.pods) & old


def test_workloads_of_one_name_and_different_kinds_have_different_pods():
    names: list[str] = []
    for kind in ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"):
        count = {} if kind == "DaemonSet" else {"replicas": 3}
        more = {"selector": {"app": "a"}} if kind == "ReplicationController" else {}
        world = World(workload(kind, {**count, **more}))
        world.settle()
        names += world.pods
    assert len(names) == len(set(names)) == 13


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_a_changed_template_replaces_the_pods_of_a_replica_set_one_by_one(kind):
    more = {"selector": {"app": "a"}} if kind == "ReplicationController" else {}
    world = World(workload(kind, {"replicas": 3, **more}))
    world.settle()
    names = set(world.pods)
    other_template(world, **more)
    world.step()
    assert sum(pod.is_deleting for pod in world.pods.values()) == 1
    world.settle()
    assert set(world.pods) == names
    assert not split_by_template(world.workload, tuple(world.pods.values())).old


@pytest.mark.parametrize(
    "strategy, waits, both",
    [
        ({}, False, False),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, False, True),
        ({"type": "OnDelete"}, True, False),
    ],
)
def test_a_daemon_set_is_one_pod_and_its_update_follows_its_strategy(strategy, waits, both):
    world = World(workload("DaemonSet", {"updateStrategy": strategy}))
    world.settle()
    (old,) = world.pods
    other_template(world, updateStrategy=strategy)
    world.step()
    assert (len(world.pods) == 2) == both
    assert world.pods[old].is_deleting == (not waits and not both)
    world.settle()
    assert (old in world.pods) == waits
    assert len(world.pods) == 1
    status = world.workload.status
    assert (status.desired_number_scheduled, status.number_ready) == (1, 1)


moves = st.lists(
    st.tuples(st.sampled_from(["up", "down", "gone", "template", "scale", "wait"]), st.integers(0, 9)),
    max_size=60,
)


@settings(max_examples=150)
@given(
    st.integers(0, 5), st.sampled_from([(0, 1), (1, 0), (1, 1), (2, 2), ("25%", "25%"), ("100%", 0)]), moves
)
def test_a_rollout_keeps_its_bounds_whatever_pods_do(replicas, bounds, moves):
    """Never more pods than replicas and surge, and a decision never takes a serving pod below what is allowed."""
    world = World(deployment(replicas, strategy=rolling(*bounds)))
    for move, number in moves:
        names = list(world.pods)
        name = names[number % len(names)] if names else ""
        if move == "template":
            after = workload("Deployment", {"strategy": rolling(*bounds)}, priority=number).spec.template
            world.set(template=after)
        elif move == "scale" and number < 6:
            world.set(replicas=number)
        elif move == "up" and name and not world.pods[name].is_deleting:
            world.comes_up(name)
        elif move == "down" and name:
            world.pods[name] = world.pods[name]._replace(is_ready=False)
        elif move == "gone" and name and world.pods[name].is_deleting:
            world.goes(name)
        world.now += number
        count, allowed = replicas_of(world.workload), bounds_of(world.workload)
        before, existing = world.available, len(world.pods)
        split = split_by_template(world.workload, tuple(world.pods.values()))
        world.step()
        assert len(world.pods) <= max(existing, count + allowed.surge)
        if split.old:
            assert world.available >= min(before, count - allowed.unavailable)
        assert replicas_of(world.workload) == count
    world.settle()
    assert len(world.pods) == replicas_of(world.workload)
    revision = {revision_of(pod.pod) for pod in world.pods.values()}
    assert len(revision) <= 1
    assert world.workload.status.available_replicas == replicas_of(world.workload)


# StatefulSets


def stateful_set(replicas=3, **spec):
    return workload("StatefulSet", {"replicas": replicas, "serviceName": "db", **spec}, "db")


def test_ordinals_are_made_in_order_each_after_the_last_serves():
    world = World(stateful_set())
    for number in range(3):
        world.step()
        world.step()
        assert list(world.pods) == [f"db-{place}" for place in range(number + 1)]
        world.comes_up(f"db-{number}")
    world.step()
    labels = world.pods["db-1"].pod.metadata.labels
    assert (labels["statefulset.kubernetes.io/pod-name"], labels["apps.kubernetes.io/pod-index"]) == (
        "db-1",
        "1",
    )
    assert world.pods["db-1"].pod.spec.hostname == "db-1"
    assert world.workload.status.ready_replicas == 3


def test_parallel_makes_and_ends_all_at_once():
    world = World(stateful_set(podManagementPolicy="Parallel", ordinals={"start": 5}))
    world.step()
    assert list(world.pods) == ["db-5", "db-6", "db-7"]
    world.set(replicas=1)
    world.step()
    assert [name for name, pod in world.pods.items() if pod.is_deleting] == ["db-6", "db-7"]


def test_the_greatest_ordinal_ends_first_and_the_next_after_it_is_gone():
    world = World(stateful_set())
    world.settle()
    world.set(replicas=1)
    world.step()
    world.step()
    assert [name for name, pod in world.pods.items() if pod.is_deleting] == ["db-2"]
    world.goes("db-2")
    world.step()
    assert [name for name, pod in world.pods.items() if pod.is_deleting] == ["db-1"]


def test_an_update_goes_from_the_greatest_ordinal_to_the_partition():
    world = World(stateful_set(4))
    world.settle()
    partitioned = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    after = workload(
        "StatefulSet", {"replicas": 4, "serviceName": "db", "updateStrategy": partitioned}, priority=9
    )
    before = template_of(world.workload)
    world.change(world.workload._replace(spec=after.spec))
    order = []
    for _ in range(20):
        world.step()
        for name in [name for name, pod in world.pods.items() if pod.is_deleting]:
            order.append(name)
            world.goes(name)
            world.step()
            world.comes_up(name)
    assert order == ["db-3", "db-2"]
    priorities = {name: pod.pod.spec.priority for name, pod in world.pods.items()}
    assert priorities == {"db-0": 0, "db-1": 0, "db-2": 9, "db-3": 9}
    # A pod below the partition comes back with the template that it had.
    world.pods["db-0"] = world.pods["db-0"]._replace(is_deleting=True)
    world.goes("db-0")
    world.step()
    assert world.pods["db-0"].pod.spec.priority == 0
    assert world.progress.stable == before
    assert world.workload.status.current_revision != world.workload.status.update_revision


def test_an_old_pod_that_never_serves_does_not_hold_up_its_update():
    world = World(stateful_set(1))
    world.step()
    after = workload("StatefulSet", {"replicas": 1, "serviceName": "db"}, priority=9)
    world.change(world.workload._replace(spec=after.spec))
    world.step()
    assert world.pods["db-0"].is_deleting


@settings(max_examples=100)
@given(st.integers(0, 4), st.booleans(), moves)
def test_a_stateful_set_comes_to_rest_and_updates_one_pod_at_a_time(replicas, is_parallel, moves):
    policy = "Parallel" if is_parallel else "OrderedReady"
    world = World(stateful_set(replicas, podManagementPolicy=policy))
    for move, number in moves:
        names = list(world.pods)
        name = names[number % len(names)] if names else ""
        if move == "template":
            template = workload("StatefulSet", {}, priority=number).spec.template
            world.set(template=template)
        elif move == "scale" and number < 6:
            world.set(replicas=number)
        elif move == "up" and name and not world.pods[name].is_deleting:
            world.comes_up(name)
        elif move == "gone" and name and world.pods[name].is_deleting:
            world.goes(name)
        before = world.available
        decision = world.step()
        if not is_parallel:
            assert len(decision.create) + len(decision.delete) <= 1
            assert world.available >= before - 1
    world.settle()
    assert sorted(world.pods) == [f"db-{number}" for number in range(replicas_of(world.workload))]
    assert world.progress.stable is None
