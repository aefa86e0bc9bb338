"""Messages between the agent and the watch: what is sent is received, and nothing else is taken."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.scalars import Amount
from evenkeel.cgroup.tree import Version
from evenkeel.journal.codec import to_text
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import parse_thresholds
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.watch.messages import (
    MOST_BYTES,
    BadMessage,
    Frames,
    frame,
    pod_from,
    queues_of,
    settings_of,
    step_from,
    step_plain,
    targets_from,
    targets_plain,
)
from tests.eviction_pods import best_effort, node
from tests.models.agents import pods_of
from tests.models.memory_files import MIB, PODS, targets_in


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
    first = first._replace(containers=(("main", "/a/b"),), group=("BestEffort", 3), high="max", ends_by=7.5)
    targets = targets._replace(
        version=Version.V1, pods=(first, second), unified_mount="/u", freezer_mount="/f"
    )
    plain = json.loads(json.dumps(targets_plain(targets, {"u-batch": "7.1", "u-web": "7.2"})))
    pods = {"7.1": pod_from(to_text(batch)), "7.2": pod_from(to_text(web))}
    assert targets_from(plain, pods) == (targets, {"u-batch": "7.1", "u-web": "7.2"})
    for row, is_ending in zip(plain[4], (True, False), strict=True):
        row[-1] = is_ending  # an agent of an earlier version says only whether it ends
    known, _ = targets_from(plain, pods)
    assert [one.ends_by is not None and one.ends_by <= 1 for one in known.pods] == [True, False]


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


def test_queues_are_amounts_by_pod():
    assert queues_of({"do": "queues", "bytes": {"u-web": 5}}) == {"u-web": 5}
    refused: tuple[object, ...] = (None, [], {"u-web": "5"}, {"u-web": -1}, {"u-web": True})
    for wrong in refused:
        with pytest.raises(BadMessage):
            queues_of({"do": "queues", "bytes": wrong})


def test_a_step_is_decided_the_same_on_the_other_side():
    """With what a pod has in queues of sockets, without which another one would be the victim."""
    hoards, web = best_effort("hoards", 1), best_effort("web", 200)
    hoards = hoards._replace(stats=hoards.stats._replace(socket_queue_bytes=Amount(300 * MIB)))
    thresholds = parse_thresholds(hard={"memory.available": "100Mi"})
    snapshot = Snapshot(1.0, node(60), (hoards, web))
    _, decision = decide(State(), snapshot, thresholds, Settings())
    step = Step(State(), snapshot, thresholds, Settings(), decision)
    plain = json.loads(json.dumps(step_plain(step, {"hoards": "1", "web": "2"})))
    again = step_from(plain, {"1": hoards.pod, "2": web.pod})
    assert again.decision.victim == decision.victim
    assert decision.victim is not None
    assert decision.victim.pod is hoards.pod
