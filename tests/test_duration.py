"""Durations as Go reads and writes them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.scalars import Duration
from evenkeel.errors import EvenkeelError

SECOND = 10**9


@pytest.mark.parametrize(
    "text, nanoseconds",
    [
        ("0", 0),
        ("+0", 0),
        ("-0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("1us", 1000),
        ("1µs", 1000),
        ("1μs", 1000),
        ("100ms", SECOND // 10),
        ("30s", 30 * SECOND),
        ("1m30s", 90 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("-1m", -60 * SECOND),
        ("1s1m", 61 * SECOND),
        ("0.3ns", 0),
        ("1.0000000009s", SECOND),
        ("9223372036854775807ns", 2**63 - 1),
    ],
)
def test_a_text_that_go_reads_is_read(text, nanoseconds):
    assert Duration.parse(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "s",
        ".s",
        "-",
        "+",
        "1x",
        "1 s",
        " 1s",
        "1s ",
        "--1s",
        "1s-1s",
        "1d",
        "1.2.3s",
        "1e3s",
        "１s",
        "1S",
    ],
)
def test_a_text_that_go_does_not_read_is_refused_with_an_example(text):
    with pytest.raises(EvenkeelError, match="such as 30s, 1m30s or 100ms"):
        Duration.parse(text)


@pytest.mark.parametrize(
    "text", ["9223372036854775808ns", "2562048h", "9" * 5000 + "s", "1s" * 10 + "9999999h"]
)
def test_a_duration_that_no_clock_can_hold_is_refused_at_once(text):
    with pytest.raises(EvenkeelError, match="is not a duration"):
        Duration.parse(text)


@pytest.mark.parametrize(
    "nanoseconds, text",
    [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (60 * SECOND, "1m0s"),
        (3600 * SECOND, "1h0m0s"),
        (-90 * SECOND, "-1m30s"),
        (2**63 - 1, "2562047h47m16.854775807s"),
    ],
)
def test_durations_print_as_go_prints_them(nanoseconds, text):
    assert str(Duration(nanoseconds)) == text


def test_seconds_are_what_the_clock_counts():
    assert Duration.parse("1m30.5s").seconds == 90.5


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_printed_value_is_parsed_as_the_same(nanoseconds):
    assert Duration.parse(str(Duration(nanoseconds))) == nanoseconds


@given(st.text(max_size=20) | st.text("0123456789.-+nuµmsh", max_size=20))
def test_any_text_is_a_duration_or_refused(text):
    with suppress(EvenkeelError):
        assert abs(Duration.parse(text)) < 2**63
