"""CPU amounts as the kernel takes them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.policy import amounts

millicpus = st.integers(0, 200_000)


@pytest.mark.req("A11")
@pytest.mark.parametrize(
    "millicpu, shares", [(0, 2), (1, 2), (2, 2), (100, 102), (500, 512), (1000, 1024), (10**9, 262144)]
)
def test_shares_are_1024_a_core_within_what_the_kernel_takes(millicpu, shares):
    assert amounts.shares(millicpu) == shares


@pytest.mark.req("A11")
@given(millicpus, millicpus)
def test_a_pod_that_requests_more_never_gets_less(one, other):
    low, high = sorted((one, other))
    assert amounts.shares(low) <= amounts.shares(high)
    for weight in (
        amounts.weight_keeping_ratio,
        amounts.weight_linear,
        amounts.weight_quadratic,
    ):
        assert 1 <= weight(amounts.shares(low)) <= weight(amounts.shares(high)) <= 10000


@given(st.integers(2, 255_999))
def test_shares_give_back_the_request_to_within_a_thousandth(millicpu):
    assert abs(amounts.millicpu_from_shares(amounts.shares(millicpu)) - millicpu) <= 1
    assert amounts.millicpu_from_shares(1) == 0


@pytest.mark.req("E11")
def test_the_defaults_of_both_versions_are_each_others():
    assert amounts.weight_keeping_ratio(1024) == 100
    assert amounts.weight_quadratic(1024) == 100
    assert amounts.weight_linear(1024) == 39


@pytest.mark.req("A4", "E11")
def test_requests_of_600m_and_300m_share_idle_cpu_two_to_one():
    large, small = (amounts.weight_keeping_ratio(amounts.shares(millicpu)) for millicpu in (600, 300))
    assert (large, small) == (60, 30)
    bent = [amounts.weight_quadratic(amounts.shares(millicpu)) for millicpu in (600, 300)]
    assert bent[0] < 2 * bent[1]


@pytest.mark.req("A4", "E11")
@given(st.integers(100, 50_000), st.integers(100, 50_000))
def test_weights_keep_the_ratio_of_requests(one, other):
    first, second = (amounts.weight_keeping_ratio(amounts.shares(millicpu)) for millicpu in (one, other))
    # Each is rounded to a whole number, and no weight here is below 10: 5 % at the most, and 1 % of a share.
    assert abs(first / second / (one / other) - 1) < 0.12


def test_the_quadratic_weight_meets_both_ends():
    assert [amounts.weight_quadratic(shares) for shares in (0, 1, 2, 262144, 10**9)] == [
        0,
        1,
        1,
        10000,
        10000,
    ]


@pytest.mark.parametrize(
    "millicpu, period_us, quota_us",
    [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (500, 100_000, 50_000),
        (1500, 20_000, 30_000),
        (2000, 100_000, 200_000),
    ],
)
def test_a_quota_is_the_limits_part_of_a_period_and_never_below_the_kernels_least(
    millicpu, period_us, quota_us
):
    assert amounts.quota_us(millicpu, period_us) == quota_us


@pytest.mark.req("A23", "E10")
@given(st.integers(1000, 10**7), st.integers(0, 1000))
def test_a_burst_is_at_most_one_quota(quota, percent):
    assert 0 <= amounts.burst_us(quota, percent) <= quota
    assert amounts.burst_us(quota, 100) == quota


@pytest.mark.req("E11")
@given(st.integers(1, 256_000), st.integers(0, 300_000))
def test_system_cgroups_of_default_weight_keep_their_reserved_cpu(capacity, reserved):
    plain = amounts.shares(max(capacity - reserved, 0))
    capped = amounts.capped_shares(plain, capacity_millicpu=capacity, reserved_millicpu=reserved)
    assert 2 <= capped <= plain
    if 0 < reserved < capacity and capped > 2:
        assert 1024 * capacity >= reserved * (1024 + capped)


@pytest.mark.req("E11")
def test_on_a_small_node_the_pods_need_no_cap():
    assert amounts.capped_shares(1536, capacity_millicpu=2000, reserved_millicpu=500) == 1536
    assert amounts.capped_shares(65536, capacity_millicpu=64_000, reserved_millicpu=0) == 65536


@pytest.mark.req("A21")
def test_the_documents_example_of_fair_sharing():
    half, nothing = amounts.fair_shares([500, 0], 1000)
    assert half / (half + nothing) == 0.75


@pytest.mark.req("A21")
@given(st.lists(st.integers(0, 20_000), max_size=20), st.integers(1, 100_000))
def test_each_gets_its_request_and_an_equal_part_of_the_rest(requests, capacity):
    shares = amounts.fair_shares(requests, capacity)
    assert len(shares) == len(requests)
    if requests and sum(requests) <= capacity and min(shares, default=0) > 2:
        for request, got in zip(requests, shares, strict=True):
            due = request + (capacity - sum(requests)) / len(requests)
            assert abs(got * 1000 / 1024 - due) < 1
        assert sum(shares) <= 1024 * capacity / 1000
    for (one, first), (other, second) in pairwise(zip(requests, shares, strict=True)):
        assert (one <= other) == (first <= second) or first == second
