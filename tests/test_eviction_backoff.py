"""The back-off of evicted pods."""

import pytest

from evenkeel.pressure.eviction_backoff import (
    FIRST_SECONDS,
    GREATEST_SECONDS,
    NO_BACK_OFF,
    QUIET_SECONDS,
    after_eviction,
)


@pytest.mark.req("E16")
def test_each_eviction_doubles_the_wait_up_to_five_minutes():
    back_off, waits, now = NO_BACK_OFF, [], 1000.0
    for _ in range(7):
        back_off = after_eviction(back_off, now)
        waits.append(back_off.seconds)
        now = back_off.not_before + 1
    assert waits == [10, 20, 40, 80, 160, 300, GREATEST_SECONDS]


@pytest.mark.req("E16")
def test_after_ten_quiet_minutes_the_back_off_begins_anew():
    back_off = after_eviction(after_eviction(NO_BACK_OFF, 0.0), 20.0)
    assert after_eviction(back_off, back_off.not_before + QUIET_SECONDS - 1).seconds == 40
    again = after_eviction(back_off, back_off.not_before + QUIET_SECONDS)
    assert (again.times, again.seconds) == (1, FIRST_SECONDS)
