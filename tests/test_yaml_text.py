"""YAML text to plain values: how values are read, and which texts are refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.lined_values import LinedDict, LinedList, SpelledFloat
from evenkeel.api.problems import line_of
from evenkeel.api.yaml_text import MAX_DEPTH, MAX_DOCUMENTS, MAX_VALUES, documents
from evenkeel.errors import Problem
from tests.strategies import plain_values


def read(text):
    """The values of all documents of a text that has no problem."""
    problems: list[Problem] = []
    values = [document.value for document in documents(text, problems)]
    assert not problems
    return values


def one(text):
    (value,) = read(text)
    return value


def refused(text):
    """The one problem of a text, and what could be read before it."""
    problems: list[Problem] = []
    values = [document.value for document in documents(text, problems)]
    (problem,) = problems
    assert problem.kind == "Decode"
    return problem, values


@pytest.mark.parametrize(
    "text, value",
    [
        ("1", 1),
        ("-1", -1),
        ("+1", 1),
        ("0", 0),
        ("-0", 0),
        ("1_000", 1000),
        ("0644", 420),
        ("-0644", -420),
        ("0o644", 420),
        ("0x1F", 31),
        ("-0x1f", -31),
        ("0b101", 5),
        ("0_7", 7),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("1_0.2_5", 10.25),
        ("08", 8.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("1e999", math.inf),
    ],
)
def test_numbers_are_read_as_kubernetes_reads_them(text, value):
    seen = one(f"key: {text}")["key"]
    assert seen == value
    assert isinstance(seen, type(value))


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number_is_a_number_to_yaml(text):
    assert math.isnan(one(f"key: {text}")["key"])


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31",
        "2026-01-31T12:00:00Z",
        "12:30:45",
        "1.2.3",
        "500m",
        "1Gi",
        "0x",
        "0o_",
        "0b_",
        "0x_",
        "._",
        "-._",
        "_1",
        "0b2",
        "0xg",
        "+-.inf",
        "--.nan",
        "-.nan",
        "+",
        "-.",
        ".",
        "e5",
        "1e",
        "1e+",
        "9" * 5000,
        "y",
        "n",
        "TrUe",
        "١٢",
    ],
)
def test_a_value_that_is_no_number_stays_text_also_a_date(text):
    assert one(f"key: {text}")["key"] == text


@pytest.mark.parametrize("truth", [True, False])
def test_the_words_for_true_and_false_are_those_of_yaml_1_1(truth):
    for word in ("true", "yes", "on") if truth else ("false", "no", "off"):
        for spelled in (word, word.capitalize(), word.upper()):
            assert one(f"key: {spelled}")["key"] is truth
            assert one(f"key: '{spelled}'")["key"] == spelled


def test_nothing_is_null_in_each_of_its_spellings():
    assert one("a:\nb: ~\nc: null\nd: Null\ne: NULL") == dict.fromkeys("abcde")
    assert one("a: ''\nb: 'null'") == {"a": "", "b": "null"}


@pytest.mark.parametrize("text", ["0.1", "1e3", "1.50", "100.000000000000000000001"])
def test_a_number_with_a_fraction_keeps_its_spelling(text):
    seen = one(f"key: {text}")["key"]
    assert isinstance(seen, SpelledFloat)
    assert seen.text == text


def test_an_underscore_is_no_part_of_a_spelling():
    assert one("key: 1_0.5")["key"].text == "10.5"


def test_quotes_and_tags_make_text_of_anything():
    assert one("a: '5'\nb: \"0x1F\"\nc: !!str 5\nd: ! 5") == {"a": "5", "b": "0x1F", "c": "5", "d": "5"}


def test_tags_that_match_their_value_are_accepted():
    text = (
        "!!map {a: !!int 5, b: !!seq [!!float 1.5], c: !!bool yes, d: !!null '', e: !!timestamp 2026-01-31}"
    )
    assert one(text) == {"a": 5, "b": [1.5], "c": True, "d": None, "e": "2026-01-31"}


@pytest.mark.parametrize(
    "text",
    ["!!python/object:os.system x", "!!binary aGk=", "a: !mine 5", "!!set {a}", "!!seq {a: 1}", "[!!map []]"],
)
def test_other_tags_are_refused_by_name(text):
    problem, values = refused(text)
    assert "the tag !" in problem.message
    assert values == []


def test_keys_are_text_whatever_they_look_like():
    value = one("1: a\ntrue: b\n1.5: c\n~: d\n2026-01-31: e\n'': f")
    assert value == {"1": "a", "true": "b", "1.5": "c", "~": "d", "2026-01-31": "e", "": "f"}


@pytest.mark.parametrize(
    "text, words",
    [
        ("? [a]\n: 1", "not a list or mapping"),
        ("{[a]: 1}", "not a list or mapping"),
        ("? {a: b}\n: 1", "not a list or mapping"),
        ("a: &x 1\n*x : 2", "not an alias"),
        ("!!int 5: a", "plain text"),
    ],
)
def test_a_key_is_one_word(text, words):
    assert words in refused(text)[0].message


def test_a_duplicate_key_is_refused_with_both_lines():
    problem, _ = refused("a: 1\nb: 2\na: 3")
    assert 'the key "a" stands twice, first on line 1' in problem.message
    assert problem.line == 3


def test_aliases_stand_for_what_they_name():
    assert one("a: &x {b: [1]}\nc: *x\nd: &y 5\ne: *y") == {"a": {"b": [1]}, "c": {"b": [1]}, "d": 5, "e": 5}
    assert one("&k name: 1\nother: *k") == {"name": 1, "other": "name"}


def test_the_last_anchor_of_a_name_counts():
    assert one("[&a 1, *a, &a 2, *a]") == [1, 1, 2, 2]


def test_an_anchor_ends_with_its_document():
    problem, values = refused("a: &x 1\n---\nb: *x")
    assert "*x refers to no finished &x" in problem.message
    assert problem.line == 3
    assert values == [{"a": 1}]


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "a: &x\n  b:\n    c: *x"])
def test_an_alias_to_itself_is_refused(text):
    assert "refers to no finished" in refused(text)[0].message


def test_a_bomb_of_aliases_is_refused_before_it_unfolds():
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    problem, _ = refused("\n".join(lines))
    assert f"more than {MAX_VALUES} values" in problem.message


def test_a_text_of_countless_documents_is_read_up_to_a_bound_even_if_they_are_empty():
    assert read("---\n" * MAX_DOCUMENTS) == []
    problem, values = refused("a\n" + "---\n" * (MAX_DOCUMENTS + 10))
    assert problem.message == f"holds more than {MAX_DOCUMENTS} documents: split it"
    assert (problem.line, values) == (MAX_DOCUMENTS + 1, ["a"])


def test_merged_aliases_count_too():
    keys = ", ".join(f"k{n}: 1" for n in range(1000))
    text = f"a: &a {{{keys}}}\nb: [" + ", ".join(["{<<: *a}"] * (MAX_VALUES // 1000 + 1)) + "]"
    assert f"more than {MAX_VALUES} values" in refused(text)[0].message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n"])
def test_depth_has_an_end(opening):
    text = "".join(" " * n + opening for n in range(300)) if opening == "a:\n" else opening * 100_000
    problem, _ = refused(text)
    assert f"nested more than {MAX_DEPTH} deep" in problem.message


def test_depth_up_to_the_end_is_fine():
    value = one("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_merge_keys_give_way_to_what_is_written_and_to_earlier_ones():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 0}\nd: {y: 3, <<: *b, <<: *a}"
    value = one(text)
    assert value["c"] == {"x": 0, "y": 1, "z": 2}
    assert value["d"] == {"y": 3, "z": 2, "x": 1}
    assert value["c"].lines == {"x": 3, "y": 1, "z": 2}


@pytest.mark.parametrize("merged", ["5", "[5]", "[[]]", "~"])
def test_only_mappings_can_be_merged(merged):
    assert "<< must be followed by a mapping" in refused(f"a: {{<<: {merged}}}")[0].message


@pytest.mark.parametrize("text", ['{"<<": 1}', "'<<': 1", "!!str <<: 1"])
def test_a_quoted_merge_key_is_a_key_like_another(text):
    assert one(text) == {"<<": 1}


def test_values_know_their_lines():
    text = "a: 1\nb:\n  - x\n  - y: 2\n    z: 3\n\n  - - 4\n"
    value = one(text)
    assert isinstance(value, LinedDict)
    assert value.lines == {"a": 1, "b": 2}
    assert isinstance(value["b"], LinedList)
    assert value["b"].lines == [3, 4, 7]
    assert value["b"][1].lines == {"y": 4, "z": 5}


def test_documents_are_separated_and_empty_ones_are_left_out():
    text = "---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n---\n~\n"
    problems: list[Problem] = []
    found = list(documents(text, problems))
    assert not problems
    assert [document.value for document in found] == [{"a": 1}, {"b": 2}]
    assert [document.line for document in found] == [2, 6]


@pytest.mark.parametrize("text", ["", "\n\n", "# a remark\n", "---\n", "---\n...\n", "~", "\ufeff"])
def test_an_empty_text_holds_no_document(text):
    assert read(text) == []


def test_documents_before_a_broken_one_are_read_and_the_line_is_that_of_the_whole_text():
    problem, values = refused("a: 1\n---\nb: 2\nc: [1\n---\nd: 3\n")
    assert values == [{"a": 1}]
    assert problem.message.startswith("is not YAML: ")
    assert problem.line == 5


@pytest.mark.parametrize(
    "text",
    [
        "a:\n\t- b",
        "a: b: c",
        "a: [1, 2",
        "'a",
        "a: 'b",
        "{a: 1",
        "a: *",
        "&",
        "%YAML 3.0\n---\na: 1",
        "@",
        "`",
        'a: "\\q"',
        'a: "\\ud800"',
        "a\0b",
        "\x01",
        "a: \x7f",
        "- a\nb: 1",
        "\ud800",
        "a: 1\nb: \udfff",
    ],
)
def test_a_text_that_is_not_yaml_is_refused(text):
    problem, _ = refused(text)
    assert problem.message.startswith("is not YAML: ")
    assert "\n" not in problem.message


@pytest.mark.parametrize(
    "text, line",
    [
        ("kind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", 3),
        ("{{- if .Values.isOn }}\nkind: Pod\n{{- end }}\n", 1),
        ('kind: Pod\n{{ include "labels" . }}\n', 3),
    ],
)
def test_a_template_that_nobody_has_rendered_is_named_as_one(text, line):
    problems: list[Problem] = []
    assert not [*documents(text, problems)]
    assert problems[0].line == line
    assert "{{ is of a template" in problems[0].message


def test_an_escaped_quote_is_read_as_kubernetes_reads_it():
    text = """a: "echo \\"X=\\'v\\'\\" é"\nb: 'C:\\'\nc: "\\\\'"\nd: |\n  \\'\n---\ne: "\\'"\n"""
    assert read(text) == [{"a": "echo \"X='v'\" é", "b": "C:\\", "c": "\\'", "d": "\\'\n"}, {"e": "'"}]


