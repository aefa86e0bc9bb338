"""Quantities are read, compared, added and printed as Kubernetes does, exactly."""

import copy
import pickle
import re
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, inf, nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenkeel.errors import EvenkeelError
from evenkeel.quantity import ZERO, BinarySI, DecimalExponent, DecimalSI, Quantity, QuantityError

UNITS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
INT64_MAX = 2**63 - 1

numbers = st.from_regex(r"[0-9]{1,22}(\.[0-9]{0,14})?|\.[0-9]{1,14}", fullmatch=True)
exponents = st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-30, 60))
suffixes = st.one_of(st.sampled_from(sorted(UNITS)), exponents)
texts = st.builds("{}{}{}".format, st.sampled_from(["", "+", "-"]), numbers, suffixes)
quantities = texts.map(Quantity.parse)
near_misses = st.from_regex(r"[-+]?[0-9.]{0,6}[eEinumkKMGTPbB%_, ]{0,3}[-+]?[0-9]{0,12}", fullmatch=True)


def exactly(quantity):
    return Fraction(quantity.nanos, 10**9)


def away_from_zero(number):
    return ceil(number) if number > 0 else floor(number)


def meant_by(text):
    """What the text says by the rules of the format, worked out in fractions."""
    sign, number, suffix = re.fullmatch(r"([+-]?)([0-9.]+)(.*)", text).groups()
    unit = UNITS.get(suffix)
    amount = Fraction(Decimal(number)) * (Fraction(Decimal("1" + suffix)) if unit is None else unit)
    nanos = ceil(amount * 10**9)
    if suffix.endswith("i"):
        nanos = min(nanos, INT64_MAX * 10**9)
    return Fraction(-nanos if sign == "-" else nanos, 10**9)


@given(texts)
@example("1.0000000001")
@example("8Ei")
@example("0.000000000000000000000001Ki")
def test_parsed_amount_is_the_one_written_rounded_up_to_a_nano(text):
    assert exactly(Quantity.parse(text)) == meant_by(text)


@given(quantities)
@example(Quantity.parse("1000000000000000000000000"))
@example(Quantity.of(-(2**63), BinarySI))
def test_printed_quantity_reads_back_as_the_same(quantity):
    assert Quantity.parse(str(quantity)) == quantity
    assert Quantity.parse(quantity.canonical()) == quantity


@given(quantities)
def test_canonical_form_is_a_fixed_point(quantity):
    assert Quantity.parse(quantity.canonical()).canonical() == quantity.canonical()


@given(quantities)
def test_canonical_form_has_no_fraction_and_no_needless_zeros(quantity):
    number = re.match(r"-?[0-9]+(?![.0-9])", quantity.canonical()).group()
    assert number == "0" or not number.endswith("000") or quantity.canonical().endswith("i")


@given(quantities, quantities)
def test_order_is_that_of_the_exact_fractions(a, b):
    assert (a < b) is (exactly(a) < exactly(b))
    assert (a <= b) is (exactly(a) <= exactly(b))
    assert (a > b) is (exactly(a) > exactly(b))
    assert (a >= b) is (exactly(a) >= exactly(b))
    assert (a == b) is (exactly(a) == exactly(b))


@given(quantities)
def test_equal_amounts_have_equal_hashes_whatever_their_spelling(quantity):
    respelled = Quantity.parse(f"{quantity.nanos}n")
    assert respelled == quantity
    assert hash(respelled) == hash(quantity)


@given(quantities, quantities)
def test_sums_and_differences_are_exact(a, b):
    assert exactly(a + b) == exactly(a) + exactly(b)
    assert exactly(a - b) == exactly(a) - exactly(b)
    assert a + b - b == a
    assert exactly(-a) == -exactly(a)


@given(quantities)
def test_whole_and_milli_values_round_away_from_zero(quantity):
    assert quantity.value == away_from_zero(exactly(quantity))
    assert quantity.milli == away_from_zero(exactly(quantity) * 1000)
    assert quantity.round_up_milli().nanos == quantity.milli * 10**6
    assert quantity.round_up_milli().format == quantity.format


def answer(read, value):
    try:
        return read(value)
    except QuantityError as error:
        return error


@pytest.mark.req("A3")
@given(st.one_of(st.text(), near_misses, texts))
@example("\ud800")
@example("1" * 5000)
@example("0" * 50_000 + "x")
def test_any_text_is_a_quantity_or_a_quantity_error(text):
    for read in (Quantity.parse, Quantity.from_json):
        said = answer(read, text)
        if isinstance(said, QuantityError):
            assert "is not a quantity" in str(said)
            assert len(str(said)) < 300
        else:
            assert Quantity.parse(str(said)) == said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.req("A3")
@given(json_values)
def test_any_json_value_is_a_quantity_or_a_quantity_error(value):
    said = answer(Quantity.from_json, value)
    if isinstance(value, bool | list | dict) or value in (inf, -inf) or value != value:
        assert isinstance(said, QuantityError)
    elif isinstance(value, int | float):
        assert said.nanos == away_from_zero(Fraction(repr(value)) * 10**9)


