from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.policy.eviction.thresholds import (
    Signal,
    ThresholdValue,
    config_thresholds,
    parse_flag,
    parse_percentage,
    parse_thresholds,
    threshold_amount,
    threshold_quantity,
)
from evenkeel.quantity import Quantity

GIB = 2**30


def problems_of(**settings):
    with pytest.raises(InvalidInput) as caught:
        parse_thresholds(**settings)
    return {problem.field: problem.message for problem in caught.value.problems}


@pytest.mark.req("B16")
def test_hard_and_soft_thresholds_keep_their_signal_value_grace_and_reclaim():
    hard, soft = parse_thresholds(
        hard={"memory.available": "100Mi"},
        soft={"nodefs.available": "10%"},
        soft_grace_period={"nodefs.available": "1m30s"},
        minimum_reclaim={"nodefs.available": "1Gi"},
    )
    assert hard.signal is Signal.MEMORY_AVAILABLE
    assert hard.hard
    assert hard.value.quantity == Quantity("100Mi")
    assert hard.min_reclaim is None
    assert soft.signal is Signal.NODEFS_AVAILABLE
    assert not soft.hard
    assert soft.grace_period_seconds == 90
    assert soft.min_reclaim == ThresholdValue(Quantity("1Gi"))


@pytest.mark.req("B8", "B16")
def test_the_hard_memory_threshold_is_watched_in_the_pods_cgroup_too_when_pods_are_enforced():
    node, pods = parse_thresholds(
        hard={"memory.available": "100Mi"},
        minimum_reclaim={"memory.available": "5%"},
        enforce_node_allocatable=("kube-reserved", "pods"),
    )
    assert pods == node._replace(signal=Signal.ALLOCATABLE_MEMORY_AVAILABLE)


@pytest.mark.req("B8")
def test_a_soft_memory_threshold_is_not_watched_in_the_pods_cgroup():
    found = parse_thresholds(
        soft={"memory.available": "1Gi"},
        soft_grace_period={"memory.available": "30s"},
        enforce_node_allocatable=("pods",),
    )
    assert [threshold.signal for threshold in found] == [Signal.MEMORY_AVAILABLE]


