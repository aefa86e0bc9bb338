"""When to look again, and how long an evicted pod stays away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.policy.eviction.polling_interval import (
    LEAST_SECONDS,
    MOST_SECONDS,
    Distance,
    fastest_growth,
    look_after_seconds,
    will_be_told,
)
from evenkeel.pressure.eviction_backoff import (
    FIRST_SECONDS,
    GREATEST_SECONDS,
    NO_BACK_OFF,
    QUIET_SECONDS,
    after_eviction,
)

GIB, MIB = 2**30, 2**20
GROWTH = fastest_growth(2)


@pytest.mark.req("E1")
@given(st.integers(-GIB, 64 * GIB), st.integers(0, GIB), st.integers(1, 256))
def test_nobody_uses_up_headroom_and_half_the_reserve_before_the_next_look(headroom, reserve, cpus):
    growth = fastest_growth(cpus)
    wait = look_after_seconds([Distance(headroom, reserve)], growth)
    assert LEAST_SECONDS <= wait <= MOST_SECONDS
    used = wait * growth
    if wait > LEAST_SECONDS:
        assert used <= max(headroom, 0) / 2 + reserve / 2


def test_the_nearest_threshold_sets_the_pace():
    near, far = Distance(100 * MIB, 100 * MIB), Distance(16 * GIB, 100 * MIB)
    assert look_after_seconds([far, near], GROWTH) == look_after_seconds([near], GROWTH)
    assert look_after_seconds([far], GROWTH) == pytest.approx(1.0)


@pytest.mark.req("E1")
def test_what_the_kernel_tells_of_need_not_be_looked_for():
    assert look_after_seconds([Distance(1, 0, is_told=True)], GROWTH) == MOST_SECONDS


def test_at_the_mark_itself_the_kernel_is_not_relied_on_to_tell():
    mark = 200 * MIB
    assert will_be_told(mark - 3 * MIB, mark, cpus=2)
    assert not will_be_told(mark - 2 * MIB, mark, cpus=2)
    assert not will_be_told(mark - 4096, mark, cpus=1)
    assert not will_be_told(mark + 1, mark, cpus=1)


def test_a_node_at_the_edge_is_looked_at_often_but_not_all_the_time():
    assert look_after_seconds([Distance(0, 100 * MIB)], GROWTH) == pytest.approx(0.003, rel=0.1)
    assert look_after_seconds([Distance(0, MIB)], GROWTH) == LEAST_SECONDS


@pytest.mark.req("E16")
def test_each_eviction_doubles_the_wait_up_to_five_minutes():
    back_off, waits, now = NO_BACK_OFF, [], 1000.0
    for _ in range(7):
        back_off = after_eviction(back_off, now)
        waits.append(back_off.seconds)
        now = back_off.not_before + 1
    assert waits == [10, 20, 40, 80, 160, 300, GREATEST_SECONDS]


@pytest.mark.req("E16")
def test_after_ten_quiet_minutes_it_begins_anew():
    back_off = after_eviction(after_eviction(NO_BACK_OFF, 0.0), 20.0)
    assert after_eviction(back_off, back_off.not_before + QUIET_SECONDS - 1).seconds == 40
    again = after_eviction(back_off, back_off.not_before + QUIET_SECONDS)
    assert (again.times, again.seconds) == (1, FIRST_SECONDS)
