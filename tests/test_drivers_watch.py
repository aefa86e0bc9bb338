"""Directories that are watched: quiet until something is added or removed, and again after that was reported."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.cgroup.drivers.observation import DirectoryWatch


@pytest.fixture
def watch() -> Iterator[DirectoryWatch]:
    made = DirectoryWatch()
    yield made
    made.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_PATH)
    yield descriptor
    os.close(descriptor)


def test_what_comes_and_goes_is_reported_once(watch: DirectoryWatch, opened: int, tmp_path: Path):
    assert watch.watch([opened])
    assert watch.is_quiet()
    for change in (Path.mkdir, Path.rmdir):
        change(tmp_path / "x")
        assert not watch.is_quiet()
        assert watch.is_quiet()


def test_more_than_fits_into_one_reading_is_reported_at_once(
    watch: DirectoryWatch, opened: int, tmp_path: Path
):
    watch.watch([opened])
    for number in range(1500):
        (tmp_path / f"{number:0100}").touch()
    assert not watch.is_quiet()
    assert watch.is_quiet()


def test_a_directory_that_goes_itself_is_reported(watch: DirectoryWatch, tmp_path: Path):
    (tmp_path / "x").mkdir()
    descriptor = os.open(tmp_path / "x", os.O_PATH)
    assert watch.watch([descriptor])
    os.close(descriptor)
    (tmp_path / "x").rmdir()
    assert not watch.is_quiet()


def test_what_is_no_directory_cannot_be_watched(watch: DirectoryWatch, opened: int):
    assert not watch.watch([opened, -1])
