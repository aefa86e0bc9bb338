"""The messages between the agent and the supervisor. No message, whatever it holds, ends either of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.runtime.process.supervisor_protocol import MOST_BYTES, BadMessage, attempt_of, decode, encode

texts = st.text(max_size=20)


@given(st.dictionaries(texts, st.one_of(st.integers(), texts, st.lists(texts), st.none()), max_size=5))
def test_a_message_comes_out_as_it_went_in(message):
    assert decode(encode(message)) == message


def test_half_a_surrogate_pair_travels_too():
    assert decode(encode({"command": ["\ud800"]})) == {"command": ["\ud800"]}


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_message_or_a_bad_one(packet):
    try:
        message = decode(packet)
    except BadMessage:
        message = {}
    assert isinstance(message, dict)


@pytest.mark.parametrize("packet", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b" " * (MOST_BYTES + 1)])
def test_what_is_no_message_is_refused_with_a_reason(packet):
    with pytest.raises(BadMessage, match=r"a message is"):
        decode(packet)


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(BadMessage, match="longer than"):
        encode({"command": ["x" * MOST_BYTES]})


def test_an_attempt_is_read():
    assert attempt_of({"attempt": ["uid", "web", 3]}) == ("uid", "web", 3)


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    "attempt",
    [
        None,
        "uid",
        [],
        ["uid", "web"],
        ["..", "web", 1],
        ["uid", "../../x", 1],
        ["uid", "", 1],
        ["uid", ".", 1],
        ["a/b", "web", 1],
        ["uid", "web\0", 1],
        ["uid", "w" * 256, 1],
        ["\ud800", "web", 1],
        ["uid", "web", -1],
        ["uid", "web", "1"],
        ["uid", "web", True],
        ["uid", "web", 1.5],
        [1, "web", 1],
    ],
)
def test_an_attempt_never_leads_elsewhere(attempt):
    with pytest.raises(BadMessage):
        attempt_of(json.loads(json.dumps({"attempt": attempt})))
