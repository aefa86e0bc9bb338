"""Directories are removed whole, also while others remove parts of them."""

import shutil
from pathlib import Path

import pytest

from evenkeel.runtime import syscalls, tree_removal


def test_a_part_that_another_removal_takes_meanwhile_does_not_end_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pod = tmp_path / "pod"
    for container in ("a", "b", "c"):
        (pod / "containers" / container / "0").mkdir(parents=True)
        (pod / "containers" / container / "0" / "exit").touch()
    (pod / "volumes").mkdir()
    taken: list[str] = []
    open_within = syscalls.open_within

    def taken_first(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
        if path == "0" and not taken:
            taken.append(path)
            shutil.rmtree(Path(f"/proc/self/fd/{directory}").readlink())
        return open_within(directory, path, flags, resolve, mode)

    monkeypatch.setattr(syscalls, "open_within", taken_first)
    tree_removal.remove_tree(str(pod))
    assert taken
    assert not pod.exists()


def test_what_is_not_there_is_removed_already(tmp_path: Path):
    tree_removal.remove_tree(str(tmp_path / "pod"))
    tree_removal.remove_tree(str(tmp_path / "pods" / "pod"))
