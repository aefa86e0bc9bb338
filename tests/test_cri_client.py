"""Containers through a container runtime that answers, does not answer, answers too late, and forgets."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.container import EphemeralContainer
from evenkeel.cgroup.tree import Setting
from evenkeel.errors import EvenkeelError
from evenkeel.host.disk_usage import Usage
from evenkeel.runtime.cri import (
    container_calls,
    container_start,
    cri_runtime,
    cri_status,
    log_rotation,
    runtime_link,
)
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import ATTEMPT, CONTAINER
from evenkeel.runtime.cri.cri_connection import Connection
from evenkeel.runtime.cri.cri_runtime import CriRuntime
from evenkeel.runtime.cri.log_rotation import to_rotate
from evenkeel.runtime.interface import Attempt, Exited, Launch, RuntimeLost
from evenkeel.runtime.paths import state_paths
from evenkeel.runtime.procfs import process_at
from evenkeel.runtime.start_errors import NoImage, NotPrepared, StartFailed
from tests.cri_launches import POD, WITHIN_SECONDS, launch, opened, runtime_at, until
from tests.fake_cri import FakeCri
from tests.kernel.waiting import eventually

OWN_USERS = POD.replace("spec:", "spec:\n  hostUsers: false")


@pytest.fixture(scope="module", autouse=True)
def _threads_end() -> Iterator[None]:
    """gRPC's own threads end some time after the last of its objects, and open and close descriptors until then: other
    tests of this process count those."""
    threads = Path("/proc/self/task")
    before = len(list(threads.iterdir()))
    yield
    gc.collect()
    eventually(lambda: len(list(threads.iterdir())) <= before)


@pytest.fixture(autouse=True)
def _log_is_dropped(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """pytest keeps the log of a test for its report, with the errors in it, and these refer to objects of gRPC. If the
    test is the last of this module in its process, the threads would not end."""
    yield
    caplog.get_records("call").clear()


@pytest.fixture
def story(tmp_path, monkeypatch) -> Callable[[Callable[[FakeCri, str], Awaitable[None]]], None]:
    """Runs a test's coroutine with a runtime that has just started, and ends whatever is left."""
    monkeypatch.setattr(runtime_link, "FIRST_CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(runtime_link, "LIST_SECONDS", 0.2)
    monkeypatch.setattr(cri_status, "UNSEEN_SECONDS", 0.1)
    monkeypatch.setattr(cri_runtime, "_STOP_SLACK_SECONDS", 0.1)

    async def run_story(tell: Callable[[FakeCri, str], Awaitable[None]]) -> None:
        fake = FakeCri(str(tmp_path / "s"))
        await fake.start()
        try:
            async with asyncio.timeout(3 * WITHIN_SECONDS):
                await tell(fake, str(tmp_path / "state"))
        finally:
            await fake.close()

    return lambda tell: asyncio.run(run_story(tell))


async def next_event(runtime: CriRuntime, kind: type) -> Any:
    async with asyncio.timeout(WITHIN_SECONDS):
        async for event in runtime.events():
            if isinstance(event, kind):
                return event
    raise AssertionError


def test_a_container_is_started_once_however_often_it_is_asked_for(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            first, second = await asyncio.gather(runtime.start(launch()), runtime.start(launch()))
            assert first == second == await runtime.start(launch())
            assert first.process is not None
            assert first.id.startswith("fake://container")
            assert fake.counted("StartContainer") == fake.counted("CreateContainer") == 1
            assert dict(runtime.placed("u-1") or ())["main"] == fake.running()[0]

    story(tell)


def debugger(name: str = "debugger", **more: Any) -> Launch:
    """The start of an ephemeral container beside the container of `launch`."""
    asked = launch()
    one = EphemeralContainer(name, "local/busybox:1", ("a",), target_container_name="main")
    pod = asked.pod.with_ephemeral(one)
    pod = pod._replace(spec=pod.spec._replace(**more))
    return asked._replace(attempt=Attempt("u-1", name, 1), pod=pod, container=one.container)


def test_an_ephemeral_container_enters_the_process_namespace_of_its_target(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            with pytest.raises(
                StartFailed, match='container "main", whose processes it is to see, does not run'
            ):
                await runtime.start(debugger())
            main = await runtime.start(launch())
            await runtime.start(debugger())
            options = list(fake.containers.values())[-1].config.linux.security_context.namespace_options
            assert options.pid == pb.NamespaceMode.TARGET
            assert main.id.endswith(options.target_id)
            assert options.target_id
            await runtime.start(debugger("another", share_process_namespace=True))
            options = list(fake.containers.values())[-1].config.linux.security_context.namespace_options
            assert (options.pid, options.target_id) == (pb.NamespaceMode.POD, "")

    story(tell)


def test_a_start_whose_containers_cannot_be_listed_is_tried_again_and_then_fails(story, monkeypatch):
    """What the agent itself lists is not refused: the runtime is there."""
    monkeypatch.setattr(container_start, "_LONGEST_WAIT_SECONDS", 0.2)
    of_target: list[str] = []
    of_attempt: list[str] = []

    def refuse(labels: dict[str, str]) -> None:
        if CONTAINER in labels:
            asked = of_attempt if ATTEMPT in labels else of_target
            asked.append(labels[CONTAINER])
            if asked is of_target or len(of_attempt) < 5:
                raise FileExistsError("the list is locked")

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            fake.on_list = refuse
            with pytest.raises(StartFailed, match="the list is locked"):
                await runtime.start(debugger())
            assert len(fake.containers) == 1
            assert len(of_attempt) == 5, "it fails when it is known that nothing of it is left"
            fake.on_list = lambda _: None
            assert (await runtime.start(debugger())).exit is None

    story(tell)


@pytest.mark.req("B11")
def test_what_images_take_is_what_the_runtime_says(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            assert await runtime.images_usage() == Usage(4096 * len(fake.images), len(fake.images))

    story(tell)


def test_a_start_asks_for_nothing_twice_and_for_nothing_that_it_does_not_need(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            before = len(fake.calls)
            await runtime.start(launch())
            asked = [name for name in fake.calls[before:] if not name.startswith("List")]  # looks go on
            needed = ["RunPodSandbox", "CreateContainer", "StartContainer", "ContainerStatus"]
            assert [name for name in asked if name in needed] == needed
            assert sorted(asked) == sorted([*needed, "ImageStatus", "PodSandboxStatus"])

    story(tell)


def test_everything_but_the_sandbox_is_ready_while_that_is_being_made(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.hangs = {"RunPodSandbox"}
        async with opened(fake, directory) as runtime:
            starting_ = asyncio.create_task(runtime.start(launch()))
            message = Path(state_paths(directory).termination_log("u-1", "main", 1))
            await until(lambda: fake.counted("RunPodSandbox") and message.exists())
            assert fake.counted("ImageStatus") == 1
            assert not fake.counted("CreateContainer")
            starting_.cancel()

    story(tell)


@pytest.mark.parametrize("lost", ["RunPodSandbox", "CreateContainer", "StartContainer"])
def test_an_answer_that_is_lost_starts_nothing_twice(story, lost):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.loses.add(lost)
            record = await runtime.start(launch())
            assert record.exit is None
            assert len(fake.containers) == len(fake.running()) == 1
            assert len(fake.sandboxes) == 1

    story(tell)


def test_a_start_that_hangs_is_not_said_to_have_failed_before_nothing_of_it_is_left(story, monkeypatch):
    monkeypatch.setattr(container_start, "_START_SECONDS", 0.2)

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.hangs.add("StartContainer")
            with pytest.raises(StartFailed, match="StartContainer"):
                await runtime.start(launch())
            assert not fake.containers

    story(tell)


def test_a_pod_waits_for_a_sandbox_that_the_runtime_cannot_make(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.refuses["RunPodSandbox"] = "failed to setup network"
            with pytest.raises(NotPrepared, match="failed to setup network") as refused:
                await runtime.start(launch())
            assert (refused.value.reason, refused.value.event) == (
                "ContainerCreating",
                "FailedCreatePodSandBox",
            )
            del fake.refuses["RunPodSandbox"]
            assert (await runtime.start(launch())).exit is None

    story(tell)


def test_what_the_runtime_says_of_a_start_that_failed_is_reported_and_nothing_is_left(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.refuses["StartContainer"] = "exec: no such program"
            with pytest.raises(StartFailed, match="no such program"):
                await runtime.start(launch())
            assert not fake.containers
            assert await runtime.containers() == {}

    story(tell)


def test_an_end_is_reported_with_its_exit_code(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            fake.containers[fake.running()[0]].kill()
            event = await next_event(runtime, Exited)
            assert (event.exit.exit_code, event.exit.signal, event.exit.is_known) == (137, 9, True)
            assert dict(runtime.placed("u-1") or ()).get("main") is None
            await runtime.forget(event.attempt)
            assert not fake.containers

    story(tell)


@pytest.mark.req("A17")
def test_the_kernels_count_is_read_before_the_runtime_is_asked_which_removes_the_cgroup(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            container = fake.containers[fake.running()[0]]
            fake.oom_kills[container.cgroup] = 1
            fake.on_status = fake.oom_kills.clear
            container.kill()
            event = await next_event(runtime, Exited)
            assert (event.exit.oom_kills, event.exit.is_oom_killed) == (1, False)

    story(tell)


def test_an_end_that_the_runtime_is_slow_to_notice_is_waited_for(story, monkeypatch):
    """The kernel reports the end when the process becomes a zombie. The runtime reaps it, and knows of the end, some
    time later."""

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            container = fake.containers[fake.running()[0]]
            monkeypatch.setattr(runtime_link, "LIST_SECONDS", 3600.0)
            looks = fake.counted("ListContainers")
            await until(lambda: fake.counted("ListContainers") > looks)  # the last one
            fake.oom_kills[container.cgroup] = 1
            container.is_unnoticed = True
            assert container.process is not None
            asked = fake.counted("ContainerStatus")
            container.process.send_signal(signal.SIGKILL)
            await until(lambda: fake.counted("ContainerStatus") > asked + 2)
            container.is_unnoticed = False
            event = await next_event(runtime, Exited)
            assert (event.exit.exit_code, event.exit.oom_kills) == (137, 1)

    story(tell)


@pytest.mark.req("A17")
def test_an_oom_kill_that_the_runtime_learns_of_after_the_end_is_reported_as_a_second_end(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            container = fake.containers[fake.running()[0]]
            container.kill()
            first = await next_event(runtime, Exited)
            assert (first.exit.oom_kills, first.exit.is_oom_killed) == (None, False)
            container.reason = "OOMKilled"
            second = await next_event(runtime, Exited)
            assert second.attempt == first.attempt
            assert second.exit == first.exit._replace(is_oom_killed=True)

    story(tell)


def test_an_end_is_heard_of_by_listing_where_the_process_cannot_be_seen(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.tells_pids = False
        async with opened(fake, directory) as runtime:
            record = await runtime.start(launch())
            assert record.process is None
            fake.containers[fake.running()[0]].kill()
            assert (await next_event(runtime, Exited)).exit.exit_code == 137

    story(tell)


def test_an_end_that_the_runtime_tells_of_is_heard_of_without_listing(story, monkeypatch):
    async def tell(fake: FakeCri, directory: str) -> None:
        monkeypatch.setattr(runtime_link, "LIST_SECONDS", 3600.0)
        fake.tells_pids = False
        fake.events = asyncio.Queue()
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await until(lambda: fake.counted("GetContainerEvents"))
            (id_,) = fake.running()
            fake.events.put_nowait(pb.ContainerEventResponse(container_id="another's"))
            fake.events.put_nowait(pb.ContainerEventResponse(container_id=id_))  # that it was started
            fake.containers[id_].kill()
            kind = pb.ContainerEventType.CONTAINER_STOPPED_EVENT
            fake.events.put_nowait(pb.ContainerEventResponse(container_id=id_, container_event_type=kind))
            assert (await next_event(runtime, Exited)).exit.exit_code == 137

    story(tell)


def test_another_agent_finds_what_runs_and_starts_nothing(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            before = await runtime.start(launch())
        async with opened(fake, directory) as runtime:
            assert (await runtime.containers())[launch().attempt].process == before.process
            await runtime.start(launch())
            assert fake.counted("StartContainer") == 1
        async with opened(fake, f"{directory}-of-another") as runtime:
            assert await runtime.containers() == {}, "what another agent started is not ours"

    story(tell)


def test_a_container_that_was_made_and_not_started_is_made_anew(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.hangs.add("StartContainer")
            waiting = asyncio.ensure_future(runtime.start(launch()))
            await until(lambda: fake.counted("StartContainer"))
            waiting.cancel()
        fake.hangs.clear()
        async with opened(fake, directory) as runtime:
            assert await runtime.containers() == {}
            await runtime.start(launch())
            assert len(fake.containers) == len(fake.running()) == 1

    story(tell)


@pytest.mark.req("A24")
def test_while_the_runtime_is_away_containers_run_on_and_end_by_their_cgroups(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await fake.stop()
            assert not (await next_event(runtime, RuntimeLost)).is_back
            assert not runtime.readiness.is_ready
            assert (await runtime.containers())[launch().attempt].exit is None
            await runtime.stop(launch().attempt, 0)
            event = await next_event(runtime, Exited)
            assert not event.exit.is_known
            assert fake.running() == []

    story(tell)


def test_a_runtime_that_comes_back_is_used_again(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await fake.stop()
            await until(lambda: not runtime.readiness.is_ready)
            starting_ = asyncio.ensure_future(runtime.start(launch()))
            await asyncio.sleep(0.1)
            assert not starting_.done(), "it waits a while"
            await fake.start()
            assert (await starting_).exit is None
            assert runtime.readiness.is_ready
            assert [(await next_event(runtime, RuntimeLost)).is_back for _ in range(2)] == [False, True]

    story(tell)


def test_a_start_fails_after_a_while_if_the_runtime_stays_away(story, monkeypatch):
    monkeypatch.setattr(cri_runtime, "_START_PATIENCE_SECONDS", 0.1)

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await fake.stop()
            await until(lambda: not runtime.readiness.is_ready)
            with pytest.raises(StartFailed, match="away"):
                await runtime.start(launch())

    story(tell)


def test_a_runtime_that_hangs_is_away(story, monkeypatch):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            monkeypatch.setattr("evenkeel.runtime.cri.cri_connection.SECONDS", 0.2)
            fake.hangs.update(("ListContainers", "Version"))
            await until(lambda: not runtime.readiness.is_ready)
            assert "did not answer" in runtime.readiness.message
            fake.hangs.clear()
            await until(lambda: runtime.readiness.is_ready)

    story(tell)


def test_a_container_that_the_runtime_has_lost_is_ended_before_it_is_said_to_be_over(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            (lost,) = fake.containers.values()
            killed = []

            def kill(cgroup: str) -> None:
                killed.append(cgroup)
                lost.kill()

            fake.kill = kill  # type: ignore[method-assign]
            fake.containers.clear()
            fake.sandboxes.clear()
            event = await next_event(runtime, Exited)
            assert not event.exit.is_known
            assert killed == [lost.cgroup]
            assert lost.state == "exited"
            await runtime.start(launch(2))
            assert len(fake.running()) == 1

    story(tell)


def test_an_agent_that_starts_while_the_runtime_is_away_knows_its_containers(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            record = await runtime.start(launch())
            placed = dict(runtime.placed("u-1") or ())
        await fake.stop()
        async with opened(fake, directory) as runtime:
            assert not runtime.readiness.is_ready
            assert (await runtime.containers())[launch().attempt].process == record.process
            assert dict(runtime.placed("u-1") or ())["main"] == placed["main"]
            await fake.start()
            await until(lambda: runtime.readiness.is_ready)
            assert await runtime.start(launch()) is not None
            assert fake.counted("StartContainer") == 1

    story(tell)


def test_an_agent_without_containers_does_not_start_without_its_runtime(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        await fake.stop()
        runtime = runtime_at(fake, directory)
        with pytest.raises(EvenkeelError, match="no container runtime answers"):
            await runtime.open()
        await runtime.close()

    story(tell)


def test_two_cgroup_drivers_are_an_error_that_names_the_mend(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.systemd_cgroup = True
        runtime = runtime_at(fake, directory)
        with pytest.raises(EvenkeelError, match=r"makes cgroups by systemd.*--cgroup-driver systemd"):
            await runtime.open()
        await runtime.close()

    story(tell)


def test_an_image_that_is_not_there_is_fetched_or_missed_as_its_policy_says(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        other = POD.replace("local/busybox:1", "local/other:1")
        async with opened(fake, directory) as runtime:
            with pytest.raises(NoImage, match="imagePullPolicy Never") as missed:
                await runtime.start(launch(1, other.replace("command", "imagePullPolicy: Never, command")))
            assert missed.value.reason == "ErrImageNeverPull"
            fake.refuses["PullImage"] = "no route to host"
            with pytest.raises(StartFailed, match=r"cannot be fetched .*IfNotPresent.*no route to host"):
                await runtime.start(launch(2, other))
            del fake.refuses["PullImage"]
            await runtime.start(launch(3, other))
            await runtime.start(launch(4, other.replace("command", "imagePullPolicy: Always, command")))
            assert fake.counted("PullImage") == 3

    story(tell)


@pytest.mark.req("C6")
def test_other_settings_of_a_running_container_are_sent_once_the_runtime_answers(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await fake.stop()
            await runtime.update(launch().attempt, (Setting("memory.min", "1", "", ""),))
            await runtime.update(launch().attempt, (Setting("memory.min", "2", "", ""),))
            await until(lambda: not runtime.readiness.is_ready)
            await fake.start()
            await until(lambda: fake.counted("UpdateContainerResources"))
            (reported,) = [one for one in fake.requests if type(one).__name__.startswith("Update")]
            assert dict(reported.linux.unified) == {"memory.min": "2"}

    story(tell)


def test_settings_that_one_call_did_not_take_are_sent_again(story):
    """The runtime answers everything else, so it is not away, and does not come back."""

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            fake.loses.add("UpdateContainerResources")
            await runtime.update(launch().attempt, (Setting("memory.min", "1", "", ""),))
            assert fake.counted("UpdateContainerResources") == 1
            await until(lambda: fake.counted("UpdateContainerResources") == 2)

    story(tell)


def test_a_runtime_that_refuses_to_tell_of_a_container_is_not_asked_without_a_pause(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.refuses["ContainerStatus"] = "just now it cannot be read"
            begun = asyncio.create_task(runtime.start(launch()))
            await until(lambda: fake.counted("ContainerStatus"))
            began = time.monotonic()
            await asyncio.sleep(1.0)
            assert fake.counted("ContainerStatus") <= 2 + (time.monotonic() - began) / 0.2
            del fake.refuses["ContainerStatus"]
            assert (await begun).exit is None

    story(tell)


def test_a_container_whose_status_cannot_be_told_is_known_from_the_list_and_holds_up_no_other(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        container = launch().container._replace(name="other")
        other = launch()._replace(attempt=Attempt("u-1", "other", 1), container=container)
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            (damaged,) = fake.running()
            readable = await runtime.start(other)
        Path(state_paths(directory).attempt("u-1", "main", 1), "container").unlink()
        fake.unreadable.add(damaged)
        async with opened(fake, directory) as runtime:
            assert runtime.readiness.is_ready
            known = await runtime.containers()
            assert known[other.attempt].process == readable.process
            assert (known[launch().attempt].process, known[launch().attempt].exit) == (None, None)
            fake.unreadable.clear()  # it is repaired
            await until(lambda: runtime.placed("u-1") and "main" in dict(runtime.placed("u-1") or ()))
            fake.unreadable.add(damaged)
            for id_ in fake.running():
                fake.containers[id_].kill()
            ends = [await next_event(runtime, Exited) for _ in range(2)]
            assert {one.attempt.container: one.exit.is_known for one in ends} == {
                "main": False,
                "other": True,
            }

    story(tell)


def test_the_end_of_a_container_that_is_only_known_from_the_list_is_heard_of(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            (damaged,) = fake.running()
        Path(state_paths(directory).attempt("u-1", "main", 1), "container").unlink()
        fake.unreadable.add(damaged)
        async with opened(fake, directory) as runtime:
            looks = fake.counted("ListContainers")
            await until(lambda: fake.counted("ListContainers") > looks + 2)
            assert (await runtime.containers())[launch().attempt].exit is None
            fake.containers[damaged].kill()
            ended = (await next_event(runtime, Exited)).exit
            assert (ended.is_known, "its record is damaged" in ended.message) == (False, True)
        async with opened(fake, directory) as runtime:
            exit_ = (await runtime.containers())[launch().attempt].exit
            assert exit_ is not None
            assert not exit_.is_known

    story(tell)


def test_a_command_runs_inside_and_tells_its_exit_code_and_output(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            assert await runtime.execute(launch().attempt, ("is", "up"), 1.0) == (3, "is up")
            fake.refuses["ExecSync"] = "no such program"
            with pytest.raises(StartFailed, match="no such program"):
                await runtime.execute(launch().attempt, ("x",), 1.0)
            with pytest.raises(StartFailed, match="does not run"):
                await runtime.execute(Attempt("u-1", "main", 7), ("x",), 1.0)

    story(tell)


def test_a_log_that_an_agent_moved_aside_before_it_was_killed_is_opened_anew(story, monkeypatch):
    monkeypatch.setattr(log_rotation, "_SECONDS", 0.01)

    async def tell(fake: FakeCri, directory: str) -> None:
        log = Path(state_paths(directory).container_logs("default", "web", "u-1", "main")) / "1.log"
        log.parent.mkdir(parents=True)
        log.with_name("1.log.20260102-030405").write_text("before")
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await until(log.exists)
            assert log.read_text() == ""

    story(tell)


def test_a_runtime_that_makes_no_log_is_not_asked_for_it_at_each_look(story, monkeypatch):
    looks = []

    def counted(*of: Any) -> Any:
        looks.append(of[0])
        return to_rotate(*of)

    monkeypatch.setattr(log_rotation, "_SECONDS", 0.01)
    monkeypatch.setattr(log_rotation, "to_rotate", counted)

    async def tell(fake: FakeCri, directory: str) -> None:
        fake.refuses["ReopenContainerLog"] = "not now"
        Path(state_paths(directory).container_logs("default", "web", "u-1", "main")).mkdir(parents=True)
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await until(lambda: len([logs for logs in looks if logs]) > 15)
            seen = len([logs for logs in looks if logs])
            assert 0 < fake.counted("ReopenContainerLog") <= seen // 2

    story(tell)


def test_a_log_is_put_back_if_the_runtime_opens_no_new_one_and_never_over_a_new_one(story, monkeypatch):
    looks = []

    def counted(*of: Any) -> Any:
        looks.append(of)
        return to_rotate(*of)

    monkeypatch.setattr(log_rotation, "_SECONDS", 0.01)
    monkeypatch.setattr(log_rotation, "to_rotate", counted)

    async def tell(fake: FakeCri, directory: str) -> None:
        log = Path(state_paths(directory).container_logs("default", "web", "u-1", "main")) / "1.log"
        rotated = log.with_name("1.log.20260102-030405")
        log.parent.mkdir(parents=True)
        async with opened(fake, directory) as runtime:
            fake.refuses["ReopenContainerLog"] = "not now"
            rotated.write_text("all of it")
            await runtime.start(launch())
            await until(log.exists)
            assert (log.read_text(), rotated.exists()) == ("all of it", False)
            # Now it does, and its answer is lost.
            del fake.refuses["ReopenContainerLog"]
            fake.loses.add("ReopenContainerLog")
            log.rename(rotated)
            await until(lambda: not fake.loses)
            before = len(looks)
            await until(lambda: len(looks) > before + 1)  # that attempt is over, and the next
            assert (log.read_text(), rotated.read_text()) == ("", "all of it")

    story(tell)


def test_a_runtime_that_takes_its_time_to_say_its_first_word_is_heard(story):
    """As on a slow machine: it listens, and begins to speak when it gets to it."""

    async def tell(fake: FakeCri, directory: str) -> None:
        passing: list[asyncio.Task[Any] | None] = []

        async def hesitate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            passing.append(asyncio.current_task())
            await asyncio.sleep(0.5)
            its_reader, its_writer = await asyncio.open_unix_connection(fake.path)
            await asyncio.gather(passed_on(reader, its_writer), passed_on(its_reader, writer))

        async with await asyncio.start_unix_server(hesitate, f"{directory}.slow"):
            connection = Connection(f"unix://{directory}.slow")
            answer = await connection.ask(pb.VersionRequest(), pb.VersionResponse)
            assert answer.runtime_name == "fake"
            await connection.close()
            await asyncio.gather(*filter(None, passing))  # both ends are closed, before the loop is

    story(tell)


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # one of both has left
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.req("B11")
def test_the_runtimes_process_is_known_by_its_socket_as_long_as_it_serves_it(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            assert runtime.daemon() == process_at(os.getpid()), "the fake one is this process"
            await fake.stop()
            assert runtime.daemon() is None

    story(tell)


def test_nothing_of_a_removed_pod_is_left(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            assert await runtime.pods() == {"u-1"}
            await runtime.stop(launch().attempt, 1)
            await runtime.remove("u-1")
            await runtime.remove_logs("u-1")
            assert (fake.sandboxes, fake.containers) == ({}, {})
            assert await runtime.pods() == frozenset()

    story(tell)


def test_a_start_that_was_cut_off_is_no_end_and_is_done_again(story):
    """As containerd leaves it when its client is killed: ended, and never begun."""

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            (cut_off,) = fake.containers.values()
        cut_off.kill()
        cut_off.started_at = 0.0
        Path(
            state_paths(directory).attempt("u-1", "main", 1), "container"
        ).unlink()  # which comes after the answer
        async with opened(fake, directory) as runtime:
            await until(lambda: fake.counted("ListContainers") > 3)
            assert (await runtime.start(launch())).exit is None
            assert len(fake.containers) == len(fake.running()) == 1

    story(tell)


def test_a_start_that_was_cut_off_in_a_way_that_containerd_does_not_get_rid_of_is_reported_as_failed(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.keeps_tasks = True
        fake.refuses["StartContainer"] = "the process died"
        async with opened(fake, directory) as runtime:
            with pytest.raises(StartFailed, match="the process died"):
                await runtime.start(launch())
            assert not fake.containers

    story(tell)


def test_a_sandbox_is_not_gone_because_something_in_it_is_not_found(story):
    """As containerd answers when two ask at once for the removal of what is in the sandbox."""

    async def tell(fake: FakeCri, directory: str) -> None:
        def not_found(_: object) -> None:
            del fake._RemovePodSandbox  # noqa: SLF001 the next is answered as always
            raise LookupError

        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await runtime.stop(launch().attempt, 1)
            fake._RemovePodSandbox = not_found  # type: ignore[method-assign, assignment]  # noqa: SLF001
            await runtime.remove("u-1")
            assert not fake.sandboxes

    story(tell)


def test_a_pod_is_removed_with_a_container_that_containerd_does_not_get_rid_of(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
        Path(state_paths(directory).attempt("u-1", "main", 1), "container").unlink()
        next(iter(fake.containers.values())).started_at = 0.0  # which is none of the agent's therefore
        fake.keeps_tasks = True
        async with opened(fake, directory) as runtime:
            await runtime.remove("u-1")
            assert (fake.sandboxes, fake.containers) == ({}, {})

    story(tell)


def test_a_container_that_is_being_made_for_a_former_agent_is_waited_for(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.refuses["CreateContainer"] = 'name "main" is reserved for "x"'
            begun = asyncio.ensure_future(runtime.start(launch()))
            await until(lambda: fake.counted("CreateContainer") > 1)
            del fake.refuses["CreateContainer"]
            assert (await begun).exit is None

    story(tell)


def test_a_sandbox_that_is_made_while_sandboxes_are_listed_stays_known(story, monkeypatch):
    """The list is older than the sandbox, and is answered later. Without its sandbox the pod would have no address."""

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            fake.held["ListPodSandbox"] = asyncio.Event()
            lists = fake.counted("ListPodSandbox")
            await until(lambda: fake.counted("ListPodSandbox") > lists)
            monkeypatch.setattr(runtime_link, "LIST_SECONDS", 3600.0)
            await runtime.start(launch())
            fake.held.pop("ListPodSandbox").set()
            await runtime.images_usage()  # an answer that comes after that of the list
            await runtime.start(launch(2))
            assert dict(runtime.placed("u-1") or ())[""] in fake.sandboxes
            assert fake.counted("RunPodSandbox") == 1

    story(tell)


def test_a_container_that_the_runtime_does_not_get_removed_holds_up_no_list(story, monkeypatch):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await runtime.stop(launch().attempt, 1)
            fake.hangs.add("RemoveContainer")
            monkeypatch.setattr(container_calls, "_REMOVE_SECONDS", 0.05)
            await runtime.forget(launch().attempt)
            monkeypatch.setattr(container_calls, "_REMOVE_SECONDS", 3600.0)
            removals = fake.counted("RemoveContainer")
            await until(lambda: fake.counted("RemoveContainer") > removals)
            lists = fake.counted("ListContainers")
            await until(lambda: fake.counted("ListContainers") > lists + 2)

    story(tell)


def test_a_sandbox_of_a_pod_that_is_gone_is_removed(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            await runtime.stop(launch().attempt, 1)
            config = next(iter(fake.sandboxes.values()))
            await runtime.remove("u-1")
            fake.sandboxes["late"] = config
            await until(lambda: not fake.sandboxes)

    story(tell)


def test_a_sandbox_that_was_never_made_whole_is_removed_and_one_with_a_container_stays(story):
    """As containerd 1.6 leaves one, with a process in the pod's cgroup, when its client is killed."""

    async def tell(fake: FakeCri, directory: str) -> None:
        async with opened(fake, directory) as runtime:
            await runtime.start(launch())
            (sandbox,) = fake.sandboxes
            fake.unready = {sandbox, "cut-off"}
            fake.sandboxes["cut-off"] = fake.sandboxes[sandbox]
            await until(lambda: "cut-off" not in fake.sandboxes)
            looks = fake.counted("ListPodSandbox")
            await until(lambda: fake.counted("ListPodSandbox") > looks + 1)
            assert (list(fake.sandboxes), len(fake.running())) == ([sandbox], 1)

    story(tell)


def test_a_runtime_without_user_namespaces_gets_no_pod_that_needs_one(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.with_user_namespaces = ("other",)
        async with opened(fake, directory) as runtime:
            asked = launch(1, OWN_USERS)
            refused = runtime.refusal(asked.pod)
            assert refused is not None
            assert "spec.hostUsers: false is not supported: fake 1 does not say" in refused.message
            assert runtime.refusal(launch().pod) is None
            # An agent with another runtime has accepted it.
            with pytest.raises(StartFailed, match="user namespaces"):
                await runtime.start(asked)
            assert not fake.sandboxes

    story(tell)


def test_a_runtime_with_user_namespaces_gets_the_users_of_the_pod(story):
    async def tell(fake: FakeCri, directory: str) -> None:
        fake.with_user_namespaces = ("",)
        async with opened(fake, directory) as runtime:
            asked = launch(1, OWN_USERS)
            assert runtime.refusal(asked.pod) is None
            await runtime.start(asked)
            (sandbox,) = fake.sandboxes.values()
            (users,) = sandbox.linux.security_context.namespace_options.userns_options.uids
            assert (users.host_id % users.length, users.host_id >= users.length) == (0, True)

    story(tell)