@pytest.mark.parametrize(
    "text, nanos, form, canonical, printed",
    [
        ("0", 0, DecimalSI, "0", "0"),
        ("100m", 100_000_000, DecimalSI, "100m", "100m"),
        ("1.5", 1_500_000_000, DecimalSI, "1500m", "1500m"),
        ("1.5Gi", 1536 * 2**20 * 10**9, BinarySI, "1536Mi", "1536Mi"),
        ("0.1Gi", 107374182400 * 10**6, BinarySI, "107374182400m", "107374182400m"),
        ("1000m", 10**9, DecimalSI, "1", "1"),
        ("1024Mi", 2**30 * 10**9, BinarySI, "1Gi", "1Gi"),
        ("1000Ki", 1000 * 2**10 * 10**9, BinarySI, "1000Ki", "1000Ki"),
        ("1e3", 10**12, DecimalExponent, "1e3", "1e3"),
        ("1E", 10**27, DecimalSI, "1E", "1E"),
        (".5Ki", 512 * 10**9, BinarySI, "512", "512"),
        ("0.5n", 1, DecimalSI, "1n", "1n"),
        ("-0.5n", -1, DecimalSI, "-1n", "-1n"),
        (".0001Ki", 102_400_000, DecimalSI, "102400u", "102400u"),
        ("8Ei", INT64_MAX * 10**9, BinarySI, "9223372036854775807", "9223372036854775807"),
        ("-99Ei", -INT64_MAX * 10**9, BinarySI, "-9223372036854775807", "-9223372036854775807"),
        ("9223372036854775808", 2**63 * 10**9, DecimalSI, "9223372036854775808", "9223372036854775808"),
        ("1e24", 10**33, DecimalExponent, "1e24", "1e24"),
        ("1000E", 10**30, DecimalSI, "1e21", "1e21"),
        ("1e-1000000000", 1, DecimalExponent, "1e-9", "1e-9"),
        ("0e1000000000", 0, DecimalExponent, "0", "0"),
        (".", 0, DecimalSI, "0", "0"),
        ("+", 0, DecimalSI, "0", "0"),
        ("Gi", 0, BinarySI, "0", "0"),
        ("e3", 0, DecimalExponent, "0", "0"),
    ],
)
def test_amount_format_and_spelling(text, nanos, form, canonical, printed):
    quantity = Quantity.parse(text)
    assert (quantity.nanos, quantity.format) == (nanos, form)
    assert (quantity.canonical(), str(quantity)) == (canonical, printed)


@pytest.mark.parametrize(
    "text", ["+1", "1E3", "00100", "5.", "+1Gi", "1.Gi", "01.250", "-569.e+3", "999999999999999999"]
)
def test_short_numbers_print_as_they_were_written(text):
    assert str(Quantity.parse(text)) == text
    assert str(Quantity.parse(text).round_up_milli()) == text


@pytest.mark.parametrize(
    "text, printed",
    [
        ("+1000", "1k"),  # zeros that a suffix could hold
        ("+8Gi", "8Gi"),  # a binary number that a larger suffix might hold
        ("+1Pi", "1Pi"),  # too many bits
        ("+0.5", "500m"),
        ("1.50", "1500m"),
        ("+1234567890123456789", "1234567890123456789"),  # more than 18 digits
    ],
)
def test_other_numbers_print_canonically(text, printed):
    assert str(Quantity.parse(text)) == printed


def test_sum_prints_canonically_in_the_format_of_its_first_operand_that_is_not_zero():
    one_gi, one_m, zero = Quantity.parse("1Gi"), Quantity.parse("1M"), Quantity.parse("0e3")
    assert str(one_gi + one_m) == "1074741824"
    assert (one_gi + one_m).format == BinarySI
    assert (one_m + one_gi).format == DecimalSI
    assert (zero + one_gi).format == BinarySI
    assert (zero - one_m).format == DecimalSI
    assert str(Quantity.parse("+1") + ZERO) == "1"
    assert sum([one_gi, one_gi], ZERO) == Quantity.parse("2Gi")


