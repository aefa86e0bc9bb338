"""Names of cgroups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup import names
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.policy.qos import QoSClass


@pytest.mark.req("B10")
@pytest.mark.parametrize(
    "root, per_qos, path",
    [
        ("/evenkeel", True, "/evenkeel/kubepods"),
        ("/", True, "/kubepods"),
        ("/a/b", True, "/a/b/kubepods"),
        ("/a/b", False, "/a/b"),
        ("/", False, "/"),
        ("a", True, "/a/kubepods"),
        ("//a", True, "/a/kubepods"),
        ("///a//b/", True, "/a/b/kubepods"),
        ("/../a", True, "/a/kubepods"),
        ("", True, "/kubepods"),
    ],
)
def test_the_pods_root_hangs_below_the_configured_one(root, per_qos, path):
    name = names.pods_root(root, per_qos=per_qos)
    assert names.to_cgroupfs(name) == path
    assert all(name)


@pytest.mark.req("B10")
@pytest.mark.parametrize(
    "qos, path",
    [
        (QoSClass.GUARANTEED, "/kubepods/podu-1"),
        (QoSClass.BURSTABLE, "/kubepods/burstable/podu-1"),
        (QoSClass.BEST_EFFORT, "/kubepods/besteffort/podu-1"),
    ],
)
def test_guaranteed_pods_are_in_the_root_and_others_in_their_branch(qos, path):
    assert names.to_cgroupfs(names.pod_cgroup(("kubepods",), qos, "u-1")) == path


@pytest.mark.req("A24")
def test_under_systemd_each_slice_repeats_those_above_it():
    name = names.pod_cgroup(("even-keel", "kubepods"), QoSClass.BURSTABLE, "u-1")
    assert names.to_systemd(name) == (
        "/even_keel.slice/even_keel-kubepods.slice/even_keel-kubepods-burstable.slice"
        "/even_keel-kubepods-burstable-podu_1.slice"
    )
    assert names.to_systemd(()) == names.to_systemd(("",)) == "/"


@pytest.mark.parametrize("component", ["", ".", "..", "a/b", "a_b", "a\0b", "x" * 256, "é" * 128])
def test_what_cannot_name_a_cgroup_is_refused(component):
    with pytest.raises(EvenkeelError, match="cannot name a cgroup"):
        names.child(("kubepods",), component)


components = st.text(st.sampled_from("abc019-."), min_size=1, max_size=6).filter(
    lambda text: text not in (".", "..")
)


@given(st.lists(components, min_size=1, max_size=4))
def test_a_name_is_read_back_from_its_cgroupfs_path(parts):
    name = names.child((), *parts)
    assert names.parse_cgroupfs(names.to_cgroupfs(name)) == name


@given(st.text(max_size=20))
def test_any_root_and_component_is_a_path_of_its_own_or_refused(text):
    root = names.pods_root(text)
    assert all(part not in ("", ".", "..") for part in root)
    try:
        name = names.child(root, text)
    except EvenkeelError:
        return
    assert names.to_cgroupfs(name) == f"{names.to_cgroupfs(root)}/{text}"


@pytest.mark.parametrize("version", Version)
def test_the_directory_of_a_container_is_its_name(version: Version):
    assert names.container_directory("main", version) == "main"
    with pytest.raises(EvenkeelError, match="cannot name a cgroup"):
        names.container_directory("a/b", version)


def test_a_container_called_like_a_kernel_file_has_another_directory_where_the_kernel_has_that_file():
    assert names.container_directory("tasks", Version.V1) == "tasks.container"
    assert names.container_directory("tasks", Version.V2) == "tasks"
