"""Memory headroom: polling interval, growth, and whether reclaim is enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.policy.eviction.headroom import (
    LEAST_SECONDS,
    MOST_SECONDS,
    Distance,
    Trend,
    fastest_growth,
    is_reclaim_enough,
    polling_interval_seconds,
    will_be_notified,
)

GIB, MIB = 2**30, 2**20
GROWTH = fastest_growth(2)


@pytest.mark.req("E1")
@given(st.integers(-GIB, 64 * GIB), st.integers(0, GIB), st.integers(1, 256))
def test_headroom_and_half_of_the_reserve_outlast_the_polling_interval(headroom, reserve, cpus):
    growth = fastest_growth(cpus)
    wait = polling_interval_seconds([Distance(headroom, reserve)], growth)
    assert LEAST_SECONDS <= wait <= MOST_SECONDS
    used = wait * growth
    if wait > LEAST_SECONDS:
        assert used <= max(headroom, 0) / 2 + reserve / 2


def test_the_nearest_threshold_sets_the_polling_interval():
    near, far = Distance(100 * MIB, 100 * MIB), Distance(16 * GIB, 100 * MIB)
    assert polling_interval_seconds([far, near], GROWTH) == polling_interval_seconds([near], GROWTH)
    assert polling_interval_seconds([far], GROWTH) == pytest.approx(1.0)


@pytest.mark.req("E1")
def test_a_crossing_that_the_kernel_reports_needs_no_polling():
    assert polling_interval_seconds([Distance(1, 0, is_notified=True)], GROWTH) == MOST_SECONDS


def test_close_to_the_threshold_the_kernel_is_not_relied_on_for_the_report():
    mark = 200 * MIB
    assert will_be_notified(mark - 3 * MIB, mark, cpus=2)
    assert not will_be_notified(mark - 2 * MIB, mark, cpus=2)
    assert not will_be_notified(mark - 4096, mark, cpus=1)
    assert not will_be_notified(mark + 1, mark, cpus=1)


def test_a_node_at_a_threshold_is_polled_often_but_not_without_pause():
    assert polling_interval_seconds([Distance(0, 100 * MIB)], GROWTH) == pytest.approx(0.003, rel=0.1)
    assert polling_interval_seconds([Distance(0, MIB)], GROWTH) == LEAST_SECONDS


def trend(*seen: tuple[float, int]) -> Trend:
    made = Trend()
    for at, amount in seen:
        made.note(at, amount)
    return made


def test_a_trend_of_too_few_figures_is_zero():
    assert Trend().bytes_per_second == 0
    assert trend((1.0, 5)).bytes_per_second == 0
    assert trend((1.0, 0), (1.019, 1000)).bytes_per_second == 0  # one step of the kernel's counting


def test_a_trend_counts_the_last_half_second():
    looks = [(number / 1000, number * MIB) for number in range(1001)]
    assert trend(*looks).bytes_per_second == pytest.approx(1000 * MIB)
    then_calm = [(1 + number / 1000, 1000 * MIB) for number in range(600)]
    assert trend(*looks, *then_calm).bytes_per_second == 0


def test_a_long_calm_does_not_hide_a_growth_that_begins():
    looks = [(0.0, 0), (2.0, 0), (4.0, 0), (4.015, MIB), (4.03, 3 * MIB)]
    assert trend(*looks).bytes_per_second == pytest.approx(100 * MIB)


def test_an_amount_that_falls_has_no_growth():
    assert trend((0.0, 10), (1.0, 5)).bytes_per_second == 0


@pytest.mark.req("A15", "E3")
def test_reclaim_is_enough_if_it_covers_the_shortage_and_the_growth_meanwhile():
    assert is_reclaim_enough(8 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=0)
    assert not is_reclaim_enough(8 * MIB, short_bytes=8 * MIB + 1, growth_bytes_per_second=0)
    assert is_reclaim_enough(24 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=64 * MIB)
    assert not is_reclaim_enough(23 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=64 * MIB)
