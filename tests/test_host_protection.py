"""What keeps a thread of ours at work while the machine thrashes."""

import gc
from collections.abc import Iterator

import pytest

from evenkeel.host.protection import Haste, collect_garbage_rarely


@pytest.fixture
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Cycle:
    """Garbage that has to be looked for."""

    made = 0

    def __init__(self) -> None:
        self.itself = self
        Cycle.made += 1

    def __del__(self) -> None:
        Cycle.made -= 1


def most_there(cycles: int) -> int:
    """How many were there at a time, of so many that were made one after the other and let go."""
    gc.collect()
    most = 0
    for _ in range(cycles):
        Cycle()
        most = max(most, Cycle.made)
    return most


@pytest.mark.req("E1")
def test_garbage_is_looked_for_rarely_and_in_haste_more_rarely_but_it_is(as_before: None):
    ordinary = most_there(200_000)
    collect_garbage_rarely()
    rarely = most_there(200_000)
    haste = Haste()
    haste.hurry()
    try:
        in_haste = most_there(200_000)
    finally:
        haste.calm()

    assert ordinary * 4 < rarely < in_haste / 4
    assert in_haste < 200_000
    assert most_there(200_000) < in_haste / 4
