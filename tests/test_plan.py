"""The whole tree: its shape, its names, its order, and a reason for everything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.defaults import default_pod
from evenkeel.api.scalars import parse_cpuset
from evenkeel.cgroup.kernel_files import DEFAULTS
from evenkeel.cgroup.plan import plan, present_containers
from evenkeel.cgroup.reconfigure import restoring
from evenkeel.cgroup.tree import Kind, Naming, Version
from evenkeel.errors import EvenkeelError
from evenkeel.policy.provision import PlannedPod
from tests.strategies import container, node, nodes, planned_pods, pod, sidecar

BOTH = {"cpu": "1", "memory": "1Gi"}
PODS = (
    pod(container(BOTH, BOTH, "app"), name="g"),
    pod(container({"cpu": "1"}, name="app"), name="b"),
    pod(container(name="my-app"), name="n"),
)


def tree(*pods, naming=Naming.CGROUPFS, version=Version.V2, **config):
    view = node(**config)
    return plan(view, [PlannedPod(default_pod(each, view.profile)) for each in pods], version, naming)


def shape(some):
    return [(cgroup.path, str(cgroup.kind)) for cgroup in some.cgroups]


@pytest.mark.req("B10")
@pytest.mark.parametrize("profile", list(Profile))
def test_the_recommended_hierarchy(profile):
    assert shape(tree(*PODS, profile=str(profile))) == [
        ("/evenkeel", "ancestor"),
        ("/evenkeel/kubepods", "root"),
        ("/evenkeel/kubepods/podg", "pod"),
        ("/evenkeel/kubepods/podg/pod.infrastructure", "infrastructure"),
        ("/evenkeel/kubepods/podg/app", "container"),
        ("/evenkeel/kubepods/burstable", "branch"),
        ("/evenkeel/kubepods/burstable/podb", "pod"),
        ("/evenkeel/kubepods/burstable/podb/pod.infrastructure", "infrastructure"),
        ("/evenkeel/kubepods/burstable/podb/app", "container"),
        ("/evenkeel/kubepods/besteffort", "branch"),
        ("/evenkeel/kubepods/besteffort/podn", "pod"),
        ("/evenkeel/kubepods/besteffort/podn/pod.infrastructure", "infrastructure"),
        ("/evenkeel/kubepods/besteffort/podn/my-app", "container"),
    ]


@pytest.mark.req("A24", "B10")
def test_under_systemd_the_same_tree_is_slices_and_scopes():
    paths = [path for path, _ in shape(tree(PODS[2], naming=Naming.SYSTEMD))]
    root = "/evenkeel.slice/evenkeel-kubepods.slice"
    branch = f"{root}/evenkeel-kubepods-besteffort.slice"
    of_pod = f"{branch}/evenkeel-kubepods-besteffort-podn.slice"
    assert paths == [
        "/evenkeel.slice",
        root,
        f"{root}/evenkeel-kubepods-burstable.slice",
        branch,
        of_pod,
        f"{of_pod}/evenkeel-n-pod.infrastructure.scope",
        f"{of_pod}/evenkeel-n-my_app.scope",
    ]


@pytest.mark.parametrize(
    "root, expected",
    [
        ("/", ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"]),
        ("/a/b", ["/a", "/a/b", "/a/b/kubepods", "/a/b/kubepods/burstable", "/a/b/kubepods/besteffort"]),
    ],
)
def test_the_tree_hangs_below_the_configured_root(root, expected):
    assert [path for path, _ in shape(tree(cgroup_root=root))] == expected


@pytest.mark.req("B6")
def test_without_classes_pods_are_directly_in_the_root():
    config = {"cgroups_per_qos": False, "enforce_node_allocatable": ()}
    assert [path for path, kind in shape(tree(*PODS, **config)) if kind in ("root", "branch", "pod")] == [
        "/evenkeel",
        "/evenkeel/podg",
        "/evenkeel/podb",
        "/evenkeel/podn",
    ]
    assert shape(tree(PODS[0], cgroup_root="/", **config))[0] == ("/podg", "pod")


@pytest.mark.req("A7", "A8")
def test_a_container_carries_its_pod_and_its_classes():
    mixed = pod(container({"cpu": "1", "memory": "1Gi"}, {"cpu": "1"}), name="b")
    (cgroup,) = (each for each in tree(mixed).cgroups if each.kind == Kind.CONTAINER)
    assert (cgroup.pod, cgroup.container, cgroup.qos) == ("default/b", "c", "Burstable")
    assert (cgroup.memory_qos, cgroup.cpu_qos) == ("Burstable", "Guaranteed")


@pytest.mark.req("D3")
@pytest.mark.parametrize(
    "init, names", [(0, ["s"]), (1, ["s", "i"]), (2, ["s", "j"]), (3, ["s", "t"]), (None, ["s", "t", "c"])]
)
def test_the_containers_there_are_those_of_the_moment(init, names):
    starting = (sidecar(name="s"), container(name="i"), container(name="j"), sidecar(name="t"))
    planned_pod = PlannedPod(pod(container(), init=starting), init)
    assert [each.name for each in present_containers(planned_pod)] == names


@pytest.mark.parametrize("uid", ["a/b", "..", "a_b", "", "x" * 300])
def test_a_uid_that_would_leave_its_place_is_refused(uid):
    some = pod(container())
    some = some._replace(metadata=some.metadata._replace(uid=uid))
    if uid in ("", ".."):  # with its prefix it is a name like another
        assert tree(some).cgroups[-1].path == f"/evenkeel/kubepods/besteffort/pod{uid}/c"
    else:
        with pytest.raises(EvenkeelError, match="cannot name a cgroup"):
            tree(some)


versions, namings = st.sampled_from(list(Version)), st.sampled_from(list(Naming))


@settings(max_examples=50)
@given(st.data(), nodes, versions, namings)
def test_planning_twice_gives_equal_trees(data, view, version, naming):
    some = data.draw(planned_pods(view.profile))
    assert plan(view, some, version, naming) == plan(view, some, version, naming)


@pytest.mark.req("B10")
@settings(max_examples=50)
@given(st.data(), nodes, versions, namings)
def test_parents_come_before_children_and_every_setting_has_a_rule_and_a_reason(data, view, version, naming):
    some = plan(view, data.draw(planned_pods(view.profile)), version, naming)
    seen = {""}
    for cgroup in some.cgroups:
        assert cgroup.path not in seen
        assert cgroup.path.rpartition("/")[0] in seen
        seen.add(cgroup.path)
        files = [setting.file for setting in cgroup.settings]
        assert len(files) == len(set(files))
        for setting in cgroup.settings:
            assert all(setting), setting
        assert (cgroup.oom_score_adj is not None) == (cgroup.kind in (Kind.CONTAINER, Kind.INFRASTRUCTURE))
    default = {file for files in DEFAULTS.values() for file in files}
    known = default | {
        "hugetlb.2MB.max",
        "hugetlb.2MB.limit_in_bytes",
        "hugetlb.2MB.rsvd.max",
        "hugetlb.2MB.rsvd.limit_in_bytes",
        "cpuset.cpus",
        "memory.swappiness",
    }
    assert {setting.file for cgroup in some.cgroups for setting in cgroup.settings} <= known


@settings(max_examples=50)
@given(st.data(), nodes, versions)
def test_every_value_is_one_that_the_kernel_takes(data, view, version):
    for cgroup in plan(view, data.draw(planned_pods(view.profile)), version).cgroups:
        for file, value, *_ in cgroup.settings:
            if file == "cpu.max":
                quota, period = value.split()
                assert quota == "max" or int(quota) >= 1000
                assert 1000 <= int(period) <= 10**6
            elif file == "cpu.weight":
                assert 1 <= int(value) <= 10000
            elif file == "cpu.shares":
                assert 2 <= int(value) <= 262144
            elif file == "cpu.cfs_quota_us":
                assert value == "-1" or int(value) >= 1000
            elif file == "cpuset.cpus":
                assert parse_cpuset(value)
            elif value not in ("max", "-1"):
                assert int(value) >= 0


@pytest.mark.req("B13")
@pytest.mark.parametrize("version", list(Version))
def test_a_plan_that_restores_names_every_file_on_what_is_only_ours(version):
    config = {
        "kube_reserved": {"memory": "1Gi"},
        "kube_reserved_cgroup": "/kube",
        "enforce_node_allocatable": ("pods", "kube-reserved"),
    }
    plain = tree(*PODS, version=version, **config)
    whole = restoring(plain)
    for before, after in zip(plain.cgroups, whole.cgroups, strict=True):
        assert after.settings[: len(before.settings)] == before.settings
        if before.kind in (Kind.RESERVED, Kind.ANCESTOR):
            assert after == before
        else:
            assert {setting.file for setting in after.settings} >= set(DEFAULTS[version])
    assert restoring(whole) == whole
