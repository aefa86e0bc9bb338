"""Templates in kubectl's dialect: what they print was compared with kubectl 1.32."""

import json

import pytest

from evenkeel.cli.jsonpath import JsonPathError, cell_of, text_of
from evenkeel.cli.jsonpath_reader import parse, relaxed

FIRST = {"name": "a", "image": "x:1", "ports": [{"containerPort": 80}, {"containerPort": 81}]}
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "labels": {"app.kubernetes.io/name": "shop", "tier": "a<b"},
        "annotations": {},
    },
    "spec": {
        "priority": 7,
        "hostNetwork": False,
        "containers": [
            FIRST,
            {"name": "b", "image": "y:2", "args": ["q"], "resources": {"limits": {"cpu": "1"}}},
            {"name": "c", "image": "z:3", "ports": []},
        ],
    },
}


@pytest.mark.parametrize(
    "template, expected",
    [
        ("{.metadata.name}", "web"),
        ("name: {.metadata.name}, of {.kind}!", "name: web, of Pod!"),
        ("{ .metadata.name }", "web"),
        ("{.metadata .name}", "web"),  # kubectl passes over spaces
        (".metadata.name", "web"),  # without braces
        ("metadata.name", "web"),
        ("{$.kind}{@.kind}", "PodPod"),
        ("{.spec.priority} {.spec.hostNetwork}", "7 false"),
        ("{.metadata.labels}", '{"app.kubernetes.io/name":"shop","tier":"a\\u003cb"}'),
        ("{.metadata.annotations}", "{}"),
        ("{.nothing.here}|{.metadata.name.here}|", "||"),
        ("{.metadata.labels.app\\.kubernetes\\.io/name}", "shop"),
        ("{.metadata.labels['app\\.kubernetes\\.io/name']}", "shop"),
        ("{.metadata.labels['app.kubernetes.io/name']}", ""),
        ("{.metadata['name']}", "web"),
        ("{.metadata['name', 'missing', 'name']}", "web web"),
        ("{.spec.containers[*].name}", "a b c"),
        ("{.spec.containers[0].name}{.spec.containers[-1].name}", "ac"),
        ("{.spec.containers[0,2].name}", "a c"),
        ("{.spec.containers[0:2].name}", "a b"),
        ("{.spec.containers[1:].name}", "b c"),
        ("{.spec.containers[:-1].name}", "a b"),
        ("{.spec.containers[::2].name}", "a c"),
        ("{.spec.containers[1:1].name}", ""),
        ("{.spec.containers[2].ports[*].containerPort}", ""),
        ("{.metadata.labels.*}", "shop a<b"),
        ("{..containerPort}", "80 81"),
        ("{.spec.containers[0]..}", json.dumps(FIRST, separators=(",", ":"), sort_keys=True)
         + ' a x:1 [{"containerPort":80},{"containerPort":81}] {"containerPort":80} {"containerPort":81}'),
        ('{.spec.containers[?(@.name=="b")].image}', "y:2"),
        ("{.spec.containers[?(@.name=='b')].image}", "y:2"),
        ('{.spec.containers[?(@.name!="b")].name}', "a c"),
        ('{.spec.containers[?(@.resources.limits.cpu=="1")].name}', "b"),
        ("{.spec.containers[?(@.args)].name}", "b"),
        ("{.spec.containers[?(@.ports)].name}", "a c"),  # it exists, although it is empty
        ("{.spec.containers[?(@.ports[0].containerPort)].name}", "a"),
        ("{.spec.containers[0].ports[?(@.containerPort>80)].containerPort}", "81"),
        ("{.spec.containers[0].ports[?(@.containerPort>=80)].containerPort}", "80 81"),
        ("{.spec.containers[0].ports[?(@.containerPort<81)].containerPort}", "80"),
        ("{.spec.containers[0].ports[?(@.containerPort<=79)].containerPort}", ""),
        ('{.spec.containers[?(@.name==")]")].image}', ""),
        ('{range .spec.containers[*]}{.name}{"\\t"}{.image}{"\\n"}{end}done', "a\tx:1\nb\ty:2\nc\tz:3\ndone"),
        ("{range .spec.containers[*]}<{range .ports[*]}{.containerPort};{end}>{end}", "<80;81;><><>"),
        ("{range .missing[*]}{.name}{end}.", "."),
        ("{range .spec.containers[*]}{.name} ", "a b c "),  # as in kubectl it may stay open
        ('{"}"}{\'{\'}{"\\u00e9\\x41\\101\\""}', '}{éAA"'),
        ("no braces but }", "no braces but }"),
        ("", None),
    ],
)  # fmt: skip
def test_a_template_takes_what_kubectl_takes(template, expected):
    if expected is None:
        with pytest.raises(JsonPathError):
            text_of(parse(template), POD)
    else:
        assert text_of(parse(template), POD) == expected


def test_braces_alone_are_the_whole_object():
    for template in ("{}", "{@}", "{.}"):
        assert json.loads(text_of(parse(template), POD)) == POD


@pytest.mark.parametrize(
    "template, problem",
    [
        ("{.a", "a { has no } after it"),
        ("a{", "a { has no } after it"),
        ("{.a[0}", "a [ has no ] after it"),
        ("{.a[?(@.b}", "a filter [?( has no )] after it"),
        ('{"a}', 'a " has no " after it'),
        ('{"\\q"}', "\\q is no escape"),
        ("{end}", "{end} has no {range …} before it"),
        ("{range .a}{end}{end}", "{end} has no {range …} before it"),
        ("{name}", '"name" is no path: a path begins with a dot'),
        ("{.a[x]}", "[x] is neither a number nor a slice"),
        ("{.a[]}", "[] is neither a number nor a slice"),
        ("{.a[::0]}", "the step of a slice is at least 1"),
        ("{....a}", ".. stands twice"),
        ("{.a[?(@.b=5)]}", "= compares nothing"),
        ("{.a[?(@.b==c)]}", '"c" is no path'),
    ],
)
def test_a_mistake_in_a_template_is_named(template, problem):
    with pytest.raises(JsonPathError) as raised:
        parse(template)
    assert problem in raised.value.message
    assert "cannot be read" in raised.value.message


@pytest.mark.parametrize(
    "template, problem",
    [
        ("{.spec.containers[5].name}", "[5] is outside a list of 3"),
        ("{.spec.containers[1:9].name}", "[1:9] is outside a list of 3"),
        ("{.spec.containers[2:1].name}", "[2:1] is outside a list of 3"),
        ("{.metadata.name[0]}", "[…] is for lists, and this is none: web"),
        ("{.metadata[?(@.name)]}", "[?(…)] is for lists"),
        ("{.spec.containers[?(@.name==5)].image}", "cannot compare a with 5 by =="),
        ("{.spec.containers[?(@.ports[*].containerPort==80)].image}", "compares one value, and here are 2"),
    ],
)
def test_a_template_that_does_not_fit_the_object_is_an_error(template, problem):
    with pytest.raises(JsonPathError) as raised:
        text_of(parse(template), POD)
    assert problem in raised.value.message


def test_paths_of_columns_need_neither_braces_nor_the_first_dot():
    for path in (".spec.containers[*].name", "spec.containers[*].name", "{.spec.containers[*].name}"):
        assert cell_of(parse(relaxed(path)), POD) == "a,b,c"
    assert cell_of(parse(relaxed(".missing")), POD) == "<none>"
    for wrong in ("", "{}", "{.a}{.b}"):
        with pytest.raises(JsonPathError):
            relaxed(wrong)