def test_countless_escaped_quotes_take_no_countless_time():
    text = "".join(f'k{number}: "\\\'"\n' for number in range(60_000))
    problems: list[Problem] = []
    assert not [*documents(text, problems)]
    assert "is no escape in double quotes" in problems[0].message


def test_an_unknown_escape_is_named():
    problems: list[Problem] = []
    assert not [*documents('a: b\nc: "\\d+ \\\'"\n', problems)]
    assert problems == [
        Problem(
            "",
            r"is not YAML: \d is no escape in double quotes: write \\d, or use single quotes",
            "Decode",
            line=2,
        )
    ]


def test_a_tab_is_named_as_one():
    problems: list[Problem] = []
    assert not [*documents("a:\n\tb: {{c\n", problems)]
    assert problems[0].message.startswith(
        "is not YAML: holds a tab where a line begins: indent it with spaces"
    )


@pytest.mark.parametrize("value", ["😀", "a😀b𝄞", "\\ud83d\\ude00", "\\\\😀", '"😀"'])
def test_json_may_write_a_character_as_two_halves(value):
    assert one(json.dumps({value: [value]})) == {value: [value]}


@pytest.mark.parametrize(
    "text, line, code", [("a: é\nb: \x01", 2, "0x01"), ("\0", 1, "0x00"), ("é\n\n\x7f", 3, "0x7f")]
)
def test_a_character_that_yaml_does_not_allow_is_reported_with_its_line(text, line, code):
    problem, _ = refused(text)
    assert problem.message == f"is not YAML: holds the character {code}, which it does not allow"
    assert problem.line == line


