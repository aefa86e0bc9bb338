"""Messages between the agent and the watch: what is sent is received, and nothing else is taken."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup.tree import Version
from evenkeel.journal.codec import to_text
from evenkeel.pressure.watch.messages import (
    MOST_BYTES,
    BadMessage,
    Frames,
    frame,
    pod_from,
    settings_of,
    targets_from,
    targets_plain,
)
from tests.models.agents import pods_of
from tests.models.memory_files import PODS, targets_in


@given(
    st.lists(
        st.dictionaries(st.text(max_size=9), st.integers() | st.text(max_size=9), max_size=4), max_size=4
    ),
    st.integers(1, 40),
)
def test_messages_arrive_whole_however_they_are_cut(messages, size):
    said = b"".join(map(frame, messages))
    frames = Frames()
    heard = []
    for start in range(0, len(said), size):
        heard += frames.take(said[start : start + size])
    assert heard == messages


@pytest.mark.parametrize(
    "data", [b"\0\0\0\1x", b"\0\0\0\2[]", (MOST_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\4\xff\xff\xff\xff"]
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(BadMessage):
        Frames().take(data)


def test_targets_are_the_same_on_the_other_side(tmp_path):
    batch, web = pods_of(PODS)
    targets = targets_in(tmp_path, 400, (batch, 5), (web, 0))
    first, second = targets.pods
    first = first._replace(
        containers=(("main", "/a/b"),), group=("BestEffort", 3), high="max", is_ending=True
    )
    targets = targets._replace(
        version=Version.V1, pods=(first, second), unified_mount="/u", freezer_mount="/f"
    )
    plain = json.loads(json.dumps(targets_plain(targets, {"u-batch": "7.1", "u-web": "7.2"})))
    pods = {"7.1": pod_from(to_text(batch)), "7.2": pod_from(to_text(web))}
    assert targets_from(plain, pods) == (targets, {"u-batch": "7.1", "u-web": "7.2"})


@pytest.mark.parametrize("path", ["relative", "/a/../b", 5, None])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, path):
    batch, _ = pods_of(PODS)
    plain: list[Any] = list(targets_plain(targets_in(tmp_path, 400, (batch, 0)), {"u-batch": "1"}))
    for place in (2, 3):
        row = list(plain[4][0])
        row[place] = path
        with pytest.raises(BadMessage):
            targets_from([*plain[:4], [row], *plain[5:]], {"1": batch})


@pytest.mark.parametrize(
    "message", [{}, {"thresholds": 5}, {"thresholds": [], "settings": {"profile": "?"}, "cpus": 1}]
)
def test_settings_that_cannot_be_read_are_refused(message):
    with pytest.raises(BadMessage):
        settings_of(message)
