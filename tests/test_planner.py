"""Planning again and again: the same trees as `plan`, and the same objects for pods that have not changed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.cgroup.plan import Planner, plan
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.policy.provision import PlannedPod
from tests.strategies import container, node, nodes, planned_pods, pod


@settings(max_examples=50)
@given(st.data(), nodes, st.sampled_from(list(Version)), st.sampled_from(list(Naming)))
def test_every_tree_is_the_one_that_plan_makes(data, view, version, naming):
    planner = Planner(view, version, naming)
    for some in data.draw(st.lists(planned_pods(view.profile), min_size=1, max_size=4)):
        assert planner.tree(some) == plan(view, some, version, naming)


def test_the_cgroups_of_a_pod_that_has_not_changed_are_the_same_objects():
    planner = Planner(node())
    stays, equal, changes = (PlannedPod(pod(container(), name=name)) for name in ("a", "b", "c"))
    before = {cgroup.path: cgroup for cgroup in planner.tree([stays, equal, changes]).cgroups}

    tree = planner.tree([stays, PlannedPod(pod(container(), name="b")), changes._replace(shared_cpus=(1,))])

    same = {cgroup.pod for cgroup in tree.cgroups if cgroup.pod and cgroup is before[cgroup.path]}
    assert same == {"default/a", "default/b"}


def test_another_pod_with_the_uid_of_one_before_is_planned_anew():
    planner = Planner(node())
    planner.tree([PlannedPod(pod(container(), name="a"))])
    other = [PlannedPod(pod(container({"memory": "1Gi"}), name="a"))]
    assert planner.tree(other) == plan(node(), other)
    assert planner.tree([]) == plan(node(), [])