@pytest.mark.req("B8", "B16")
def test_without_any_setting_kubelets_default_thresholds_are_watched():
    found = {
        threshold.signal: str(threshold.value) for threshold in config_thresholds(KubeletConfiguration())
    }
    assert found == {
        "memory.available": "100Mi",
        "allocatableMemory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }


@pytest.mark.parametrize("text", ["0%", "100%"])
def test_nought_and_all_switch_a_threshold_off_and_need_no_grace(text):
    assert parse_thresholds(hard={"memory.available": text}, soft={"pid.available": text}) == ()


@pytest.mark.parametrize("text", ["0.0%", "100.0%", "00%"])
def test_only_the_two_literal_texts_switch_a_threshold_off(text):
    assert len(parse_thresholds(hard={"memory.available": text})) == 1


def test_a_soft_threshold_without_patience_is_hard():
    (found,) = parse_thresholds(soft={"memory.available": "1Gi"}, soft_grace_period={"memory.available": "0"})
    assert found.hard


@pytest.mark.req("B16")
def test_a_soft_threshold_without_grace_period_is_refused_by_the_names_of_both_flags():
    ((field, message),) = problems_of(soft={"memory.available": "1Gi"}).items()
    assert field == "evictionSoft[memory.available], evictionSoftGracePeriod"
    assert "--eviction-soft " in message
    assert "--eviction-soft-grace-period" in message


@pytest.mark.req("B16")
def test_every_mistake_is_reported_at_once_with_its_field_and_flag():
    found = problems_of(
        hard={"memory.available": "100MB", "nodefs.availible": "10%", "pid.available": "-1"},
        soft={"imagefs.available": "101%"},
        soft_grace_period={"imagefs.available": "90"},
        minimum_reclaim={"memory.available": "0%", "nodefs.available": "-5Gi"},
    )
    assert set(found) == {
        "evictionHard[memory.available]",
        "evictionHard[nodefs.availible]",
        "evictionHard[pid.available]",
        "evictionSoft[imagefs.available]",
        "evictionSoftGracePeriod[imagefs.available]",
        "evictionMinimumReclaim[memory.available]",
        "evictionMinimumReclaim[nodefs.available]",
    }
    assert "did you mean nodefs.available?" in found["evictionHard[nodefs.availible]"]
    assert "--eviction-hard" in found["evictionHard[memory.available]"]
    assert "100M or 100Mi" in found["evictionHard[memory.available]"]
    assert "from 0% to 100%" in found["evictionSoft[imagefs.available]"]
    assert "--eviction-soft-grace-period" in found["evictionSoftGracePeriod[imagefs.available]"]


@pytest.mark.parametrize(
    "text, part",
    [
        ("10%", 0.10000000149011612),
        ("33.333333%", 0.3333333134651184),
        ("1e1%", 0.10000000149011612),
        ("+5%", 0.05000000074505806),
        ("1_0%", 0.10000000149011612),
        ("10%%", 0.10000000149011612),
        ("0x1p2%", 0.03999999910593033),
        (".5%", 0.004999999888241291),
        ("5.%", 0.05000000074505806),
    ],
)
def test_a_percentage_is_a_32_bit_float_in_gos_spelling(text, part):
    assert parse_percentage(text) == part


@pytest.mark.parametrize(
    "text", ["%", " 5%", "5 %", "abc%", "0x10%", "1__0%", "_1%", "1e39%", "1e400%", "٥%", "+nan%"]
)
def test_a_text_that_go_does_not_read_as_a_number_is_no_percentage(text):
    with pytest.raises(EvenkeelError, match="is not a percentage"):
        parse_percentage(text)


def test_a_number_that_is_none_is_a_threshold_that_is_never_met():
    (found,) = parse_thresholds(hard={"memory.available": "nan%"})
    assert isnan(found.value.percentage)
    assert threshold_amount(found.value, 32 * GIB) == 0


def test_ten_percent_of_100gi_is_what_kubelet_says_it_is():
    assert threshold_amount(ThresholdValue(percentage=parse_percentage("10%")), 100 * GIB) == 10737418400


def test_an_amount_does_not_depend_on_the_capacity_and_rounds_up():
    value = ThresholdValue(Quantity("1.5"))
    assert threshold_quantity(value, 7) == Quantity("1.5")
    assert threshold_amount(value, 7) == 2


def float32_by_hand(exact: Fraction) -> Fraction:
    """The nearest 32-bit float from its definition: a mantissa of 24 bits, ties to even."""
    exponent = -149
    while exact >= Fraction(2) ** (exponent + 24):
        exponent += 1
    unit = Fraction(2) ** exponent
    return round(exact / unit) * unit  # a Fraction rounds halves to even


@given(st.decimals(min_value="0.0001", max_value=100, places=12) | st.decimals(0, 100, places=4))
def test_percentages_agree_with_a_slow_exact_32_bit_model(percent: Decimal):
    exact = float32_by_hand(float32_by_hand(Fraction(percent)) / 100)
    assert Fraction(parse_percentage(f"{percent:f}%")) == exact


def test_a_number_between_two_floats_is_rounded_once_and_not_twice():
    # 1 + 2^-24, between two 32-bit floats; the tie goes to the even one.
    halfway = "1.000000059604644775390625"
    a_trace_more = halfway + "000000000001"  # which 64 bits do not see
    assert parse_percentage(f"{halfway}%") == float(float32_by_hand(Fraction(1, 100)))
    assert parse_percentage(f"{a_trace_more}%") == float(float32_by_hand(Fraction(1 + 2**-23) / 100))


@given(
    st.dictionaries(
        st.sampled_from([*Signal, "memory", ""]) | st.text(max_size=8), st.text(max_size=12), max_size=3
    )
)
def test_no_text_whatsoever_is_answered_with_anything_but_a_sentence(settings):
    for arguments in (
        {"hard": settings},
        {"soft": settings, "soft_grace_period": settings},
        {"minimum_reclaim": settings},
    ):
        with suppress(EvenkeelError):
            assert isinstance(parse_thresholds(**arguments), tuple)


@pytest.mark.req("B16")
def test_the_flag_form_is_the_same_map_as_in_the_file():
    text = "memory.available<100Mi, nodefs.available<10%"
    assert parse_flag(text) == {"memory.available": "100Mi", "nodefs.available": "10%"}
    assert parse_flag("memory.available=1m30s", "=") == {"memory.available": "1m30s"}
    assert parse_flag("") == {}


@pytest.mark.parametrize(
    "text", ["memory.available", "memory.available=5%", "<5%", "a<1,", "memory.available<"]
)
def test_a_flag_without_name_sign_and_value_is_refused_with_an_example(text):
    with pytest.raises(EvenkeelError, match=r"write memory.available<100Mi"):
        parse_flag(text)


def test_a_signal_named_twice_in_a_flag_is_refused():
    with pytest.raises(EvenkeelError, match=r"pid.available stands twice"):
        parse_flag("pid.available<5%,pid.available<6%")
