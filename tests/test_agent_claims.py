"""PersistentVolumeClaims on a model machine: they outlive pods, files and agents, until they are deleted."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.claims import CLAIM
from evenkeel.api.data_objects import DataKey
from evenkeel.api.manifests import read_manifests
from evenkeel.api.stored_objects import manifest_of
from evenkeel.errors import EvenkeelError
from tests.models.agents import drive, until
from tests.models.manifests import a_claim

SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
CONTAINER = {
    "name": "main",
    "image": "host",
    "command": ["x"],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def pod() -> dict[str, object]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [CONTAINER], "volumes": [volume]},
    }


def stateful_set(**spec: object) -> dict[str, object]:
    labels = {"app": "db"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": SPEC}],
            **spec,
        },
    }


async def apply(agent: Agent, *manifests: Any) -> None:
    reading = read_manifests("\n---\n".join(map(json.dumps, manifests)), "test").or_raise()
    workloads = [one.workload for one in reading.workloads]
    await agent.apply(reading.pods, objects=reading.objects, workloads=workloads)


def key(name: str) -> DataKey:
    return DataKey(CLAIM, "default", name)


def names(agent: Agent) -> list[str]:
    return [one.metadata.name for one in agent.data_objects(CLAIM)]


def test_a_pod_waits_for_its_claim_and_the_claim_stays_as_long_as_the_pod(place):
    async def story(agent: Agent) -> None:
        await apply(agent, pod())
        await until(lambda: any(event.reason == "FailedMount" for event in agent.events("default/web")))
        assert not place.runtime.starts
        await apply(agent, manifest_of(a_claim("data")))
        await until(lambda: len(place.runtime.starts) == 1)
        with pytest.raises(EvenkeelError, match="pod default/web has PersistentVolumeClaim default/data"):
            await agent.delete_data(key("data"))
        await agent.delete("default/web", 0)
        await until(lambda: agent.pod("default/web") is None)
        assert names(agent) == ["data"]
        assert await agent.delete_data(key("data"))
        assert place.runtime.removed_claims == [("default", "data")]
        assert not await agent.delete_data(key("data"))

    drive(place, story)


def test_claims_of_a_stateful_set_outlive_it_and_the_agent(place):
    async def first(agent: Agent) -> None:
        await apply(agent, stateful_set())
        await until(lambda: len(place.runtime.starts) == 2)
        assert names(agent) == ["data-db-0", "data-db-1"]
        with pytest.raises(EvenkeelError, match=r"spec\.volumeClaimTemplates cannot be changed"):
            await apply(
                agent,
                stateful_set(
                    volumeClaimTemplates=[
                        {
                            "metadata": {"name": "data"},
                            "spec": {**SPEC, "resources": {"requests": {"storage": "2Gi"}}},
                        }
                    ]
                ),
            )
        assert await agent.delete_workload("StatefulSet/default/db", 0)
        await until(lambda: not agent.pods())

    async def second(agent: Agent) -> None:
        assert names(agent) == ["data-db-0", "data-db-1"]

    drive(place, first)
    drive(place, second)
    assert not place.runtime.removed_claims


def test_a_claim_of_a_file_stays_when_the_file_goes_and_belongs_to_it_again_when_it_comes_back(
    place, tmp_path
):
    files = tmp_path / "pods"
    files.mkdir()
    text = json.dumps(manifest_of(a_claim("data")))
    (files / "claim.json").write_text(text)

    async def story(agent: Agent) -> None:
        await until(lambda: names(agent) == ["data"])
        with pytest.raises(EvenkeelError, match="stands in"):
            await agent.delete_data(key("data"))
        (files / "claim.json").unlink()
        (files / "other.json").write_text(json.dumps(manifest_of(a_claim("other"))))
        await until(lambda: names(agent) == ["data", "other"])
        (files / "new").write_text(text)
        (files / "new").rename(files / "claim.json")
        (files / "other.json").unlink()

    drive(place, story, str(files))

    async def later(agent: Agent) -> None:
        assert names(agent) == ["data", "other"]
        assert await agent.delete_data(key("other"))
        with pytest.raises(EvenkeelError, match="stands in"):
            await agent.delete_data(key("data"))

    drive(place, later, str(files))


def test_a_stateful_set_whose_claims_cannot_be_written_says_so_and_makes_its_pods_later(place):
    async def story(agent: Agent) -> None:
        objects = Path(place.directory) / "objects"
        objects.write_text("in the way")
        await apply(agent, stateful_set(replicas=1))
        await until(lambda: any(event.reason == "FailedCreate" for event in agent.events()))
        assert not agent.pods()
        objects.unlink()
        place.now += 11
        agent.steps.want_step()
        await until(lambda: len(place.runtime.starts) == 1)
        assert names(agent) == ["data-db-0"]

    drive(place, story)