@pytest.mark.parametrize(
    "text, mend",
    [
        ("1gb", "write 1G or 1Gi"),
        ("1Gb", "write 1G or 1Gi"),
        ("1KB", "write 1k or 1Ki"),
        ("64K", "write 64k or 64Ki"),
        ("1kib", "write 1Ki"),
        ("1mi", "write 1Mi"),
        ("1GI", "write 1Gi"),
        ("10 Gi", "write 10Gi"),
        (" 1", "write 1"),
        ("5\u00b5", "write 5u"),
        ("100B", "write 100"),
        ("250mcpu", "write 250m"),
        ("1_000", "write 1000 or 1.5"),
        ("1,5Gi", "write 1000 or 1.5"),
        ("1.5.5", "write 1.5"),
        ("1e3m", "write 1e3"),
        ("50%", 'write 2, "500m" or "1Gi"'),
        ("", 'write 2, "500m" or "1Gi"'),
        ("lots", 'write 2, "500m" or "1Gi"'),
        ("Ei", 'write 2, "500m" or "1Gi"'),
        ("1Zi", "the suffixes are n u m k M G T P E and Ki Mi Gi Ti Pi Ei"),
    ],
)
@pytest.mark.req("A3")
def test_malformed_quantity_is_refused_with_what_to_write_instead(text, mend):
    with pytest.raises(QuantityError) as refusal:
        Quantity.parse(text)
    assert isinstance(refusal.value, EvenkeelError)
    assert str(refusal.value).startswith(f'"{text}" is not a quantity: ')
    assert mend in str(refusal.value)


@pytest.mark.req("A3")
def test_the_value_seen_is_shown_on_one_line_and_cut_where_it_is_long():
    with pytest.raises(QuantityError, match=re.escape(r'"1\n2\x00" is not a quantity')):
        Quantity.parse("1\n2\0")
    with pytest.raises(QuantityError, match=r'"x{39}…" is not a quantity'):
        Quantity.parse("x" * 10_000_000)


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    "text", ["1e4000", "1e999999999", "-1E+999999999999999999999", "1e-99999999999", "9" * 4001]
)
def test_a_number_out_of_all_bounds_is_refused_at_once(text):
    with pytest.raises(QuantityError, match=r"too large|out of all bounds"):
        Quantity.parse(text)


@pytest.mark.req("A3")
def test_an_integer_out_of_all_bounds_is_refused():
    with pytest.raises(QuantityError, match="too large"):
        Quantity.from_json(10**5000)
    assert str(Quantity.from_json(10**3999)) == "1e3999"


@pytest.mark.req("A3")
def test_negative_quantities_are_read_and_have_a_sign():
    assert [Quantity.parse(text).sign for text in ("-1m", "-0", "0.1n")] == [-1, 0, 1]
    assert -Quantity.parse("1Gi") == Quantity.parse("-1Gi") < ZERO


class Spelled(float):
    text = "1e-3"


@pytest.mark.parametrize(
    "value, printed, form",
    [
        ("1Gi", "1Gi", BinarySI),
        (" 1Gi\u00a0", "1Gi", BinarySI),
        (None, "0", ""),
        (2, "2", DecimalSI),
        (12345678901234567890, "12345678901234567890", DecimalSI),
        (0.1, "100m", DecimalSI),
        (1.0, "1", DecimalSI),
        (1e22, "10e21", DecimalExponent),
        (Spelled(0.001), "1e-3", DecimalExponent),
    ],
)
def test_json_values_are_read_by_their_text(value, printed, form):
    quantity = Quantity.from_json(value)
    assert (str(quantity), quantity.format) == (printed, form)


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    "value",
    [True, False, [], {}, (), b"1", object(), nan, -inf, "", "1Gi\n", "\t1"],
)
def test_json_values_of_another_kind_are_refused(value):
    with pytest.raises(QuantityError, match="is not a quantity"):
        Quantity.from_json(value)


def test_quantities_are_made_from_whole_and_milli_units():
    assert str(Quantity.of(2**30, BinarySI)) == "1Gi"
    assert str(Quantity.of(1500)) == "1500"
    assert str(Quantity.of_milli(1500)) == "1500m"
    assert Quantity.of_milli(2000) == Quantity.of(2)
    assert not Quantity.of(0)
    assert Quantity("500m")


def test_a_quantity_does_not_change():
    quantity = Quantity.parse("1Gi")
    for name in ("nanos", "format", "_text", "other"):
        with pytest.raises(AttributeError, match="does not change"):
            setattr(quantity, name, 5)
    with pytest.raises(AttributeError, match="does not change"):
        del quantity.nanos


@pytest.mark.parametrize("text", ["+1", "1.5Gi", "0", "1e3"])
def test_copies_and_pickles_keep_amount_format_and_spelling(text):
    quantity = Quantity.parse(text)
    for twin in (copy.copy(quantity), copy.deepcopy(quantity), pickle.loads(pickle.dumps(quantity))):
        assert (twin, twin.format, str(twin), repr(twin)) == (
            quantity,
            quantity.format,
            str(quantity),
            repr(quantity),
        )
    assert repr(Quantity.parse("1Gi")) == "Quantity('1Gi')"


def test_a_quantity_is_neither_equal_to_nor_comparable_with_a_bare_number():
    assert Quantity.of(5) != 5
    for wrong in (lambda: Quantity.of(5) < 6, lambda: Quantity.of(5) + 6, lambda: Quantity.of(5) - 6):
        with pytest.raises(TypeError):
            wrong()


def test_parse_is_for_text_only():
    others: tuple[Any, ...] = (5, None, b"5", ["5"])
    for value in others:
        with pytest.raises(TypeError):
            Quantity.parse(value)
