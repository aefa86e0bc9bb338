"""Directories are removed whole, also while others remove parts of them."""

import asyncio
import os
import shutil
import threading
import tracemalloc
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.driver import Driver
from evenkeel.runtime import memory_mounts, syscalls, tree_removal, volumes
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.process_runtime import ProcessRuntime


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
    (tmp_path / "other").mkdir()
    tree_removal.remove_tree(str(tmp_path / "pod"))
    tree_removal.remove_tree(str(tmp_path / "pods" / "pod"))
    assert list(tmp_path.iterdir()) == [tmp_path / "other"]


def test_many_names_in_one_directory_take_no_memory_to_remove(tmp_path: Path):
    """Names of one file cost a container no more than their directory."""
    crowd = tmp_path / "pod" / "crowd"
    crowd.mkdir(parents=True)
    (tmp_path / "pod" / "file").touch()
    for number in range(10_000):
        os.link(tmp_path / "pod" / "file", crowd / f"{number:0200}")
    tracemalloc.start()
    try:
        tree_removal.remove_tree(str(tmp_path / "pod"))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "pod").exists()
    assert most_bytes < 1 << 20


def test_a_pod_with_files_that_take_long_to_remove_delays_no_other_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    may_end = threading.Event()
    removed: list[str] = []

    def remove_logs(uid: str, paths: StatePaths) -> None:
        if uid == "hostile":
            may_end.wait(60)
        removed.append(uid)

    monkeypatch.setattr(volumes, "remove_logs", remove_logs)
    (tmp_path / "pods").mkdir()

    async def whole() -> None:
        runtime = ProcessRuntime(str(tmp_path), no_driver, KubeletConfiguration())
        hostile = [asyncio.ensure_future(runtime.remove_logs("hostile")) for _ in range(40)]
        try:
            async with asyncio.timeout(30):
                await runtime.pods()  # in the threads of starts
                await runtime.remove_logs("other")
            assert removed == ["other"]
        finally:
            may_end.set()
            await asyncio.gather(*hostile)
        assert removed.count("hostile") == len(hostile)

    asyncio.run(whole())


def test_memory_of_a_pod_comes_back_beside_removals_that_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    has_begun, may_end = threading.Event(), threading.Event()
    emptied: list[str] = []

    def remove_logs(_uid: str, _paths: StatePaths) -> None:
        has_begun.set()
        may_end.wait(60)

    def empty_memory(uid: str, _paths: StatePaths) -> None:
        emptied.append(uid)

    monkeypatch.setattr(volumes, "remove_logs", remove_logs)
    monkeypatch.setattr(memory_mounts, "empty_memory", empty_memory)

    async def whole() -> None:
        runtime = ProcessRuntime(str(tmp_path), no_driver, KubeletConfiguration())
        removals = [asyncio.ensure_future(runtime.remove_logs(f"pod{number}")) for number in range(16)]
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(has_begun.wait)  # all of them are in the queue by then
                await runtime.empty_memory("evicted")
        finally:
            may_end.set()
            await asyncio.gather(*removals)
        assert emptied == ["evicted"]

    asyncio.run(whole())


def no_driver() -> Driver:
    raise AssertionError("nothing is killed here")
