"""Accepted requests are carried out and refused requests are not, even if a pod of the same name is ending, or the disk
is full."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from evenkeel.cli.client import AgentRefused
from tests.attacks.hostile import PATIENCE_SECONDS
from tests.kernel.agents import MakeUp, Up, first_of, pod
from tests.kernel.small_disk import fill, on
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

# Deaf to SIGTERM, so that it ends only after its grace period.
DEAF = ["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"]
GRACE_SECONDS = 3
LONG_SECONDS = 3600  # it ends when it is killed


def deaf(name: str, grace_seconds: int = GRACE_SECONDS, **more: Any) -> dict[str, Any]:
    return pod(name, DEAF, terminationGracePeriodSeconds=grace_seconds, **more)


def is_accepted(agent: Up, one: dict[str, Any]) -> bool:
    """Whether the agent takes it; if not, it says that there is a conflict, or no room."""
    try:
        agent.apply(one)
    except AgentRefused as refusal:
        if refusal.status not in (409, 507):
            raise
        return False
    return True


def test_a_pod_posted_while_its_namesake_ends_runs_afterwards_or_is_refused(agent: Up):
    other = {"env": [{"name": "NEW", "value": "1"}]}
    posted = {
        "same": deaf("same", LONG_SECONDS),
        "changed": deaf("changed", LONG_SECONDS, container=other),
        "resized": deaf("resized", LONG_SECONDS, container={"resources": {"requests": {"cpu": "20m"}}}),
        "other-uid": deaf("other-uid", LONG_SECONDS, uid="11111111-2222-4333-8444-555555555555"),
    }
    for name in posted:
        agent.apply(deaf(name, LONG_SECONDS))
    for name in posted:
        agent.await_phase(name, "Running")
    namesakes = [first_of(agent.container(name)) for name in posted]
    accepted = []
    for name, successor in posted.items():
        agent.client.delete("default", name)
        assert agent.pod(name)["metadata"].get("deletionTimestamp")
        if is_accepted(agent, successor):
            accepted.append(name)
    for pid in namesakes:
        os.kill(pid, signal.SIGKILL)
    for name in posted:
        if name in accepted:
            _await_new(agent, name)
        else:
            agent.await_gone(name)
    if "changed" in accepted:
        assert agent.pod("changed")["spec"]["containers"][0]["env"] == other["env"]


def _await_new(agent: Up, name: str) -> None:
    """Waits until the pod that was posted last runs."""

    def is_new_and_runs() -> bool:
        found = agent.pod(name)
        if not found or "deletionTimestamp" in found["metadata"] or found["status"].get("phase") != "Running":
            return False
        reported = [one for one in agent.client.lines("/events") if one.get("pod") == f"default/{name}"]
        return sum(one["times"] for one in reported if one["reason"] == "Started") >= 2

    eventually(is_new_and_runs, within_seconds=PATIENCE_SECONDS, details=lambda: agent.details_of(name))


@pytest.mark.long
def test_a_successor_that_was_accepted_survives_a_crash(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    agent.apply(deaf("again"))
    agent.await_phase("again", "Running")
    agent.client.delete("default", "again")
    is_taken = is_accepted(agent, deaf("again", container={"env": [{"name": "NEW", "value": "1"}]}))
    agent.kill()
    agent.start()
    if not is_taken:
        agent.await_gone("again")
        return
    _await_new(agent, "again")


@pytest.mark.long
def test_a_successor_is_deleted_like_any_other(agent: Up):
    agent.apply(deaf("again"))
    agent.await_phase("again", "Running")
    agent.client.delete("default", "again")
    if is_accepted(agent, deaf("again")):
        agent.client.delete("default", "again")
    agent.await_gone("again")


@pytest.mark.long
@pytest.mark.parametrize("small", [16], indirect=True)
def test_what_was_refused_on_a_full_disk_is_not_there_when_there_is_room_again(small: Path, up: MakeUp):
    agent = on(up(), small)
    agent.start()
    agent.apply(pod("before", ["sleep", "100000"]))
    agent.await_phase("before", "Running")
    filler = fill(small)
    refused = []
    for number in range(200):  # in the room that the journal has, the first may be taken
        name = f"late-{number}"
        large = {"env": [{"name": "X", "value": "x" * 4000}]}
        if not is_accepted(agent, pod(name, ["sleep", "100000"], container=large)):
            refused.append(name)
            if len(refused) == 3:
                break
    assert refused
    known = {one["metadata"]["name"] for one in agent.client.pods()}
    assert not known & set(refused)
    filler.unlink()
    agent.apply(pod("after", ["sleep", "100000"]))
    agent.await_phase("after", "Running")
    agent.kill()
    agent.start()
    agent.await_phase("after", "Running")
    known = {one["metadata"]["name"] for one in agent.client.pods()}
    assert not known & set(refused)
    reported = {one.get("pod") for one in agent.client.lines("/events")}
    assert not reported & {f"default/{name}" for name in refused}


@pytest.mark.long
@pytest.mark.parametrize("small", [16], indirect=True)
def test_a_change_and_a_delete_that_were_refused_on_a_full_disk_did_not_happen(small: Path, up: MakeUp):
    """Refused as a whole: the pod runs on as it was. A delete may be taken on a full disk; then it happens."""
    agent = on(up(), small)
    agent.start()
    agent.apply(pod("stays", ["sleep", "100000"]))
    agent.await_phase("stays", "Running")
    filler = fill(small)
    large = {"env": [{"name": "X", "value": "x" * 200_000}]}
    with pytest.raises(AgentRefused):
        agent.apply(pod("stays", ["sleep", "100000"], container=large))
    assert "env" not in agent.pod("stays")["spec"]["containers"][0]
    filler.unlink()
    agent.apply(pod("after", ["sleep", "100000"]))
    agent.await_phase("after", "Running")
    assert agent.phase("stays") == "Running"
    assert agent.restarts("stays") == 0
    assert "env" not in agent.pod("stays")["spec"]["containers"][0]
    assert "deletionTimestamp" not in agent.pod("stays")["metadata"]
