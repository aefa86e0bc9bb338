"""ConfigMaps and Secrets in manifests: what is read, what is refused, and that no message has a secret."""

import base64
import json

import pytest

from evenkeel.api.data_objects import CONFIG_MAP, SECRET, DataObject, change_problems, manifest_of
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import ObjectMeta


def read(kind: str, **fields: object):
    value = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "it"}, **fields}
    return read_manifests(json.dumps(value), "f.yaml")


def only(kind: str, **fields: object) -> DataObject:
    (one,) = read(kind, **fields).or_raise().objects
    return one


def problems(kind: str, **fields: object) -> list[str]:
    return [str(problem) for problem in read(kind, **fields).problems]


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_a_config_map_has_texts_and_binary_values():
    one = only(
        "ConfigMap", data={"a": "1", "b": "zwei\n"}, binaryData={"c": encoded(b"\xff\0")}, immutable=True
    )
    assert one.content == {"a": b"1", "b": b"zwei\n", "c": b"\xff\0"}
    assert one.binary == {"c"}
    assert one.texts.keys() == {"a", "b"}
    assert one.is_immutable
    assert one.key == (CONFIG_MAP, "default", "it")


def test_string_data_of_a_secret_comes_before_its_data():
    one = only("Secret", data={"a": encoded(b"old"), "b": encoded(b"b")}, stringData={"a": "new"})
    assert one.content == {"a": b"new", "b": b"b"}
    assert one.type == "Opaque"


def test_a_list_may_hold_objects_beside_pods():
    items = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "it"}} for kind in ("ConfigMap", "Secret")
    ]
    reading = read_manifests(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "f.yaml")
    assert [one.kind for one in reading.or_raise().objects] == [CONFIG_MAP, SECRET]
    assert not reading.warnings


def test_an_object_is_written_as_it_was_read():
    for one in (
        only("ConfigMap", data={"a": "1"}, binaryData={"c": encoded(b"\xff")}, immutable=True),
        only("Secret", stringData={"a": "1"}, type="example.com/own"),
    ):
        (again,) = read_manifests(json.dumps(manifest_of(one)), "f.yaml").or_raise().objects
        assert again == one


@pytest.mark.parametrize("key", ["..", ".", "..data", "a/b", "", "ä", "a b", "x" * 254])
def test_a_key_that_cannot_name_a_file_is_refused(key):
    for kind in ("ConfigMap", "Secret"):
        assert problems(kind, data={key: ""})


@pytest.mark.parametrize("key", [".dockercfg", "a.b-c_D", "...".join("ab"), "x" * 253, ".a"])
def test_a_key_that_names_a_file_is_taken(key):
    assert not problems("ConfigMap", data={key: "1"})


def test_a_key_is_in_data_or_in_binary_data():
    (problem,) = problems("ConfigMap", data={"a": "1"}, binaryData={"a": ""})
    assert "is a key of data too" in problem


def test_an_object_has_at_most_one_mebibyte():
    assert not problems("ConfigMap", data={"a": "x" * (1 << 20)})
    assert "may have 1048576" in problems("ConfigMap", data={"a": "x" * (1 << 20), "b": "y"})[0]


@pytest.mark.parametrize(
    ("type_", "data", "field"),
    [
        ("kubernetes.io/tls", {"tls.crt": ""}, "data[tls.key]"),
        ("kubernetes.io/basic-auth", {"other": "x"}, "data[username]"),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": ""}, "data[ssh-privatekey]"),
        ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{"}, "data[.dockerconfigjson]"),
        ("kubernetes.io/dockercfg", {}, "data[.dockercfg]"),
        (
            "kubernetes.io/service-account-token",
            {},
            "metadata.annotations[kubernetes.io/service-account.name]",
        ),
    ],
)
def test_a_type_of_secret_says_which_keys_it_has(type_, data, field):
    (problem,) = read("Secret", type=type_, stringData=data).problems
    assert problem.field == field


def test_a_docker_secret_is_json():
    assert not problems(
        "Secret", type="kubernetes.io/dockerconfigjson", stringData={".dockerconfigjson": '{"auths":{}}'}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"password": "hunter2!"}},
        {"data": {"password": 77001177}},
        {"stringData": {"password": 77001177}},
        {"stringData": {"password": ["hunter2!"]}},
        {"stringData": "hunter2!"},
        {"data": 77001177},
        {"data": ["hunter2!"]},
        {"stringData": {"password": {"hunter2!": "hunter2!"}}},
        {"stringData": {"password": "hunter2!", "a/b": "hunter2!"}},
        {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "hunter2!"}},
    ],
)
def test_no_message_has_the_value_of_a_secret(fields):
    found = problems("Secret", **fields)
    assert found
    assert not any("hunter2" in problem or "77001177" in problem for problem in found)


def test_the_text_of_an_object_has_no_value():
    assert repr(only("Secret", stringData={"password": "hunter2!"})) == "<Secret default/it>"


def test_a_misspelt_field_is_an_error():
    (problem,) = problems("Secret", stringdata={"a": "b"})
    assert "did you mean stringData" in problem


def test_two_objects_of_one_name_and_kind_are_a_mistake():
    text = "\n---\n".join(
        json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": "it"}})
        for kind in ("ConfigMap", "Secret", "ConfigMap")
    )
    (problem,) = read_manifests(text, "f.yaml").without_duplicates().problems
    assert "ConfigMap default/it stands twice" in problem.message


def test_an_immutable_object_keeps_its_data():
    before = DataObject(CONFIG_MAP, ObjectMeta("it"), {"a": b"1"}, is_immutable=True)
    assert not [*change_problems(before, before)]
    assert [problem.field for problem in change_problems(before, before._replace(content={"a": b"2"}))] == [
        "data"
    ]
    assert [problem.field for problem in change_problems(before, before._replace(is_immutable=False))] == [
        "immutable"
    ]


def test_a_secret_keeps_its_type():
    before = DataObject(SECRET, ObjectMeta("it"), type="Opaque")
    assert [problem.field for problem in change_problems(before, before._replace(type="other"))] == ["type"]
