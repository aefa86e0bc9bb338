"""The agent with workloads, on a model machine: their pods, what survives a restart, and what files say.

The same on real kernels: tests/kernel/test_workloads.py."""

import json

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.manifests import read_manifests
from evenkeel.errors import EvenkeelError
from evenkeel.journal.store import Journal, JournalError
from tests.models.agents import Place, drive, until

CONTAINER = {"name": "main", "image": "host", "command": ["x"]}


def manifest(kind: str, name: str = "w", container: object = None, policy: str = "", **spec: object) -> str:
    is_batch = kind in ("Job", "CronJob")
    version = "batch/v1" if is_batch else "apps/v1"
    pod_spec = {"containers": [{**CONTAINER, **(container or {})}]}  # type: ignore[dict-item]
    if is_batch:
        pod_spec["restartPolicy"] = policy or "Never"  # type: ignore[assignment]
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod_spec}
    whole: dict[str, object] = {"template": template, **spec}
    if kind == "CronJob":
        whole = {**spec, "jobTemplate": {"spec": {"template": template}}}
    elif not is_batch:
        whole["selector"] = {"matchLabels": {"app": "a"}}
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": whole})


async def apply(agent: Agent, *texts: str) -> list[tuple[str, str]]:
    reading = read_manifests("\n---\n".join(texts), "test").without_duplicates().or_raise()
    workloads = [one.workload for one in reading.workloads]
    return [(one.kind, one.outcome) for one in await agent.apply(reading.pods, workloads=workloads)]


def names(agent: Agent, phase: str = "Running") -> set[str]:
    return {pod.metadata.name for pod in agent.pods() if pod.status.phase == phase}


def status(agent: Agent, key: str):
    workload = agent.workload(key)
    assert workload is not None
    return workload.status


def attempt_of(place: Place, agent: Agent, name: str):
    uid = agent.pod(f"default/{name}").metadata.uid  # type: ignore[union-attr]
    return next(a for a, record in place.runtime.records.items() if a.uid == uid and record.exit is None)


def test_a_deployment_runs_is_scaled_rolled_out_and_deleted_with_its_pods(place):
    async def story(agent: Agent) -> None:
        assert await apply(agent, manifest("Deployment", replicas=2)) == [("Deployment", "created")]
        await until(lambda: status(agent, "Deployment/default/w").available_replicas == 2)
        assert await apply(agent, manifest("Deployment", replicas=2)) == [("Deployment", "unchanged")]
        old = names(agent)
        assert await agent.scale("Deployment/default/w", 3)
        await until(lambda: len(names(agent)) == 3)
        assert old < names(agent)

        await agent.delete(f"default/{min(old)}")
        await until(lambda: place.runtime.removed and len(names(agent)) == 3)

        assert await apply(agent, manifest("Deployment", container={"args": ["y"]}, replicas=3)) == [
            ("Deployment", "configured")
        ]
        await until(lambda: status(agent, "Deployment/default/w").updated_replicas == 3)
        await until(lambda: len(names(agent)) == 3 and not names(agent) & old)
        workload = agent.workload("Deployment/default/w")
        assert workload is not None
        assert workload.metadata.generation == 3

        assert await agent.delete_workload("Deployment/default/w")
        await until(lambda: agent.pods() == ())
        assert agent.workloads() == ()
        assert not await agent.delete_workload("Deployment/default/w")

    drive(place, story)


def test_the_next_agent_goes_on_with_a_workload_and_starts_no_pod_twice(place):
    async def first(agent: Agent) -> None:
        await apply(agent, manifest("Deployment", replicas=2), manifest("StatefulSet", replicas=2))
        await until(lambda: len(names(agent)) == 4)

    async def second(agent: Agent) -> None:
        assert len(agent.workloads()) == 2
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert names(agent) == before

    drive(place, first)
    started = len(place.runtime.starts)
    with Journal.read(f"{place.directory}/journal.db") as journal:
        before = {record.pod.metadata.name for record in journal.pods()}
    drive(place, second)
    assert len(place.runtime.starts) == started


