"""Pods between the API server and the agent while watches break, the journal fails and pods come and go."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenkeel.agent.admission import DeferredResizes
from evenkeel.agent.agent import Agent
from evenkeel.agent.pod_store import PodChange
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.journal.store import JournalError
from evenkeel.kube.pod_object import read_pod, transitions_of, wanted_status
from tests.models.agents import Place, drive, until
from tests.models.quiet_cluster import ADDRESSES, NothingElse, Requests, pod_sync


def pod_json(name: str = "web", uid: str = "", cpu: str = "1", **metadata: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "host",
        "command": ["x"],
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "generation": 1,
            **metadata,
        },
        "spec": {"nodeName": "node1", "containers": [container]},
        "status": {"phase": "Pending"},
    }


def phase(agent: Agent, uid: str) -> str:
    pod = agent.cluster_pods.shown(uid)
    return pod.status.phase if pod is not None else ""


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


def test_a_pod_that_left_while_it_waited_for_another_of_its_name_is_never_started(place):
    async def scenario(agent: Agent) -> None:
        nothing = NothingElse()
        sync = pod_sync(agent, [], nothing)
        sync.changed("ADDED", pod_json(uid="old"))
        await until(lambda: phase(agent, "old") == "Running")
        place.runtime.ignores_term = True  # it takes its grace period
        sync.changed("DELETED", pod_json(uid="old"))
        sync.changed("ADDED", pod_json(uid="new"))
        await until(lambda: bool(place.runtime.stopped))
        sync.listed([])  # the watch was interrupted, and the new pod was deleted meanwhile
        assert "new" in nothing.forgotten
        await until(lambda: agent.cluster_pods.get("old") is None)
        assert agent.cluster_pods.get("new") is None  # it would have come in the same moment

    drive(place, scenario)
    assert [attempt.uid for attempt in place.runtime.starts] == ["old"]


def test_a_change_that_the_journal_did_not_take_is_made_when_it_comes_again(place, monkeypatch):
    async def scenario(agent: Agent) -> None:
        sync = pod_sync(agent, [])
        sync.listed([pod_json()])
        await until(lambda: phase(agent, "uid-web") == "Running")
        resized = [pod_json(cpu="90", generation=2), pod_json("next")]

        def fails(*_: object) -> bool:
            raise JournalError("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(DeferredResizes, "defer", fails)
            with pytest.raises(JournalError):
                sync.listed(resized)
        sync.listed(resized)
        await until(lambda: phase(agent, "uid-next") == "Running")
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        assert "PodResizePending" in [one.type for one in shown.status.conditions]

    drive(place, scenario)


def test_a_resize_of_a_pod_that_is_not_admitted_yet_is_not_lost(place):
    async def scenario(agent: Agent) -> None:
        for value in (pod_json(cpu="1"), pod_json(cpu="2", generation=2)):
            pod = read_pod(value, Profile.DOCUMENTS, ())
            assert isinstance(pod, Pod)
            agent.cluster_pods.put(pod)
        await until(lambda: phase(agent, "uid-web") == "Running")
        record = agent.cluster_pods.get("uid-web")
        assert record is not None
        assert str(record.pod.spec.containers[0].resources.requests["cpu"]) == "2"

    drive(place, scenario)


def test_a_pod_that_ends_has_seen_the_generation_of_its_deletion(place):
    async def scenario(agent: Agent) -> None:
        sync = pod_sync(agent, [])
        sync.changed("ADDED", pod_json())
        await until(lambda: phase(agent, "uid-web") == "Running")
        place.runtime.ignores_term = True
        deleted = pod_json(generation=2, deletionTimestamp="now", deletionGracePeriodSeconds=1)
        sync.changed("MODIFIED", deleted)
        await until(lambda: bool(place.runtime.stopped))
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        status = wanted_status(shown, deleted, *ADDRESSES)
        assert status["observedGeneration"] == 2
        assert {one["observedGeneration"] for one in status["conditions"]} == {2}

    drive(place, scenario)


class Late:
    """The agent's changes, which are heard when `may_hear` is set."""

    def __init__(self, agent: Agent) -> None:
        self.may_hear = asyncio.Event()
        self._agent = agent

    async def watch(self) -> AsyncIterator[PodChange]:
        async for change in self._agent.watch():
            await self.may_hear.wait()
            yield change


def test_the_last_status_of_a_pod_is_reported_before_it_leaves_the_api_server(place):
    async def scenario(agent: Agent) -> None:
        requests, changes = Requests(), Late(agent)
        sync = pod_sync(agent, [], requests=requests, changes=changes)
        loops = [asyncio.create_task(one) for one in (sync.follow_agent(), sync.deliver())]
        sync.changed("ADDED", pod_json())
        await until(lambda: phase(agent, "uid-web") == "Running")
        sync.changed("MODIFIED", pod_json(labels={"seen": "yes"}))
        await until(lambda: bool(requests.patches))
        deleted = pod_json(deletionTimestamp="now", deletionGracePeriodSeconds=1)
        deleted["status"] = requests.patches[-1][1]["status"]
        sync.changed("MODIFIED", deleted)
        await until(lambda: agent.cluster_pods.get("uid-web") is None)
        sync.changed("MODIFIED", {**deleted, "metadata": {**deleted["metadata"], "labels": {}}})
        await sync.delivered()
        assert not requests.deleted
        changes.may_hear.set()
        await until(lambda: requests.deleted == ["uid-web"])
        (container,) = requests.patches[-1][1]["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 143
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    drive(place, scenario)


def test_the_next_agent_keeps_the_times_of_conditions_that_have_not_changed(place):
    value = pod_json()

    async def first(agent: Agent) -> None:
        pod_sync(agent, []).changed("ADDED", value)
        await until(lambda: phase(agent, "uid-web") == "Running")
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        scenario = wanted_status(shown, value, *ADDRESSES)["conditions"]
        # As it is after containers have come and gone: the journal does not have the time of the first transition.
        value["status"]["conditions"] = [
            {**one, "lastTransitionTime": "2001-01-01T00:00:00Z"} for one in scenario
        ]

    async def second(agent: Agent) -> None:
        pod_sync(agent, []).listed([value])
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        status = wanted_status(shown, value, *ADDRESSES)
        assert transitions_of({"status": status}) == transitions_of(value)

    drive(place, first)
    drive(place, second)
