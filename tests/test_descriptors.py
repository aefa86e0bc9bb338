"""Tests that count descriptors run in a child, which leaves alone what tests before have left."""

import gc
import os
from pathlib import Path

from tests.descriptors import alone, descriptors


def counts() -> None:
    assert descriptors() > 0


class Left:
    """Garbage that only the collector finds. It notes the process that collects it."""

    def __init__(self, noted: Path) -> None:
        self.itself: Left | None = self
        self._noted = noted

    def __del__(self) -> None:
        self._noted.write_text(str(os.getpid()))


def test_what_tests_before_have_left_is_not_collected_in_the_child(tmp_path: Path):
    """A server of gRPC that is collected there waits without end for a thread that only its own process has."""
    noted = tmp_path / "noted"
    gc.disable()
    try:
        Left(noted)
        alone(counts)()
    finally:
        gc.enable()
    assert noted.read_text() == str(os.getpid())


def test_what_is_left_meanwhile_is_not_collected_in_the_child_either(tmp_path: Path):
    noted = tmp_path / "noted"
    kept = [Left(noted)]

    def lets_go() -> None:
        kept.clear()
        assert descriptors() > 0

    alone(lets_go)()
    assert not noted.exists()
    kept.pop().itself = None