def test_a_job_counts_each_end_once_across_restarts(place):
    async def start(agent: Agent) -> None:
        await apply(agent, manifest("Job", completions=3, parallelism=2))
        await until(lambda: len(names(agent)) == 2)
        place.runtime.end(attempt_of(place, agent, min(names(agent))))
        await until(lambda: status(agent, "Job/default/w").succeeded == 1 and len(names(agent)) == 2)

    async def finish(agent: Agent) -> None:
        await until(lambda: len(names(agent)) == 1)
        place.runtime.end(attempt_of(place, agent, *names(agent)))
        await until(lambda: status(agent, "Job/default/w").completion_time is not None)
        assert status(agent, "Job/default/w").succeeded == 3

    async def again(agent: Agent) -> None:
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert status(agent, "Job/default/w").succeeded == 3

    drive(place, start)
    # One ends while no agent runs.
    place.runtime.end(next(a for a, record in place.runtime.records.items() if record.exit is None))
    drive(place, finish)
    drive(place, again)
    assert len(place.runtime.starts) == 3


@pytest.mark.req("E16")
def test_an_evicted_pod_of_a_job_is_followed_by_another_and_one_of_a_deployment_comes_back(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("Job", "j", policy="OnFailure", backoffLimit=0), manifest("Deployment"))
        await until(lambda: len(names(agent)) == 2)
        before = names(agent)
        for pod in agent.pods():
            agent.watches.memory.recorder.evict(pod.metadata.uid, "for the test", place.now)
        await until(lambda: names(agent, "Failed") == before)
        place.now += 11
        agent.steps.want_step()
        agent.watches.conditions.set("clock", ["PIDPressure"])
        agent.watches.conditions.set("clock", [])
        await until(lambda: len(names(agent)) == 2)
        (new,) = names(agent) - before
        assert new.startswith("j-")
        assert status(agent, "Job/default/j").failed == 0

    drive(place, story)


def test_a_job_that_is_deleted_and_applied_again_counts_from_the_beginning(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("Job"))
        await until(lambda: len(names(agent)) == 1)
        place.runtime.end(attempt_of(place, agent, *names(agent)))
        await until(lambda: status(agent, "Job/default/w").succeeded == 1)
        await agent.delete_workload("Job/default/w")
        await apply(agent, manifest("Job"))
        await until(lambda: len(names(agent)) == 1)
        assert status(agent, "Job/default/w").succeeded == 0

    drive(place, story)


def test_a_cron_job_makes_a_job_when_its_time_comes(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("CronJob", schedule="0 * * * *", timeZone="Etc/UTC"))
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert agent.pods() == ()
        for number in (1, 2):
            place.now += 3600
            agent.steps.want_step()
            await until(lambda: len(names(agent)) == 1)
            minute = int(place.now // 3600 * 60)
            assert names(agent).pop().startswith(f"w-{minute}-")
            place.runtime.end(attempt_of(place, agent, *names(agent)))
            await until(lambda number=number: len(names(agent, "Succeeded")) == number)
        jobs = [one for one in agent.workloads() if type(one).__name__ == "Job"]
        assert len(jobs) == 2
        await until(lambda: status(agent, "CronJob/default/w").active == ())
        await agent.delete_workload("CronJob/default/w")
        await until(lambda: agent.pods() == ())
        assert agent.workloads() == ()

    drive(place, story)


def test_a_file_says_what_a_workload_is_and_a_job_that_it_changes_begins_anew(place, tmp_path):
    file = tmp_path / "pods" / "work.yaml"
    file.parent.mkdir()

    def write(*texts: str) -> None:
        new = file.with_suffix(".new")
        new.write_text("\n---\n".join(texts))
        new.rename(file)

    async def story(agent: Agent) -> None:
        await until(lambda: len(names(agent)) == 3)
        with pytest.raises(EvenkeelError, match=r"Deployment default/w stands in .*work\.yaml"):
            await agent.scale("Deployment/default/w", 5)
        with pytest.raises(EvenkeelError, match="change it there"):
            await agent.delete_workload("Deployment/default/w")
        write(manifest("Deployment", replicas=1), manifest("Job", container={"args": ["y"]}))
        await until(lambda: len(names(agent)) == 2)
        write(manifest("Job", container={"args": ["y"]}))
        await until(lambda: len(names(agent)) == 1 and len(agent.pods()) == 1)
        assert [type(one).__name__ for one in agent.workloads()] == ["Job"]

    write(manifest("Deployment", replicas=2), manifest("Job"))
    drive(place, story, str(file.parent))
    file.unlink()

    async def empty(agent: Agent) -> None:
        await until(lambda: agent.pods() == ())

    drive(place, empty, str(file.parent))


@pytest.mark.parametrize(
    "before, after, words",
    [
        (manifest("Job"), manifest("Job", container={"args": ["y"]}), "spec.template cannot be changed"),
        (
            manifest("Job", completions=2),
            manifest("Job", completions=3),
            "spec.completions cannot be changed",
        ),
        (
            manifest("StatefulSet", serviceName="a"),
            manifest("StatefulSet", serviceName="b"),
            "spec.serviceName cannot be changed",
        ),
    ],
)
def test_what_cannot_be_changed_is_refused_and_all_with_it(place, before, after, words):
    async def story(agent: Agent) -> None:
        await apply(agent, before)
        with pytest.raises(EvenkeelError, match=words):
            await apply(agent, manifest("Deployment", "other"), after)
        assert len(agent.workloads()) == 1

    drive(place, story)


def test_a_pod_of_a_workload_cannot_be_applied_over(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("StatefulSet"))
        await until(lambda: names(agent) == {"w-0"})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "w-0"},
            "spec": {"containers": [CONTAINER]},
        }
        with pytest.raises(EvenkeelError, match="pod default/w-0 belongs to StatefulSet w"):
            await apply(agent, json.dumps(pod))

    drive(place, story)


