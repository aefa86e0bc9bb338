import pytest

from evenkeel.policy.eviction.mitigations import Trend, can_take_back

MIB = 2**20


def trend(*seen: tuple[float, int]) -> Trend:
    made = Trend()
    for at, amount in seen:
        made.note(at, amount)
    return made


def test_a_trend_of_which_too_little_is_known_is_none():
    assert Trend().bytes_per_second == 0
    assert trend((1.0, 5)).bytes_per_second == 0
    assert trend((1.0, 0), (1.019, 1000)).bytes_per_second == 0  # one step of the kernel's counting


def test_a_trend_is_that_of_the_last_half_second():
    looks = [(number / 1000, number * MIB) for number in range(1001)]
    assert trend(*looks).bytes_per_second == pytest.approx(1000 * MIB)
    then_calm = [(1 + number / 1000, 1000 * MIB) for number in range(600)]
    assert trend(*looks, *then_calm).bytes_per_second == 0


def test_long_calm_does_not_hide_a_growth_that_begins():
    looks = [(0.0, 0), (2.0, 0), (4.0, 0), (4.015, MIB), (4.03, 3 * MIB)]
    assert trend(*looks).bytes_per_second == pytest.approx(100 * MIB)


def test_what_becomes_less_does_not_grow():
    assert trend((0.0, 10), (1.0, 5)).bytes_per_second == 0


@pytest.mark.req("A15", "E3")
def test_memory_is_taken_back_where_it_is_enough_for_what_is_used_meanwhile():
    assert can_take_back(8 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=0)
    assert not can_take_back(8 * MIB, short_bytes=8 * MIB + 1, growth_bytes_per_second=0)
    assert can_take_back(24 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=64 * MIB)
    assert not can_take_back(23 * MIB, short_bytes=8 * MIB, growth_bytes_per_second=64 * MIB)
