"""Plain values to typed objects: every problem is found, and nothing else is ever raised."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.decode import Findings, decode
from evenkeel.api.lined_values import SpelledFloat
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod, PodSpec
from evenkeel.api.scalars import Amount, Duration
from evenkeel.errors import Problem
from evenkeel.quantity import Quantity
from tests.strategies import plain_values


class Inner(NamedTuple):
    name: str = ""


class Thing(NamedTuple):
    """One field of each sort."""

    text: str = "unset"
    whole: int = -1
    real: float = -1.0
    truth: bool = False
    amount: Quantity = Quantity("1")
    many_bytes: Amount = Amount(1)
    wait: Duration = Duration(1)
    port: int | str = 0
    maybe: int | None = None
    texts: tuple[str, ...] = ()
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    amounts: Mapping[str, Quantity] = {}
    labels: Mapping[str, str] = {}
    anything: object = None


def read(value, cls=Thing):
    findings = Findings()
    return decode(cls, value, findings), findings


def problems_of(value, cls=Thing):
    return {problem.field: problem.message for problem in read(value, cls)[1].problems}


def test_every_sort_of_field_is_read():
    thing, findings = read(
        {
            "text": "a",
            "whole": 5,
            "real": 0.5,
            "truth": True,
            "amount": "500m",
            "manyBytes": "1.5Gi",
            "wait": "1m30s",
            "port": "http",
            "maybe": 0,
            "texts": ["a", "b"],
            "inner": {"name": "i"},
            "inners": [{"name": "j"}, {}],
            "amounts": {"cpu": 2, "memory": None},
            "labels": {"a": "b", "gone": None},
            "anything": {"x": [1]},
        }
    )
    assert not findings.problems
    assert not findings.not_honoured
    assert thing == Thing(
        text="a",
        whole=5,
        real=0.5,
        truth=True,
        amount=Quantity("500m"),
        many_bytes=Amount(3 * 2**29),
        wait=Duration.parse("90s"),
        port="http",
        maybe=0,
        texts=("a", "b"),
        inner=Inner("i"),
        inners=(Inner("j"), Inner()),
        amounts={"cpu": Quantity("2"), "memory": Quantity("0")},
        labels={"a": "b", "gone": ""},
        anything={"x": [1]},
    )


def test_null_is_the_same_as_not_written():
    assert read(dict.fromkeys(["text", "whole", "inner", "texts", "amounts"]))[0] == Thing()


def test_a_number_may_be_written_without_a_fraction():
    assert read({"real": 1})[0].real == 1.0


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    "field, value, message",
    [
        ("text", 5, 'must be a string, not 5: put it in quotes, "5"'),
        ("text", True, "must be a string, not true: put what you have written in quotes"),
        ("text", SpelledFloat("1.50"), 'must be a string, not 1.50: put it in quotes, "1.50"'),
        ("text", [], "must be a string, not a list"),
        ("whole", "5", 'must be a whole number, not the text "5"'),
        ("whole", 5.0, "must be a whole number, not 5.0"),
        ("whole", True, "must be a whole number, not true"),
        ("whole", 2**63, "must be a number of at most 64 bits, not 9223372036854775808"),
        ("real", "0.8", 'must be a number, not the text "0.8"'),
        ("real", False, "must be a number, not false"),
        ("real", 10**350, "must be a number of sensible size"),
        ("truth", "yes", 'must be true or false, not the text "yes"'),
        ("truth", 0, "must be true or false, not 0"),
        ("amount", "1GB", "write 1G or 1Gi"),
        ("amount", [], "a list is not a quantity"),
        ("manyBytes", "-1Gi", "must not be negative, as -1Gi is"),
        ("manyBytes", {}, "a mapping is not a quantity"),
        ("wait", 30, "must be a duration such as 30s or 1m30s, not 30"),
        ("wait", "30", "is not a duration"),
        ("port", 1.5, "must be a whole number, not 1.5"),
        ("texts", "a", 'must be a list, not the text "a"'),
        ("texts", {"a": 1}, "must be a list, not a mapping"),
        ("inner", [], "must be a mapping of name, not a list"),
        ("inner", "x" * 100, f'must be a mapping of name, not the text "{"x" * 40}"…'),
        ("amounts", [], "must be a mapping, not a list"),
        ("labels", "a=b", 'must be a mapping, not the text "a=b"'),
    ],
)
def test_a_wrong_shape_is_reported_with_the_value_seen_and_the_right_shape(field, value, message):
    thing, findings = read({field: value, "anything": 7})
    (problem,) = findings.problems
    assert (problem.field, problem.kind) == (field, "Decode")
    assert message in problem.message
    assert thing == Thing(anything=7)  # the field keeps its default, the others are read all the same


def test_nothing_in_a_list_or_map_is_the_zero_of_its_type_as_in_kubernetes():
    thing, findings = read({"texts": ["a", None], "inners": [None], "labels": {"a": None}})
    assert not findings.problems
    assert (thing.texts, thing.inners, thing.labels) == (("a", ""), (Inner(),), {"a": ""})


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_number_that_kubernetes_keeps_in_32_bits_has_no_more_of_them(number):
    for plain, field in (
        ({"spec": {"priority": number}}, "spec.priority"),
        (
            {"spec": {"containers": [{"ports": [{"hostPort": number}]}]}},
            "spec.containers[0].ports[0].hostPort",
        ),
        (
            {"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": number}}}]}},
            "spec.containers[0].livenessProbe.httpGet.port",
        ),
    ):
        findings = Findings()
        decode(Pod, plain, findings)
        assert [(problem.field, problem.kind) for problem in findings.problems] == [(field, "Decode")]


@pytest.mark.req("A3")
def test_problems_inside_lists_and_maps_have_their_path():
    assert problems_of(
        {"texts": ["a", 1, None], "inners": [{}, 5, {"name": 6}], "amounts": {"cpu": "x"}, "labels": {"a": 1}}
    ).keys() == {"texts[1]", "inners[1]", "inners[2].name", "amounts[cpu]", "labels[a]"}


@pytest.mark.req("A3")
def test_a_field_that_does_not_exist_is_reported_with_the_closest_name():
    assert problems_of({"txet": "a"}) == {"txet": "no such field; did you mean text?"}
    assert problems_of({"inner": {"zzz": 1}}) == {"inner.zzz": "no such field; there are name"}
    message = problems_of({"zzz": 1})["zzz"]
    assert message == "no such field; there are amount, amounts, anything, inner, inners, labels and others"


@pytest.mark.req("A3")
def test_a_field_of_kubernetes_is_refused_or_without_meaning_and_its_content_is_checked():
    spec, findings = read(
        {
            "schedulerName": 1,
            "topologySpreadConstraints": [{"maxSkw": 1}],
            "schedulingGates": [{"name": "a"}],
        },
        PodSpec,
    )
    assert spec == PodSpec()
    assert [problem.field for problem in findings.refused] == ["schedulingGates"]
    assert not findings.not_honoured
    assert {problem.field: problem.message for problem in findings.problems} == {
        "schedulerName": "must be a string, not 1",
        "topologySpreadConstraints[0].maxSkw": "no such field; did you mean maxSkew?",
    }


def test_a_value_that_is_no_mapping_gives_an_empty_object_and_a_problem():
    values: tuple[object, ...] = (None, 5, "x", [], True)
    for value in values:
        thing, findings = read(value)
        assert thing == Thing()
        assert len(findings.problems) == 1


def test_only_the_first_hundred_misspellings_are_worth_a_guess():
    messages = problems_of({f"text{number}": 1 for number in range(150)}).values()
    assert len(messages) == 150
    assert sum("did you mean text?" in message for message in messages) == 100


def test_a_problem_is_one_printable_line_whatever_was_written():
    problem = Problem("a\n\x1b[31m", 'not the text "\u202e\r\n"', source="f\t.yaml", line=3)
    assert str(problem) == 'f\\t.yaml:3: a\\n\\x1b[31m: not the text "\\u202e\\r\\n"'


@pytest.mark.req("A3")
@given(plain_values | st.dictionaries(st.sampled_from(list(Thing._fields)), plain_values))
def test_any_value_is_an_object_or_problems_and_never_anything_else(value):
    for cls in (Thing, Pod, Node, KubeletConfiguration):
        decoded, findings = read(value, cls)
        assert isinstance(decoded, cls)
        for problem in findings.problems:
            assert problem.message