def test_a_name_that_another_pod_has_is_reported_and_free_again_later(place):
    async def story(agent: Agent) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "w-0"},
            "spec": {"containers": [CONTAINER]},
        }
        await apply(agent, json.dumps(pod))
        await apply(agent, manifest("StatefulSet"))
        await until(lambda: any(event.reason == "FailedCreate" for event in agent.events()))
        await agent.delete("default/w-0")
        await until(lambda: status(agent, "StatefulSet/default/w").ready_replicas == 1)

    drive(place, story)


def test_a_refused_pod_of_a_workload_is_tried_again_when_room_appears(place):
    async def story(agent: Agent) -> None:
        big = {"resources": {"requests": {"cpu": "3"}}}
        await apply(agent, manifest("Deployment", "a", container=big))
        await until(lambda: len(names(agent)) == 1)
        await apply(agent, manifest("Deployment", "b", container=big))
        await until(lambda: len(names(agent, "Failed")) == 1)
        await agent.delete_workload("Deployment/default/a")
        await until(lambda: status(agent, "Deployment/default/b").available_replicas == 1)

    drive(place, story)


def test_while_the_journal_cannot_be_written_nothing_is_made(place, monkeypatch):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("Deployment", replicas=1))
        await until(lambda: len(names(agent)) == 1)
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "save_workload", _fails)
            with pytest.raises(JournalError):
                await agent.scale("Deployment/default/w", 2)
            workload = agent.workload("Deployment/default/w")
            assert workload is not None
            assert workload.spec.replicas == 1  # type: ignore[union-attr]
        assert await agent.scale("Deployment/default/w", 2)
        await until(lambda: len(names(agent)) == 2)

    drive(place, story)


def _fails(*_: object) -> None:
    raise JournalError("the disk is full")


def test_a_watcher_learns_that_a_pod_is_gone_though_the_next_of_its_name_and_uid_follows_at_once(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("StatefulSet", replicas=1))
        await until(lambda: names(agent) == {"w-0"})
        changes = agent.watch()
        assert (await anext(changes)).type == "ADDED"
        await agent.delete("default/w-0", 0)
        types = []
        async for change in changes:
            types.append(change.type)
            if change.type == "ADDED":
                break
        assert types[-2:] == ["DELETED", "ADDED"]

    drive(place, story)


@pytest.mark.parametrize("seconds", [36_000.0, -36_000.0])
def test_a_clock_that_is_set_neither_ends_nor_lengthens_the_times_of_workloads(place, seconds):
    async def story(agent: Agent) -> None:
        text = manifest("Job", activeDeadlineSeconds=1000)
        await apply(agent, text, manifest("Deployment", "d", replicas=1, minReadySeconds=60))
        await until(lambda: len(names(agent)) == 2)
        (first,) = (name for name in names(agent) if name.startswith("w-"))
        place.runtime.end(attempt_of(place, agent, first), 1)
        await until(lambda: status(agent, "Job/default/w").failed == 1)
        place.clock.jump_seconds = seconds
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert status(agent, "Job/default/w").active == 0  # it waits for its back-off
        assert not status(agent, "Job/default/w").conditions
        assert status(agent, "Deployment/default/d").available_replicas == 0
        place.now += 11
        agent.steps.want_step()
        await until(lambda: status(agent, "Job/default/w").ready == 1)
        place.now += 50
        agent.steps.want_step()
        await until(lambda: status(agent, "Deployment/default/d").available_replicas == 1)

    drive(place, story)
