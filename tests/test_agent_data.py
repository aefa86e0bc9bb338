"""ConfigMaps and Secrets on a model machine: pods wait for them, and find them after a crash."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.data_objects import CONFIG_MAP, SECRET, DataKey
from evenkeel.api.manifests import read_manifests
from evenkeel.api.stored_objects import StoredObject
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.changes import CONFIG_ERROR
from evenkeel.runtime.environment import declared
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.start_errors import WrongConfig
from tests.models.agents import drive, until

PASSWORD = "kept-from-everybody"
PLAIN = {"name": "main", "image": "host", "command": ["x"]}


def secret(value: str = PASSWORD, **fields: Any) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "db"},
        "stringData": {"password": value},
        **fields,
    }


def config(value: str, **fields: Any) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "app"},
        "data": {"MODE": value},
        **fields,
    }


def pod(name: str = "web") -> dict[str, object]:
    container = {
        "name": "main",
        "image": "host",
        "command": ["x"],
        "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
        "envFrom": [{"configMapRef": {"name": "app"}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


async def apply(agent: Agent, *manifests: dict[str, object]) -> list[str]:
    reading = read_manifests("\n---\n".join(map(json.dumps, manifests)), "test").or_raise()
    applied = await agent.apply(reading.pods, objects=reading.objects)
    return [f"{one.kind} {one.outcome}" for one in applied]


def phase(agent: Agent) -> str:
    shown = agent.pod("default/web")
    return shown.status.phase if shown else ""


def waiting(agent: Agent, name: str = "web") -> tuple[str, str]:
    shown = agent.pod(f"default/{name}")
    state = shown.status.container_statuses[0].state if shown and shown.status.container_statuses else None
    return (state.waiting.reason, state.waiting.message) if state and state.waiting else ("", "")


def test_a_container_waits_for_its_objects_and_starts_when_the_last_one_appears(place):
    seen: list[dict[str, str]] = []
    place.runtime.on_start = lambda launch: seen.append(declared(launch.pod, launch.container, launch.data))

    async def story(agent: Agent) -> None:
        await apply(agent, pod())
        await until(lambda: waiting(agent)[0] == "CreateContainerConfigError")
        assert 'ConfigMap "app" is not there in namespace default' in waiting(agent)[1]
        await apply(agent, config("fast"))
        await until(lambda: 'Secret "db" is not there' in waiting(agent)[1])
        await apply(agent, secret())
        await until(lambda: phase(agent) == "Running")
        reasons = [event.reason for event in agent.events("default/web")]
        assert reasons.count("Failed") == 2, "one event for each thing that it waited for"

    drive(place, story)
    assert seen == [{"MODE": "fast", "PASSWORD": PASSWORD}]


def test_a_container_without_its_file_is_tried_again_after_a_while_and_not_at_once(place):
    tries: list[int] = []

    def without_file(launch: Launch) -> None:
        tries.append(launch.attempt.number)
        raise WrongConfig("file app.env is not there")

    place.runtime.on_start = without_file

    async def story(agent: Agent) -> None:
        await apply(agent, {**pod(), "spec": {"restartPolicy": "Never", "containers": [PLAIN]}})
        await until(lambda: waiting(agent) == (CONFIG_ERROR, "file app.env is not there"))
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert tries == [1]
        place.runtime.on_start = lambda launch: tries.append(launch.attempt.number)
        place.now += 11
        agent.steps.want_step()
        await until(lambda: phase(agent) == "Running")
        assert tries == [1, 1], "a start that was not begun is no attempt"

    drive(place, story)


def test_objects_and_pods_are_applied_together_or_not_at_all(place, tmp_path):
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods" / "web.json").write_text(json.dumps(pod()))

    async def story(agent: Agent) -> None:
        assert await apply(agent, config("1")) == ["ConfigMap created"]
        with pytest.raises(EvenkeelError, match="stands in"):
            await apply(agent, config("2"), secret(), pod())
        assert agent.data_object(DataKey(CONFIG_MAP, "default", "app")).content == {"MODE": b"1"}
        assert agent.data_objects(SECRET) == ()
        assert await apply(agent, config("1")) == ["ConfigMap unchanged"]
        assert await apply(agent, config("2")) == ["ConfigMap configured"]

    drive(place, story, str(tmp_path / "pods"))
    assert [path.name for path in (tmp_path / "objects").iterdir()] == ["ConfigMap_default_app.json"]


def test_applied_objects_are_there_after_a_crash_and_only_their_owner_can_read_them(place, tmp_path):
    drive(place, lambda agent: apply(agent, config("1"), secret()))
    directory = tmp_path / "objects"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    found: list[StoredObject] = []

    async def story(agent: Agent) -> None:
        found.extend((*agent.data_objects(CONFIG_MAP), *agent.data_objects(SECRET)))

    drive(place, story)
    assert [one.content for one in found] == [{"MODE": b"1"}, {"password": PASSWORD.encode()}]
    assert all(one.metadata.creation_timestamp for one in found)


def test_an_immutable_object_cannot_be_changed(place):
    async def story(agent: Agent) -> None:
        await apply(agent, config("1", immutable=True))
        with pytest.raises(InvalidInput, match="immutable"):
            await apply(agent, config("2", immutable=True))
        assert await agent.delete_data(DataKey(CONFIG_MAP, "default", "app"))
        assert not await agent.delete_data(DataKey(CONFIG_MAP, "default", "app"))
        assert await apply(agent, config("2")) == ["ConfigMap created"]

    drive(place, story)


def test_objects_of_files_follow_their_files(place, tmp_path):
    files = tmp_path / "pods"
    files.mkdir()
    (files / "all.json").write_text("\n---\n".join(map(json.dumps, (config("1"), secret(), pod()))))

    async def story(agent: Agent) -> None:
        await until(lambda: phase(agent) == "Running")
        key = DataKey(CONFIG_MAP, "default", "app")
        with pytest.raises(EvenkeelError, match="stands in"):
            await apply(agent, config("2"))
        with pytest.raises(EvenkeelError, match="stands in"):
            await agent.delete_data(key)
        since = agent.data_object(key).metadata.creation_timestamp
        assert since, "its age is shown"
        (files / "all.new").write_text("\n---\n".join(map(json.dumps, (config("3"), secret(), pod()))))
        (files / "all.new").rename(files / "all.json")
        await until(lambda: agent.data_object(key).content == {"MODE": b"3"})
        assert agent.data_object(key).metadata.creation_timestamp == since
        (files / "all.json").unlink()
        await until(lambda: agent.data_object(key) is None)

    drive(place, story, str(files))
    assert not (tmp_path / "objects").exists()


def test_a_removed_object_holds_up_the_next_start_only(place):
    async def story(agent: Agent) -> None:
        await apply(agent, config("1"), secret(), pod())
        await until(lambda: phase(agent) == "Running")
        await agent.delete_data(DataKey(SECRET, "default", "db"))
        assert place.runtime.running() == {"main"}
        place.runtime.end(place.runtime.starts[-1], 1)
        await until(lambda: waiting(agent)[0] == "CreateContainerConfigError")
        await apply(agent, secret())
        await until(lambda: len(place.runtime.starts) == 2)

    drive(place, story)


def test_a_start_that_was_decided_before_a_crash_waits_if_its_object_is_gone(place):
    def crash(launch: Launch) -> None:
        raise asyncio.CancelledError

    async def first(agent: Agent) -> None:
        await apply(agent, config("1"), secret(), pod())
        await until(lambda: bool(agent.pod("default/web").status.container_statuses))

    place.runtime.on_start = crash
    drive(place, first)
    place.runtime.on_start = lambda _: None
    for path in Path(place.directory, "objects").glob("Secret*"):
        path.unlink()

    async def second(agent: Agent) -> None:
        await until(lambda: waiting(agent)[0] == "CreateContainerConfigError")
        assert not place.runtime.starts
        await apply(agent, secret())
        await until(lambda: phase(agent) == "Running")  # at once: the model's clock stands still

    drive(place, second)
    assert len(place.runtime.starts) == 1


def test_no_value_of_a_secret_is_in_the_journal_or_an_event(place, tmp_path):
    async def story(agent: Agent) -> None:
        await apply(agent, config("1"), secret(), pod())
        await until(lambda: phase(agent) == "Running")
        assert PASSWORD not in repr(agent.pods())
        assert not any(PASSWORD in repr(event) for event in agent.events())

    drive(place, story)
    with Journal.read(f"{place.directory}/journal.db") as journal:
        assert PASSWORD not in repr(journal.pods())
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
