"""Memory amounts of the documents, and amounts in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.policy.amounts import PAGE_BYTES, bytes_text, cores_text, high_bytes

MIB = 2**20


@pytest.mark.req("C2")
@pytest.mark.parametrize(
    "base, factor, high",
    [(100 * MIB, 0.8, 80 * MIB), (100 * MIB, 0.9, 90 * MIB), (5000, 0.8, 0), (5121, 0.8, 4096)],
)
def test_memory_high_is_the_factors_part_down_to_a_page(base, factor, high):
    assert high_bytes(base, factor) == high


@pytest.mark.req("C2")
@given(st.integers(0, 2**50), st.integers(1, 1000))
def test_memory_high_is_exact_and_never_above_its_base(base, thousandths):
    high = high_bytes(base, thousandths / 1000)
    assert high % PAGE_BYTES == 0
    assert high <= base * thousandths / 1000 < high + PAGE_BYTES + 1
    assert high == base * thousandths // (1000 * PAGE_BYTES) * PAGE_BYTES


def test_a_factor_that_python_writes_with_an_exponent_is_read_too():
    assert high_bytes(2**40, 1e-05) == 2**40 // 10**5 // PAGE_BYTES * PAGE_BYTES


@pytest.mark.parametrize(
    "amount, text",
    [
        (0, "0"),
        (9999, "9999"),
        (10 * 1024, "10Ki"),
        (384 * 10**6, "384M"),
        (512 * MIB, "512Mi"),
        (32 * 2**30 - 2**30 * 3 - 100 * MIB, "28.9Gi"),
        (-512 * MIB, "-512Mi"),
        (12_345_678, "11.8Mi"),
        (10_001, "9.8Ki"),
        (10**400, "1e400"),
        (-(10**30), "-1e30"),
    ],
)
def test_bytes_are_printed_exactly_if_few_digits_are_enough(amount, text):
    assert bytes_text(amount) == text


@given(st.integers(-(10**400), 10**400))
def test_no_amount_is_too_large_to_tell(amount):
    assert len(bytes_text(amount)) < 12


@pytest.mark.parametrize("millicpu, text", [(500, "500m"), (2000, "2"), (1500, "1500m"), (0, "0")])
def test_cores_are_whole_or_thousandths(millicpu, text):
    assert cores_text(millicpu) == text
