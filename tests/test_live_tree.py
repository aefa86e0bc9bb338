"""A look at a cgroup tree that others change meanwhile. Plain directories stand for cgroups."""

import os
from pathlib import Path

import pytest

from tests.kernel.live_tree import cgroups_below, children, content, processes_in


def vanishing(monkeypatch: pytest.MonkeyPatch, gone: Path) -> None:
    """`gone` is removed after its parent was read and before it is read itself."""
    read = os.scandir

    def reading(path: str) -> object:
        if Path(path) == gone and gone.exists():
            gone.rmdir()
        return read(path)

    monkeypatch.setattr(os, "scandir", reading)


def test_cgroups_are_found_at_any_depth_by_their_name(tmp_path: Path):
    for path in ("a.slice/one.scope", "a.slice/b.slice/two.scope", "three.scope"):
        (tmp_path / path).mkdir(parents=True)
    found = cgroups_below(tmp_path, "*.scope")
    assert {str(path.relative_to(tmp_path)) for path in found} == {
        "a.slice/one.scope",
        "a.slice/b.slice/two.scope",
        "three.scope",
    }


def test_deepest_first_is_an_order_in_which_they_can_be_removed(tmp_path: Path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    for path in cgroups_below(tmp_path, deepest_first=True):
        path.rmdir()
    assert list(tmp_path.iterdir()) == []


def test_one_that_vanishes_during_the_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("gone", "stays"):
        (tmp_path / name).mkdir()
    vanishing(monkeypatch, tmp_path / "gone")
    assert cgroups_below(tmp_path) == [tmp_path / "stays"]


def test_one_that_was_never_there_has_nothing_below(tmp_path: Path):
    assert cgroups_below(tmp_path / "none") == []
    assert children(tmp_path / "none") == []
    assert processes_in(tmp_path / "none") == []
    assert content(tmp_path / "none" / "memory.max") is None


def test_children_are_those_of_one_cgroup_alone(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    assert children(tmp_path) == [tmp_path / "a"]
    assert children(tmp_path, "x*") == []


def test_a_file_that_may_not_be_read_is_an_error_and_not_a_cgroup_that_is_gone(tmp_path: Path):
    with pytest.raises(IsADirectoryError):
        content(tmp_path)


def test_a_process_that_is_being_released_is_not_taken_for_process_0(tmp_path: Path):
    (tmp_path / "cgroup.procs").write_text("12\n0\n345\n")
    assert processes_in(tmp_path) == [12, 345]
