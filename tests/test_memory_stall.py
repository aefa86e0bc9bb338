"""Stalls at memory.high: when a container stalls, and how memory.high is raised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.policy.memory_stall import (
    UNLIMITED,
    StallSample,
    has_fallen_back,
    raised_bytes,
    recent,
    stall,
)

pytestmark = pytest.mark.req("C8", "E4")

MIB = 1 << 20
HIGH = 100 * MIB
PERIOD = 10.0


def samples(
    *used_mib: float, waited: float = 1.0, seconds: float = 10.0, high: int = HIGH
) -> list[StallSample]:
    """Evenly over `seconds`, with that share of the time waited."""
    step = seconds / (len(used_mib) - 1)
    return [
        StallSample(step * place, int(mib * MIB), high, int(step * place * waited * 1e6), place)
        for place, mib in enumerate(used_mib)
    ]


@pytest.mark.parametrize(
    ("seen", "is_stall"),
    [
        (samples(100, 100, 100.1), True),
        (samples(98, 99, 98), True),  # the kernel takes back some, again and again
        (samples(100, 100, 100, waited=0.6), True),
        (samples(100, 100, 100, waited=0.4), False),  # others in it get on
        (samples(100, 103, 106), False),  # it moves, if slowly
        (samples(100, 90, 100), False),  # it was off the mark
        (samples(60, 60, 60), False),
        (samples(100, 100, 100, high=UNLIMITED), False),
        (samples(100, 100, 100, seconds=9), False),  # not long enough
        ([], False),
    ],
)
def test_it_is_a_stall_where_usage_stays_at_the_mark_and_everything_waits(
    seen: list[StallSample], is_stall: bool
):
    assert (stall(seen, PERIOD) is not None) == is_stall


def test_a_mark_that_was_changed_within_the_period_has_to_be_seen_for_a_period_of_its_own():
    before, after = samples(100, 100, 100), samples(100, 100, 100, high=101 * MIB)
    assert stall([*before[:2], after[2]], PERIOD) is None


def test_samples_are_kept_for_one_period():
    seen = samples(*[100.0] * 31, seconds=30)
    kept = recent(seen, PERIOD)
    assert kept[0].at == 20.0
    assert kept[-1] is seen[-1]
    assert recent(seen[:3], PERIOD) == tuple(seen[:3])


def test_a_stall_is_described_with_its_figures():
    found = stall(samples(100, 100, 100.5), PERIOD)
    assert found is not None
    assert found.sentence == (
        "it stalls at memory.high: 100.5Mi in use of 100Mi, moved by 512Ki in 10 s, 100% of which everything in it"
        " waited for memory"
    )


def test_memory_high_rises_in_quarters_to_the_limit_and_is_then_removed():
    marks = [96 * MIB]
    while marks[-1] != UNLIMITED:
        marks.append(raised_bytes(96 * MIB, marks[-1], 128 * MIB))
    assert marks == [96 * MIB, 104 * MIB, 112 * MIB, 120 * MIB, UNLIMITED]


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_the_mark_always_rises_never_beyond_the_limit_and_ends_soon(planned: int, room: int):
    limit, marks = planned + room, [planned]
    while marks[-1] != UNLIMITED:
        marks.append(raised_bytes(planned, marks[-1], limit))
        assert len(marks) <= 7
        assert marks[-1] == UNLIMITED or marks[-2] < marks[-1] <= limit


def test_it_has_fallen_back_well_below_the_planned_mark():
    assert has_fallen_back(70 * MIB, 100 * MIB)
    assert not has_fallen_back(90 * MIB, 100 * MIB)