def test_half_a_surrogate_pair_is_found_on_its_line():
    assert refused("a: 1\nb: \udfff")[0].line == 2


def test_windows_line_ends_and_a_byte_order_mark_are_fine():
    text = "\ufeffa: 1\r\nb:\r\n- c\r\n"
    value = one(text)
    assert value == {"a": 1, "b": ["c"]}
    assert value.lines == {"a": 1, "b": 2}


@given(plain_values)
def test_json_is_yaml(value):
    for spelled in (
        json.dumps({"value": value}),
        json.dumps({"value": value}, ensure_ascii=False),
        json.dumps({"value": value}, indent="\t"),
    ):
        assert one(spelled) == {"value": value}


def holds_only_plain_values(value: Any, depth: int = 0) -> bool:
    assert depth <= MAX_DEPTH
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        assert value.keys() == value.lines.keys()  # type: ignore[attr-defined]
        return all(holds_only_plain_values(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        assert len(value) == len(value.lines)  # type: ignore[attr-defined]
        return all(holds_only_plain_values(item, depth + 1) for item in value)
    return value is None or isinstance(value, str | int | float)


yaml_like = st.text(st.sampled_from("ab01_.+-eExo: \n\t[]{},&*!|>'\"?<#%@~\\u\ufeff\x00é\ud800"), max_size=80)


@pytest.mark.req("A3")
@given(st.text(max_size=60) | yaml_like)
def test_any_text_gives_plain_values_or_a_problem_and_never_anything_else(text):
    problems: list[Problem] = []
    found = list(documents(text, problems))
    assert len(problems) <= 1
    assert all(holds_only_plain_values(document.value) for document in found)
    lines = (
        text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029")
    )
    for line in (*(document.line for document in found), *(problem.line for problem in problems)):
        assert 0 <= line <= lines + 2


@given(st.text(st.sampled_from("0123456789_.+-eExXobOBinfaINF"), min_size=1, max_size=12))
def test_any_word_of_digits_and_signs_is_a_number_or_text(text):
    seen = one(f"key: {text}\n")["key"] if text.strip("-") else None
    if isinstance(seen, str):
        assert seen == text
    else:
        assert seen is None or isinstance(seen, int | float)


def test_json_objects_one_after_the_other_are_documents_as_for_kubectl():
    problems: list[Problem] = []
    text = ' \n{"a": [1,\n 2]}\n\n  {"b": {"c": "} {"}}{"d": 4}\n'
    found = list(documents(text, problems))
    assert not problems
    assert [one.value for one in found] == [{"a": [1, 2]}, {"b": {"c": "} {"}}, {"d": 4}]
    assert [one.line for one in found[:2]] == [2, 5]


def test_a_mistake_after_a_json_object_is_found_at_its_line():
    problems: list[Problem] = []
    assert [one.value for one in documents('{"a": 1}\n{"b": \n}}\n', problems)][:1] == [{"a": 1}]
    assert [problem.line for problem in problems] == [3]


def spelled(value):
    """The value with the types and texts of its numbers, which are equal to other numbers otherwise."""
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spelled(item) for item in value]
    return type(value), value, getattr(value, "text", "")


@given(st.dictionaries(st.text(), plain_values))
def test_json_on_one_line_is_read_as_the_same_text_in_yaml(value):
    text = json.dumps(value)
    assert answer(text) == answer(f"\n{text}")


def answer(text):
    """The values of a text, or its problems: YAML refuses a key of more than 1024 characters."""
    problems: list[Problem] = []
    values = [spelled(document.value) for document in documents(text, problems)]
    return values, [problem.message for problem in problems]


def test_a_key_that_is_too_long_for_yaml_is_refused_on_one_line_too():
    text = json.dumps({"\u1e70" * 200: 1})
    values, problems = answer(text)
    assert not values
    assert len(problems) == 1
    assert (values, problems) == answer(f"\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": -0, "b": 1e3, "c": -1.50, "d": 0.1, "e": 12345678901234567890, "f": [0, {"<<": 1}]}',
        '{"a": "\\"\\\\\\/\\b\\f\\n\\r\\t", "": {}, "yes": "no", "l": [[], [true, false, null]]}',
        '{"a":1,"b":[2,3],"c":{"d":"x:y, z # none"}}',
        '{"a": ' + "7" * 500 + "}",
        '{"' + "k" * 1000 + '": 1}',
        '{"a": "\\ud83d\\ude00"}',
        '{"a": "é"}',
        '{"a": NaN, "b": .5, c: yes}',
        '{"a": 1}\n\n',
    ],
)
def test_numbers_escapes_and_keys_of_json_are_those_of_yaml(text):
    assert spelled(one(text)) == spelled(one(f"\n{text}"))


def test_json_on_one_line_has_its_fields_on_line_one():
    (document,) = documents('{"a": [{"b": {"c": 1}}]}\n', [])
    assert document.line == 1
    assert line_of(document, "a[0].b.c") == 1


@pytest.mark.parametrize(
    "text, what",
    [
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": "\\ud83d"}', "invalid Unicode"),
        ('{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "nested more than"),
        ('{"a": [' + "1," * MAX_VALUES + "1]}", "more than"),
        ('{"a": 1', "is not YAML"),
    ],
)
def test_json_on_one_line_is_refused_with_the_message_of_yaml(text, what):
    problem, values = refused(text)
    assert what in problem.message
    assert not values


def test_json_may_be_nested_as_deep_as_yaml():
    half = MAX_DEPTH // 2
    text = '{"a": [' * half + "1" + "]}" * half
    assert spelled(one(text)) == spelled(one(f"\n{text}"))


def test_json_with_many_shallow_collections_is_not_deep():
    assert one(json.dumps({"items": [{"a": ["{["]}] * 300})) == {"items": [{"a": ["{["]}] * 300}
