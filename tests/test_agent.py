"""The agent on a model machine: starts and stops, commits before actions, and adoption after a restart.

The same on real kernels: tests/kernel/test_agent.py."""

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.agent import agent as agent_module
from evenkeel.agent import in_place_changes
from evenkeel.agent.agent import Agent
from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.drivers.kernel_refusals import NotAvailable
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.amounts import shares, weight_keeping_ratio
from evenkeel.quantity import Quantity
from evenkeel.runtime.interface import Attempt, Launch, Readiness, Record
from evenkeel.runtime.start_errors import FAILED_MOUNT, NoImage, NotPrepared, StartFailed
from tests.models.agents import Place, drive, pods_of, until

WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-web}
spec:
  terminationGracePeriodSeconds: 7
  containers:
  - {name: server, image: host, command: [server], resources: {requests: {cpu: "1", memory: 1Gi}}}
"""


def pod(name: str, **spec: Any) -> str:
    container = {"name": "main", "image": "host", "command": ["x"]}
    body = {"containers": [container], **spec}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": f"u-{name}"}, "spec": body}
    )


def requesting(name: str, cpu: str, **spec: Any) -> str:
    container = {
        "name": "main",
        "image": "host",
        "command": ["x"],
        "resources": {"requests": {"cpu": cpu}},
    }
    return pod(name, containers=[container], **spec)


def limited(name: str, memory: str, **more: Any) -> str:
    resources = {"requests": {"memory": "16Mi"}, "limits": {"memory": memory}}
    container = {"name": "main", "image": "host", "command": ["x"], "resources": resources}
    return pod(name, containers=[{**container, **more}])


def phase(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    return shown.status.phase if shown else ""


def test_a_pod_that_is_handed_in_runs(place):
    async def story(agent: Agent) -> None:
        applied = await agent.apply(pods_of(WEB))
        assert [one.outcome for one in applied] == ["created"]
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, story)
    assert place.runtime.running() == {"server"}
    assert "/evenkeel/kubepods/burstable/podu-web/server" in place.kernel.cgroups


def test_the_attempt_is_in_the_journal_and_the_cgroup_made_before_the_start(place):
    seen: list[object] = []

    def on_start(launch: Launch) -> None:
        with Journal.read(f"{place.directory}/journal.db") as journal:
            (held,) = journal.pods()
        seen.append((held.state.container("server").attempt, held.state.container("server").is_asked_for))
        seen.append("memory.min" in place.kernel.cgroups[launch.cgroup])

    async def story(agent: Agent) -> None:
        place.runtime.on_start = on_start
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, story)
    assert seen == [(1, True), True]


def test_a_pod_that_is_deleted_is_stopped_within_its_grace_and_leaves_nothing(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        assert await agent.delete("default/web")
        await until(lambda: agent.pod("default/web") is None)
        assert not await agent.delete("default/web")

    drive(place, story)
    assert place.runtime.stopped == [(Attempt("u-web", "server", 1), 7)]
    assert place.runtime.removed == ["u-web"]
    assert not any("podu-web" in path for path in place.kernel.cgroups)
    with Journal.read(f"{place.directory}/journal.db") as journal:
        assert journal.pods() == ()


def test_a_pod_that_names_a_port_of_another_pod_of_the_hosts_network_is_taken_with_a_warning(place):
    def web(name: str) -> str:
        container = {"name": "main", "image": "host", "command": ["x"], "ports": [{"containerPort": 80}]}
        return pod(name, containers=[container])

    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(f"{web('a')}\n---\n{web('b')}"))
        await until(lambda: phase(agent, "a") == phase(agent, "b") == "Running")
        warned = [event for event in agent.events() if event.reason == "SharedPort"]
        assert [(event.type, event.pod) for event in warned] == [("Warning", "default/b")]
        assert "is also a port of pod default/a" in warned[0].message

    drive(place, story)


def test_a_pod_for_another_architecture_fails_with_the_reason_of_kubelet_and_others_run(place):
    async def story(agent: Agent) -> None:
        for text in (pod("other", nodeSelector={"kubernetes.io/arch": "pdp11"}), pod("this")):
            await agent.apply(pods_of(text))
        await until(lambda: phase(agent, "other") == "Failed" and phase(agent, "this") == "Running")
        status = agent.pod("default/other").status
        assert status.reason == "NodeAffinity"
        assert "asks for kubernetes.io/arch=pdp11, and this node has" in status.message

    drive(place, story)


@pytest.mark.req("A6", "B2")
def test_pods_are_admitted_in_order_of_arrival_and_refused_with_figures(place):
    async def story(agent: Agent) -> None:
        await agent.apply(
            pods_of("\n---\n".join(requesting(n, c) for n, c in (("a", "3"), ("b", "2"), ("c", "1"))))
        )
        await until(
            lambda: phase(agent, "a") == phase(agent, "c") == "Running" and phase(agent, "b") == "Failed"
        )
        status = agent.pod("default/b").status
        assert (status.reason, "requests 2" in status.message) == ("OutOfcpu", True)

    drive(place, story)


def test_of_many_pods_the_first_start_while_the_others_have_no_cgroups_yet(place):
    """All the same in order of arrival, and those without room are refused."""
    names = [f"p{number:02}" for number in range(50)]
    made: list[int] = []

    async def story(agent: Agent) -> None:
        place.runtime.on_start = lambda _: made.append(
            sum(path.rpartition("/")[2].startswith("podu-") for path in place.kernel.cgroups)
        )
        await agent.apply(pods_of("\n---\n".join(requesting(name, "100m") for name in names)))
        await until(lambda: all(phase(agent, name) in ("Running", "Failed") for name in names))
        assert [phase(agent, name) for name in names] == ["Running"] * 40 + ["Failed"] * 10

    drive(place, story)
    assert [attempt.uid for attempt in place.runtime.starts] == [f"u-{name}" for name in names[:40]]
    assert made[0] < made[-1] == 40


@pytest.mark.req("A6")
def test_a_pod_of_a_file_is_tried_again_when_room_appears(place, tmp_path):
    directory = tmp_path / "pods"
    directory.mkdir()
    (directory / "a.yaml").write_text(requesting("a", "3"))
    (directory / "b.yaml").write_text(requesting("b", "2"))

    async def story(agent: Agent) -> None:
        await until(lambda: phase(agent, "a") == "Running" and phase(agent, "b") == "Failed")
        (directory / "a.yaml").unlink()
        await until(lambda: phase(agent, "b") == "Running")
        assert agent.pod("default/b").status.reason == ""

    drive(place, story, str(directory))


def test_after_a_restart_pods_are_admitted_in_the_order_in_which_they_first_came(place, tmp_path):
    directory = tmp_path / "pods"
    directory.mkdir()
    (directory / "b.yaml").write_text(requesting("late", "3"))

    async def first(agent: Agent) -> None:
        await until(lambda: phase(agent, "late") == "Running")

    drive(place, first, str(directory))
    (directory / "a.yaml").write_text(requesting("early", "3"))

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "early") == "Failed")
        assert phase(agent, "late") == "Running"

    drive(place, second, str(directory))
    assert len(place.runtime.starts) == 1


def test_a_restarted_agent_takes_over_what_runs_and_starts_nothing_twice(place):
    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, first)
    changes = place.kernel.changes
    drive(place, second)
    assert place.runtime.starts == [Attempt("u-web", "server", 1)]
    assert place.kernel.changes == changes  # the kernel was as planned


def test_after_a_restart_of_the_machine_init_containers_run_again_and_after_one_of_the_agent_they_do_not(
    place, monkeypatch
):
    page = {"name": "page", "image": "host", "command": ["x"]}
    boots = iter(["first", "first", "second"])
    monkeypatch.setattr(agent_module, "boot_id", lambda: next(boots))

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(pod("web", initContainers=[page])))
        await until(lambda: place.runtime.starts == [Attempt("u-web", "page", 1)])
        place.runtime.end(Attempt("u-web", "page", 1))
        await until(lambda: phase(agent, "web") == "Running")

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")

    async def third(agent: Agent) -> None:
        await until(lambda: place.runtime.starts[2:] == [Attempt("u-web", "page", 2)])
        assert phase(agent, "web") == "Pending"
        place.runtime.end(Attempt("u-web", "page", 2))
        await until(lambda: place.runtime.starts[3:] == [Attempt("u-web", "main", 2)])

    drive(place, first)
    drive(place, second)
    assert place.runtime.starts == [Attempt("u-web", "page", 1), Attempt("u-web", "main", 1)]
    place.runtime.records.clear()
    drive(place, third)


def test_a_node_whose_runtime_is_away_is_not_ready(place):
    async def story(agent: Agent) -> None:
        assert (ready(agent), agent.not_ready()) == (("True", "the agent is running"), "")
        place.runtime.readiness = Readiness(False, "containerd is away")
        assert ready(agent) == ("False", "nothing can be started: containerd is away")
        assert agent.not_ready() == "containerd is away"

    def ready(agent: Agent) -> tuple[str, str]:
        return next(
            (one.status, one.message) for one in agent.node().status.conditions if one.type == "Ready"
        )

    drive(place, story)


def test_a_container_whose_image_is_missing_waits_for_it_and_has_not_been_tried(place):
    def on_start(launch: Launch) -> None:
        raise NoImage("image x is not there", "ImagePullBackOff")

    async def story(agent: Agent) -> None:
        place.runtime.on_start = on_start
        await agent.apply(pods_of(pod("web", restartPolicy="Never")))
        await until(lambda: waiting(agent) == ("ImagePullBackOff", "image x is not there", 0))
        assert phase(agent, "web") == "Pending"
        reported = [one.message for one in agent.events() if one.reason == "Failed"]
        assert reported == ["cannot start container main: image x is not there"]

    def waiting(agent: Agent) -> tuple[str, str, int]:
        for one in agent.pod("default/web").status.container_statuses:
            if one.state.waiting is not None:
                return (*one.state.waiting, one.restart_count)
        return ("", "", 0)

    drive(place, story)


async def run_a_job(agent: Agent) -> None:
    await agent.apply(pods_of(pod("job", restartPolicy="Never")))
    await until(lambda: phase(agent, "job") == "Running")


def test_an_end_that_nobody_saw_is_known_after_a_restart(place):
    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "job") == "Failed")
        (status,) = agent.pod("default/job").status.container_statuses
        assert (status.state.terminated.exit_code, status.state.terminated.reason) == (3, "Error")

    drive(place, run_a_job)
    place.runtime.end(Attempt("u-job", "main", 1), 3)
    drive(place, second)


def test_a_container_of_which_nobody_knows_anything_has_ended_unseen(place):
    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "job") == "Failed")
        (status,) = agent.pod("default/job").status.container_statuses
        assert status.state.terminated.reason == "ContainerStatusUnknown"

    drive(place, run_a_job)
    place.runtime.records.clear()
    drive(place, second)


def test_a_start_that_was_written_down_and_not_done_is_done_once(place):
    """Killed between the intent and the act."""

    class Killed(Exception):
        pass

    async def first(agent: Agent) -> None:
        started = asyncio.Event()

        async def never(launch: Launch):
            started.set()
            await asyncio.Event().wait()

        place.runtime.start = never
        await agent.apply(pods_of(WEB))
        await started.wait()

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, first)
    del place.runtime.start
    drive(place, second)
    assert place.runtime.starts == [Attempt("u-web", "server", 1)]


def test_a_start_that_was_done_and_not_heard_of_is_not_done_again(place):
    """Killed between the act and its outcome."""
    real = place.runtime.start

    async def first(agent: Agent) -> None:
        done = asyncio.Event()

        async def silent(launch: Launch):
            await real(launch)
            done.set()
            await asyncio.Event().wait()

        place.runtime.start = silent
        await agent.apply(pods_of(WEB))
        await done.wait()

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, first)
    place.runtime.start = real
    drive(place, second)
    assert place.runtime.starts == [Attempt("u-web", "server", 1)]


def test_pods_that_run_are_taken_over_even_if_the_journal_is_lost(place, tmp_path):
    directory = tmp_path / "pods"
    directory.mkdir()
    (directory / "web.yaml").write_text(WEB)

    async def first(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, first, str(directory))
    for file in tmp_path.glob("journal.db*"):
        file.unlink()

    drive(place, first, str(directory))
    assert place.runtime.starts == [Attempt("u-web", "server", 1)]
    assert place.runtime.running() == {"server"}


async def web_runs(agent: Agent) -> None:
    await agent.apply(pods_of(WEB))
    await until(lambda: phase(agent, "web") == "Running")


def lose_journal(place) -> None:
    for file in Path(place.directory).glob("journal.db*"):
        file.unlink()


def lose_copies(place) -> None:
    shutil.rmtree(Path(place.directory, "copies"))


def test_what_runs_and_belongs_to_no_pod_is_stopped(place):
    async def second(agent: Agent) -> None:
        await until(lambda: not place.runtime.running())

    drive(place, web_runs)
    with Journal.open(str(Path(place.directory, "journal.db"))) as journal:
        journal.remove("u-web")
    lose_copies(place)
    drive(place, second)


def test_a_journal_that_is_new_is_no_reason_to_stop_what_runs(place):
    async def second(agent: Agent) -> None:
        raise AssertionError("it has started")

    drive(place, web_runs)
    lose_journal(place)
    lose_copies(place)
    with pytest.raises(EvenkeelError, match="is new, and containers run that it does not know, of pod u-web"):
        drive(place, second)
    assert place.runtime.running()


def test_a_damaged_row_is_no_reason_to_stop_what_runs(place):
    async def second(agent: Agent) -> None:
        raise AssertionError("it has started")

    drive(place, web_runs)
    journal = sqlite3.connect(Path(place.directory, "journal.db"))
    with journal:
        journal.execute("UPDATE pods SET pod = replace(pod, 'server', 'serves')")
    journal.close()
    lose_copies(place)
    for _ in range(2):  # the row is set aside by the first
        with pytest.raises(EvenkeelError, match="is damaged, and containers run of pod u-web"):
            drive(place, second)
    assert place.runtime.running()


def test_a_pod_that_the_journal_has_lost_is_recovered_from_its_copy(place):
    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")
        assert "Recovered" in [one.reason for one in agent.events()]
        (before,), (after,) = pods_of(WEB), agent.pods()
        assert after.spec == before.spec

    drive(place, web_runs)
    lose_journal(place)
    drive(place, second)
    assert len(place.runtime.starts) == 1


def test_a_removed_pod_does_not_come_back_from_a_copy_that_was_left(place):
    """The agent was killed after the journal had forgotten the pod, and before its copy was removed."""
    copies, kept = Path(place.directory, "copies"), Path(place.directory, "kept")

    async def second(agent: Agent) -> None:
        shutil.copytree(copies, kept)
        await agent.delete("default/web", 0)
        await until(lambda: not agent.pods())

    async def third(agent: Agent) -> None:
        assert agent.pods() == ()
        await until(lambda: not [*copies.iterdir()])  # it is removed a moment later

    drive(place, web_runs)
    drive(place, second)
    shutil.rmtree(copies)
    kept.rename(copies)
    assert [*copies.iterdir()]
    drive(place, third)
    assert len(place.runtime.starts) == 1


def test_accepted_pods_that_do_not_run_are_recovered_without_their_journal(place):
    """One waits for room, and one for its back-off."""

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(f"{WEB}---\n{requesting('large', '100')}"))
        await until(lambda: phase(agent, "web") == "Running" and phase(agent, "large") == "Failed")
        for number in (1, 2):
            await until(lambda: len(place.runtime.running()) == 1)
            place.runtime.end(Attempt("u-web", "server", number), 1)
        await until(lambda: not place.runtime.records)  # its end is committed, and the attempt forgotten

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running" and phase(agent, "large") == "Failed")
        assert sorted(one.metadata.name for one in agent.pods()) == ["large", "web"]

    drive(place, first)
    lose_journal(place)
    drive(place, second)


def test_a_deletion_outlives_the_journal_and_so_does_what_comes_after_it(place):
    place.runtime.ignores_term = True

    async def first(agent: Agent) -> None:
        await web_runs(agent)
        await agent.delete("default/web", 30.0)
        (changed,) = pods_of(WEB.replace("name: web", "name: web, labels: {new: again}"))
        await agent.apply([changed._replace(metadata=changed.metadata._replace(uid="u-new"))])
        assert place.runtime.running()

    async def second(agent: Agent) -> None:
        await until(lambda: "u-new" in [one.metadata.uid for one in agent.pods()])
        assert "u-web" not in [one.metadata.uid for one in agent.pods()]

    drive(place, first)
    lose_journal(place)
    place.runtime.ignores_term = False
    drive(place, second)


def test_what_has_ended_for_good_is_not_begun_again_without_the_journal(place):
    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(pod("brief", restartPolicy="Never")))
        await until(lambda: bool(place.runtime.running()))
        place.runtime.end(place.runtime.starts[0])
        await until(lambda: phase(agent, "brief") == "Succeeded")

    async def second(agent: Agent) -> None:
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert agent.pods() == ()

    drive(place, first)
    lose_journal(place)
    drive(place, second)
    assert len(place.runtime.starts) == 1


def test_a_copy_that_is_damaged_is_reported_once(place):
    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(requesting("large", "100")))
        await until(lambda: phase(agent, "large") == "Failed")

    async def second(agent: Agent) -> None:
        await until(lambda: "Lost" in [one.reason for one in agent.events()])
        assert agent.pods() == ()

    drive(place, first)
    lose_journal(place)
    (copy,) = Path(place.directory, "copies").iterdir()
    copy.write_text(copy.read_text().replace('"100"', '"200"'))
    drive(place, second)
    assert not copy.exists()


def test_a_container_that_fails_is_started_again_with_back_off(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        place.runtime.end(Attempt("u-web", "server", 1), 1)
        await until(lambda: len(place.runtime.starts) == 2)
        await until(lambda: phase(agent, "web") == "Running")
        place.runtime.end(Attempt("u-web", "server", 2), 1)

        def waits() -> bool:
            (status,) = agent.pod("default/web").status.container_statuses
            return bool(status.state.waiting and status.state.waiting.reason == "CrashLoopBackOff")

        await until(waits)
        assert len(place.runtime.starts) == 2

    drive(place, story)


def test_an_end_that_is_heard_of_before_the_start_is_the_end(place):
    start = place.runtime.start
    returned: list[Attempt] = []

    async def start_late(launch: Launch) -> Record:
        record = await start(launch)
        place.runtime.end(launch.attempt)
        await until(lambda: launch.attempt not in place.runtime.records)  # the agent has written the end down
        returned.append(launch.attempt)
        return record

    place.runtime.start = start_late

    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(pod("brief", restartPolicy="Never")))
        await until(lambda: phase(agent, "brief") == "Succeeded")
        await until(lambda: bool(returned))
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert phase(agent, "brief") == "Succeeded"
        assert agent.pod("default/brief").status.container_statuses[0].state.terminated is not None

    drive(place, story)


@pytest.mark.req("A17", "A20")
def test_a_best_effort_pod_that_is_oom_killed_is_evicted_at_once(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(pod("batch")))
        await until(lambda: phase(agent, "batch") == "Running")
        place.kernel.oom_kills["/evenkeel/kubepods/besteffort/podu-batch/main"] = 1
        place.runtime.end(Attempt("u-batch", "main", 1), 137, 9)
        await until(lambda: phase(agent, "batch") == "Failed")
        status = agent.pod("default/batch").status
        assert status.reason == "Evicted"
        assert status.container_statuses[0].state.terminated.reason == "OOMKilled"

    drive(place, story)
    assert len(place.runtime.starts) == 1


def test_a_container_that_was_asked_to_end_was_not_killed_for_memory_whatever_the_runtime_says(place):
    async def stop(attempt: Attempt, grace_seconds: float) -> None:
        place.runtime.end(attempt, 137, 9, is_oom_killed=True)

    place.runtime.stop = stop

    async def story(agent: Agent) -> None:
        for name in ("asked", "hit"):
            await agent.apply(pods_of(pod(name)))
            await until(lambda name=name: phase(agent, name) == "Running")
        await agent.delete("default/asked")
        place.runtime.end(Attempt("u-hit", "main", 1), 137, 9, is_oom_killed=True)
        await until(lambda: agent.pod("default/asked") is None and phase(agent, "hit") == "Failed")
        reported = [one.pod for one in agent.events() if one.reason == "OOMKilled"]
        assert reported == ["default/hit"]

    drive(place, story)


@pytest.mark.req("A17")
def test_an_oom_kill_of_an_attempt_before_is_not_counted_again(place):
    def last_reason(agent: Agent) -> str:
        (status,) = agent.pod("default/web").status.container_statuses
        state = status.state.terminated or (status.last_state.terminated if status.last_state else None)
        return state.reason if state else ""

    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        place.kernel.oom_kills["/evenkeel/kubepods/burstable/podu-web/server"] = 1
        place.runtime.end(Attempt("u-web", "server", 1), 137, 9)
        await until(lambda: len(place.runtime.starts) == 2 and phase(agent, "web") == "Running")
        assert last_reason(agent) == "OOMKilled"
        place.runtime.end(Attempt("u-web", "server", 2), 137, 9)
        await until(lambda: last_reason(agent) == "Error")

    drive(place, story)


@pytest.mark.req("D3")
def test_the_pod_level_limit_comes_when_the_last_init_container_has_ended(place):
    text = pod(
        "shared",
        resources={"limits": {"memory": "100Mi"}},
        initContainers=[
            {"name": "init", "image": "host", "command": ["x"], "resources": {"limits": {"memory": "50Mi"}}}
        ],
    )
    path = "/evenkeel/kubepods/burstable/podu-shared"
    limits = []

    def on_start(launch: Launch) -> None:
        limits.append((launch.attempt.container, place.kernel.cgroups[path].get("memory.max", "max")))

    async def story(agent: Agent) -> None:
        place.runtime.on_start = on_start
        await agent.apply(pods_of(text))
        await until(lambda: place.runtime.running() == {"init"})
        await until(lambda: phase(agent, "shared") == "Pending")
        place.runtime.end(Attempt("u-shared", "init", 1), 0)
        await until(lambda: phase(agent, "shared") == "Running")

    drive(place, story)
    assert [name for name, _ in limits] == ["init", "main"]
    assert limits[0][1] != str(100 * 2**20)
    assert limits[1][1] == str(100 * 2**20)


def test_new_amounts_are_applied_in_place(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        applied = await agent.apply(pods_of(WEB.replace("1Gi", "2Gi")))
        assert applied[0].outcome == "configured"
        path = "/evenkeel/kubepods/burstable/podu-web/server"
        await until(lambda: place.kernel.cgroups[path]["memory.min"] == str(2 * 2**30))
        applied = await agent.apply(pods_of(WEB.replace("1Gi", "2Gi")))
        assert applied[0].outcome == "unchanged"

    drive(place, story)
    assert place.runtime.stopped == []
    assert len(place.runtime.starts) == 1


def test_the_status_has_new_amounts_once_the_container_that_must_restart_has(place):
    """As in kubelet: a client that waits for the resize would otherwise mistake the container before its restart for
    the one after it."""
    policy = "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]"
    web = WEB.replace("image: host", f"image: host, {policy}")

    def in_progress(agent: Agent) -> bool:
        shown = agent.pod("default/web")
        assert shown is not None
        return any(one.type == "PodResizeInProgress" for one in shown.status.conditions)

    def reported(agent: Agent) -> tuple[str, str]:
        """The allocated memory, and the actual memory."""
        shown = agent.pod("default/web")
        assert shown is not None
        (status,) = shown.status.container_statuses
        assert status.resources is not None
        return str(status.allocated_resources["memory"]), str(status.resources.requests["memory"])

    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(web))
        await until(lambda: phase(agent, "web") == "Running")
        place.runtime.ignores_term = True
        assert not in_progress(agent)
        await agent.apply(pods_of(web.replace("1Gi", "2Gi")))
        await until(lambda: bool(place.runtime.stopped))
        assert reported(agent) == ("2Gi", "1Gi")
        assert in_progress(agent)
        place.runtime.end(place.runtime.starts[0], 143, 15)
        await until(lambda: not in_progress(agent))
        assert reported(agent) == ("2Gi", "2Gi")
        assert len(place.runtime.starts) == 2

    drive(place, story)


def test_a_limit_below_what_the_pod_holds_waits_until_it_holds_less(place, monkeypatch):
    """Written to the kernel it would be an OOM kill, or be refused."""
    monkeypatch.setattr(in_place_changes, "_TOO_LOW_RETRY_SECONDS", 0.01)
    path = "/evenkeel/kubepods/burstable/podu-big"

    def in_progress(agent: Agent) -> tuple[str, str] | None:
        shown = agent.pod("default/big")
        assert shown is not None
        found = [one for one in shown.status.conditions if one.type == "PodResizeInProgress"]
        return (found[0].reason, found[0].message) if found else None

    def limits() -> list[str]:
        return [place.kernel.cgroups[one]["memory.max"] for one in (path, f"{path}/main")]

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(limited("big", "100Mi")))
        await until(lambda: phase(agent, "big") == "Running")
        place.kernel.memory_bytes = {path: 64 * 2**20, f"{path}/main": 64 * 2**20}
        await agent.apply(pods_of(limited("big", "80Mi")))  # it has room there
        await until(lambda: limits() == [str(80 * 2**20)] * 2)
        await agent.apply(pods_of(limited("big", "32Mi")))
        await until(lambda: in_progress(agent) is not None)
        wanted = "attempting to set pod memory limit (33554432) below current usage (67108864)"
        text = f"cannot decrease memory limits: {wanted}"
        assert in_progress(agent) == ("Error", text)
        assert resize_pending(agent, "big") is None
        assert limits() == [str(80 * 2**20)] * 2
        place.kernel.memory_bytes = dict.fromkeys(place.kernel.memory_bytes, 65 * 2**20)
        await agent.apply(pods_of(limited("big", "32Mi")))
        assert in_progress(agent) == ("Error", text), "another figure is no news"
        assert [one.message for one in agent.events() if one.reason == "ResizeError"] == [text]

    async def second(agent: Agent) -> None:
        """After a restart it is known still, and found out again why it waits."""
        await until(lambda: in_progress(agent) is not None)
        assert limits() == [str(80 * 2**20)] * 2
        place.kernel.memory_bytes = {}
        await until(lambda: in_progress(agent) is None)
        assert limits() == [str(32 * 2**20)] * 2

    drive(place, first)
    drive(place, second)
    assert len(place.runtime.starts) == 1


def test_a_container_that_must_restart_for_a_lower_limit_has_the_higher_one_to_its_end(place):
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    path = "/evenkeel/kubepods/burstable/podu-big/main"

    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(limited("big", "100Mi", resizePolicy=policy)))
        await until(lambda: phase(agent, "big") == "Running")
        place.kernel.memory_bytes = {path: 64 * 2**20, path.removesuffix("/main"): 64 * 2**20}
        place.runtime.ignores_term = True
        await agent.apply(pods_of(limited("big", "32Mi", resizePolicy=policy)))
        await until(lambda: bool(place.runtime.stopped))
        assert place.kernel.cgroups[path]["memory.max"] == str(100 * 2**20)
        place.kernel.memory_bytes = {}
        place.runtime.end(place.runtime.starts[0], 143, 15)
        await until(lambda: len(place.runtime.starts) == 2)
        assert place.kernel.cgroups[path]["memory.max"] == str(32 * 2**20)

    drive(place, story)


def resize_pending(agent: Agent, name: str) -> tuple[str, str] | None:
    shown = agent.pod(f"default/{name}")
    assert shown is not None
    found = [one for one in shown.status.conditions if one.type == "PodResizePending"]
    return (found[0].reason, found[0].message) if found else None


def test_a_pod_that_wants_more_than_there_is_gets_it_when_room_appears(place):
    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(requesting("a", "2") + "\n---\n" + requesting("b", "1")))
        await until(lambda: phase(agent, "a") == phase(agent, "b") == "Running")
        await agent.apply(pods_of(requesting("b", "3")))
        await until(lambda: any(one.reason == "ResizeDeferred" for one in agent.events()))
        assert place.kernel.cgroups["/evenkeel/kubepods/burstable/podu-b"].get("cpu.weight", "100") == before
        await until(lambda: resize_pending(agent, "b") is not None)

    async def second(agent: Agent) -> None:
        await until(lambda: resize_pending(agent, "b") is not None)
        pending = resize_pending(agent, "b")
        assert pending is not None
        assert pending[0] == "Deferred"
        assert "requests 3 of cpu" in pending[1]
        await agent.delete("default/a")
        await until(
            lambda: (
                place.kernel.cgroups["/evenkeel/kubepods/burstable/podu-b"].get("cpu.weight", "100") != before
            )
        )

        await until(lambda: resize_pending(agent, "b") is None)

    before = str(weight_keeping_ratio(shares(1000)))
    drive(place, first)
    drive(place, second)
    assert place.runtime.stopped == [(Attempt("u-a", "main", 1), 30)]


def test_a_resize_that_is_granted_is_not_lost_by_a_crash_before_the_end_of_the_step(place, monkeypatch):
    def wants(agent: Agent) -> str:
        return str(agent.pod("default/b").spec.containers[0].resources.requests["cpu"])

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(requesting("a", "2") + "\n---\n" + requesting("b", "1")))
        await until(lambda: phase(agent, "a") == phase(agent, "b") == "Running")
        await agent.apply(pods_of(requesting("b", "3")))
        await until(lambda: resize_pending(agent, "b") is not None)
        save, granted = Journal.save, []

        def crash(journal: Journal, record: PodRecord) -> None:
            if record.uid == "u-b" and record.pod.spec.containers[0].resources.requests["cpu"] == Quantity(
                "3"
            ):
                granted.append(record)
                raise JournalError("the agent is killed here")
            save(journal, record)

        monkeypatch.setattr(Journal, "save", crash)
        await agent.delete("default/a")
        await until(lambda: bool(granted))

    async def second(agent: Agent) -> None:
        await until(lambda: wants(agent) == "3")

    drive(place, first)
    monkeypatch.undo()
    drive(place, second)


def test_a_resize_that_can_never_be_had_is_reported_as_such_until_it_is_taken_back(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(requesting("a", "1")))
        await until(lambda: phase(agent, "a") == "Running")
        await agent.apply(pods_of(requesting("a", "1000")))
        await until(lambda: (resize_pending(agent, "a") or ("",))[0] == "Infeasible")
        await agent.apply(pods_of(requesting("a", "1")))
        await until(lambda: resize_pending(agent, "a") is None)

    drive(place, story)


def test_a_pod_that_was_changed_otherwise_ends_and_starts_anew(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        await agent.apply(pods_of(WEB.replace("[server]", "[server, -v]")))
        await until(lambda: len(place.runtime.starts) == 2)
        await until(lambda: phase(agent, "web") == "Running")

    drive(place, story)
    assert place.runtime.running() == {"server"}


def test_a_replacement_survives_the_death_of_the_agent(place):
    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")
        place.runtime.ignores_term = True
        await agent.apply(pods_of(WEB.replace("[server]", "[server, -v]")))
        await until(lambda: bool(place.runtime.stopped))

    async def second(agent: Agent) -> None:
        await until(lambda: len(place.runtime.starts) == 2 and phase(agent, "web") == "Running")
        assert agent.pod("default/web").spec.containers[0].command == ("server", "-v")

    drive(place, first)
    place.runtime.ignores_term = False
    drive(place, second)


def test_a_pod_that_cannot_be_started_says_why(place):
    def refuse(launch: Launch) -> None:
        raise StartFailed("command server is not found")

    async def story(agent: Agent) -> None:
        place.runtime.on_start = refuse
        await agent.apply(pods_of(WEB.replace("spec:", "spec:\n  restartPolicy: Never", 1)))
        await until(lambda: phase(agent, "web") == "Failed")
        (status,) = agent.pod("default/web").status.container_statuses
        assert status.state.terminated.reason == "StartError"
        assert "command server is not found" in status.state.terminated.message

    drive(place, story)


@pytest.mark.parametrize(
    ("init", "reason"), [([], "ContainerCreating"), ([{"name": "first", "image": "host"}], "PodInitializing")]
)
def test_a_pod_waits_for_a_volume_that_cannot_be_made_whatever_its_restart_policy_is(place, init, reason):
    def refuse(launch: Launch) -> None:
        raise NotPrepared("hostPath /srv/data is not there", FAILED_MOUNT)

    async def story(agent: Agent) -> None:
        place.runtime.on_start = refuse
        await agent.apply(pods_of(pod("web", restartPolicy="Never", initContainers=init)))
        await until(lambda: any(event.reason == FAILED_MOUNT for event in agent.events()))
        status = agent.pod("default/web").status
        first = (*status.init_container_statuses, *status.container_statuses)[0]
        assert (status.phase, first.restart_count) == ("Pending", 0)
        assert first.state.waiting == (reason, "hostPath /srv/data is not there")

    drive(place, story)


def test_what_the_runtime_cannot_honour_is_refused_with_a_sentence(place):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB.replace("image: host", "image: nginx")))
        await until(lambda: phase(agent, "web") == "Failed")
        assert "image nginx is not host" in agent.pod("default/web").status.message

    drive(place, story)


def test_a_pod_of_a_file_is_not_the_sockets_to_change(place, tmp_path):
    (tmp_path / "web.yaml").write_text(WEB)

    async def story(agent: Agent) -> None:
        await until(lambda: phase(agent, "web") == "Running")
        with pytest.raises(EvenkeelError, match=r"stands in .*web\.yaml"):
            await agent.apply(pods_of(WEB))
        with pytest.raises(EvenkeelError, match=r"stands in .*web\.yaml"):
            await agent.delete("default/web")

    drive(place, story, str(tmp_path / "web.yaml"))


def test_while_the_journal_cannot_be_written_nothing_new_is_started_and_what_runs_goes_on(place, monkeypatch):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: phase(agent, "web") == "Running")

        refused = []

        def full(_: Journal, record: PodRecord) -> None:
            refused.append(record)
            raise JournalError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "save", full)
            with pytest.raises(JournalError):
                await agent.apply(pods_of(pod("more")))
            place.runtime.end(Attempt("u-web", "server", 1), 1)
            await until(lambda: [one.pod.metadata.name for one in refused].count("web") >= 2)
            assert place.runtime.starts == [Attempt("u-web", "server", 1)]
        await until(lambda: len(place.runtime.starts) == 2)

    drive(place, story)


def test_cores_of_their_own_are_kept_across_a_restart(tmp_path):
    place = Place(str(tmp_path), KubeletConfiguration(eviction_hard={}, cpu_manager_policy="static"))

    def whole(name: str) -> str:
        amounts = {"limits": {"cpu": "1", "memory": "64Mi"}}
        return pod(
            name, containers=[{"name": "main", "image": "host", "command": ["x"], "resources": amounts}]
        )

    def cpus(name: str) -> str:
        return place.kernel.cgroups[f"/evenkeel/kubepods/podu-{name}/main"]["cpuset.cpus"]

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(f"{whole('a')}\n---\n{whole('b')}"))
        await until(lambda: phase(agent, "a") == phase(agent, "b") == "Running")
        before.update(a=cpus("a"), b=cpus("b"))
        await agent.delete("default/a")
        await until(lambda: agent.pod("default/a") is None)

    async def second(agent: Agent) -> None:
        await until(lambda: phase(agent, "b") == "Running")
        assert cpus("b") == before["b"]

    before: dict[str, str] = {}
    asyncio.run(_within(place, first))
    asyncio.run(_within(place, second))
    assert before["a"] != before["b"]


async def _within(place: Place, story: Callable[[Agent], Awaitable[None]]) -> None:
    async with place.agent() as agent:
        await story(agent)


def test_stopping_the_pods_leaves_nothing(place):
    async def main() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(WEB))
            await until(lambda: phase(agent, "web") == "Running")
            await agent.close(stop_pods=True)

    asyncio.run(main())
    assert not place.runtime.running()
    assert not place.kernel.cgroups  # the root that was made for the pods is gone too


def test_pods_that_are_being_stopped_can_be_killed(place):
    async def main() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(WEB))
            await until(lambda: phase(agent, "web") == "Running")
            place.runtime.ignores_term = True
            closing = asyncio.create_task(agent.close(stop_pods=True))
            await until(lambda: len(place.runtime.stopped) == 1)
            agent.kill_pods()
            await closing

    asyncio.run(main())
    (_, patient), (_, at_once) = place.runtime.stopped
    assert patient > at_once
    assert at_once == 0
    assert not place.runtime.running()


def test_stopping_the_pods_stops_sidecars_last_and_backwards(place):
    sidecars = [
        {"name": name, "image": "host", "command": ["x"], "restartPolicy": "Always"}
        for name in ("proxy", "log")
    ]

    async def main() -> None:
        async with place.agent() as agent:
            await agent.apply(pods_of(pod("web", initContainers=sidecars)))
            await until(lambda: len(place.runtime.running()) == 3)
            await agent.close(stop_pods=True)

    asyncio.run(main())
    assert [attempt.container for attempt, _ in place.runtime.stopped] == ["main", "log", "proxy"]
    assert not place.runtime.running()


@pytest.mark.req("B13")
def test_what_was_set_on_the_cgroup_of_daemons_is_put_back_when_that_is_switched_off(tmp_path):
    def place_with(**settings: Any) -> Place:
        return Place(str(tmp_path), KubeletConfiguration(eviction_hard={}, **settings))

    async def story(agent: Agent) -> None:
        await until(lambda: agent.node() is not None)

    enforcing = place_with(
        kube_reserved={"memory": "1Gi"},
        kube_reserved_cgroup="/daemons",
        enforce_node_allocatable=("pods", "kube-reserved"),
    )
    kernel = enforcing.kernel
    kernel.cgroups["/daemons"] = {"memory.max": str(5 * 2**30)}
    drive(enforcing, story)
    assert kernel.cgroups["/daemons"]["memory.max"] == str(2**30)
    without = place_with()
    without.kernel = kernel
    drive(without, story)
    assert kernel.cgroups["/daemons"]["memory.max"] == str(5 * 2**30)


def test_of_pods_that_are_over_the_latest_are_kept(place, monkeypatch):
    monkeypatch.setattr("evenkeel.agent.desired_pods._MOST_OVER", 2)

    async def story(agent: Agent) -> None:
        for number in range(4):
            await agent.apply(pods_of(requesting(f"p{number}", "100")))
            await until(lambda number=number: phase(agent, f"p{number}") == "Failed")
        await until(lambda: {one.metadata.name for one in agent.pods()} == {"p1", "p2", "p3"})

    drive(place, story)


def test_the_journal_is_kept_short_and_its_loss_is_reported_once(place, monkeypatch, caplog):
    monkeypatch.setattr("evenkeel.agent.background_loops._CHECKPOINT_SECONDS", 0.001)
    monkeypatch.setattr("evenkeel.agent.background_loops._PLACE_SECONDS", 0.001)
    calls = []
    checkpoint = Journal.checkpoint

    def counted(journal: Journal) -> None:
        calls.append(threading.current_thread() is threading.main_thread())
        checkpoint(journal)

    looks = []
    check_place = Journal.check_place

    def looked(journal: Journal) -> None:
        looks.append(journal)
        check_place(journal)

    monkeypatch.setattr(Journal, "checkpoint", counted)
    monkeypatch.setattr(Journal, "check_place", looked)

    async def story(agent: Agent) -> None:
        await until(lambda: len(calls) > 2)
        path = Path(place.directory, "journal.db")
        path.rename(path.with_suffix(".away"))
        await until(lambda: "was removed or replaced" in agent.not_ready())
        before = len(looks)
        await until(lambda: len(looks) > before + 10)  # each look could report it once more
        path.with_suffix(".away").rename(path)
        await until(lambda: not agent.not_ready())

    drive(place, story)
    assert not any(calls), "waiting for the disk is not the loop's"
    reported = [record for record in caplog.records if "journal.db" in record.getMessage()]
    assert len(reported) == 1


def test_what_the_kernel_lacks_is_reported_once_however_pods_come_and_go(place):
    place.kernel.absent["memory.high"] = NotAvailable("no memory.high here", path="/", file="memory.high")
    limits = {"cpu": "10m", "memory": "64Mi"}

    def with_memory(name: str, requested: str) -> str:
        amounts = {"requests": {"cpu": "10m", "memory": requested}, "limits": limits}
        return pod(
            name, containers=[{"name": "main", "image": "host", "command": ["x"], "resources": amounts}]
        )

    async def story(agent: Agent) -> None:
        # b is Guaranteed and has no memory.high (C2).
        for text in (with_memory("a", "16Mi"), with_memory("b", "64Mi"), with_memory("c", "16Mi")):
            (one,) = pods_of(text)
            await agent.apply([one])
            await until(lambda one=one: phase(agent, one.metadata.name) == "Running")
        agent.cgroups.heal()
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        reported = [one for one in agent.events() if one.reason == "CgroupRefused"]
        assert [(one.message, one.times) for one in reported] == [
            ("memory.high is not available on this kernel", 1)
        ]

    drive(place, story)


@pytest.mark.parametrize("seconds", [3600.0, -7200.0])
def test_a_clock_that_is_set_neither_ends_nor_lengthens_a_back_off(place, seconds):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(pod("fails")))
        await until(lambda: place.runtime.running() == {"main"})
        place.runtime.end(place.runtime.starts[0], 1)
        await until(lambda: len(place.runtime.starts) == 2)  # the first restart is at once
        place.runtime.end(place.runtime.starts[1], 1)
        await until(lambda: waits_for(agent, "fails") == "CrashLoopBackOff")
        starts = len(place.runtime.starts)
        place.clock.jump_seconds = seconds
        agent.steps.want_step()
        await agent.pod_loop.stepped()
        assert waits_for(agent, "fails") == "CrashLoopBackOff"
        assert len(place.runtime.starts) == starts
        place.now += 11  # the first back-off is ten seconds
        agent.steps.want_step()
        await until(lambda: len(place.runtime.starts) == starts + 1)

    drive(place, story)


@pytest.mark.parametrize("seconds", [3600.0, -7200.0])
def test_a_clock_that_is_set_does_not_change_how_long_a_pod_may_take_to_end(place, seconds):
    async def story(agent: Agent) -> None:
        await agent.apply(pods_of(WEB))
        await until(lambda: place.runtime.running() == {"server"})
        place.runtime.ignores_term = True
        await agent.delete("default/web")
        await until(lambda: bool(place.runtime.stopped))
        place.clock.jump_seconds = seconds
        agent.steps.want_step("u-web")
        await agent.pod_loop.stepped()
        assert all(0 <= grace <= 7 for _, grace in place.runtime.stopped)

    drive(place, story)


def waits_for(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    assert shown is not None
    (status,) = shown.status.container_statuses
    return status.state.waiting.reason if status.state.waiting else ""


def test_the_next_agent_shows_the_same_times_of_a_pod_that_crashes_again_and_again(place):
    probe = {"exec": {"command": ["x"]}, "periodSeconds": 1000}
    container = {"name": "main", "image": "host", "command": ["x"], "readinessProbe": probe}
    shown: list[tuple[str, str | None]] = []

    def times(agent: Agent) -> list[tuple[str, str | None]]:
        found = agent.pod("default/fails")
        assert found is not None
        return [(one.type, one.last_transition_time) for one in found.status.conditions]

    async def first(agent: Agent) -> None:
        await agent.apply(pods_of(pod("fails", containers=[container])))
        await until(lambda: place.runtime.running() == {"main"})
        for restart in range(2):
            place.now += 5
            place.runtime.end(place.runtime.starts[restart], 1)
            await until(lambda: len(place.runtime.starts) == 2)
        await until(lambda: waits_for(agent, "fails") == "CrashLoopBackOff")
        shown.extend(times(agent))

    async def second(agent: Agent) -> None:
        assert times(agent) == shown

    drive(place, first)
    drive(place, second)
