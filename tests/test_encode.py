"""Typed objects back to plain values."""

import json
from enum import StrEnum
from typing import NamedTuple

from hypothesis import given

from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import Duration
from evenkeel.api.volume_types import EmptyDirVolumeSource, Volume
from evenkeel.quantity import Quantity
from tests.strategies import pods


class Colour(StrEnum):
    RED = "red"


class Inner(NamedTuple):
    run_as_user: int | None = None


class Outer(NamedTuple):
    host_ip: str = ""
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    amounts: dict[str, Quantity] | None = None
    wait: Duration | None = None
    colour: Colour | None = None
    is_ready: bool | None = None
    number: int | None = None
    chosen: Inner | None = None


def test_names_are_those_of_yaml_and_empty_values_are_left_out():
    assert encode(Outer()) == {}
    assert encode(Outer(host_ip="10.0.0.1", inner=Inner(7))) == {
        "hostIP": "10.0.0.1",
        "inner": {"runAsUser": 7},
    }


def test_false_and_zero_are_not_empty():
    assert encode(Outer(is_ready=False, number=0, inner=Inner(0))) == {
        "inner": {"runAsUser": 0},
        "isReady": False,
        "number": 0,
    }


def test_an_empty_object_in_a_list_keeps_its_place():
    assert encode(Outer(inners=(Inner(), Inner(1)))) == {"inners": [{}, {"runAsUser": 1}]}


def test_an_empty_object_that_says_something_by_being_there_stays():
    assert encode(Outer(chosen=Inner())) == {"chosen": {}}
    volume = Volume("scratch", empty_dir=EmptyDirVolumeSource())
    assert encode(volume) == {"name": "scratch", "emptyDir": {}}


def test_values_of_our_own_become_the_text_they_are_written_as():
    value = Outer(amounts={"memory": Quantity("1.5Gi")}, wait=Duration.parse("90s"), colour=Colour.RED)
    plain = encode(value)
    assert plain == {"amounts": {"memory": "1536Mi"}, "wait": "1m30s", "colour": "red"}
    assert type(plain["colour"]) is str


@given(pods)
def test_a_pod_is_read_back_as_it_was(pod):
    findings = Findings()
    again = decode(Pod, json.loads(json.dumps(encode(pod))), findings)
    assert not findings.problems
    assert encode(again) == encode(pod)
