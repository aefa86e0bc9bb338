"""Ephemeral containers as processes of a real kernel: in the process namespace of another container, or their own."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from evenkeel.api.container import EphemeralContainer
from evenkeel.runtime.interface import Record
from evenkeel.runtime.procfs import Process
from evenkeel.runtime.start_errors import StartFailed
from tests.kernel import containers as of_test
from tests.kernel.containers import CONTAINER, Containers, until
from tests.kernel.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

containers = of_test.containers


def debugger(script: str, *, target: str = CONTAINER) -> EphemeralContainer:
    # The runtime reads $$ as Kubernetes does: a doubled dollar is one.
    command = ("/bin/sh", "-c", script.replace("$", "$$"))
    return EphemeralContainer("debugger", "host", command, target_container_name=target)


def process_of(record: Record) -> Process:
    assert record.process is not None
    return record.process


def namespace(record: Record, kind: str) -> str:
    return str(Path(f"/proc/{process_of(record).pid}/ns/{kind}").readlink())


def test_it_sees_the_processes_of_its_target_and_has_the_rest_for_itself(containers: Containers):
    async def body(world: Containers) -> None:
        main = await world.start("web", "sleep", "50012")
        command = Path(f"/proc/{process_of(main).pid}/cmdline")
        await until(command.read_bytes)  # between two programs a process has none
        pod = world.pod("web", ["sleep", "50012"])
        sees = "test -d /proc/1/root/proc && echo files; tr '\\0' ' ' < /proc/1/cmdline; echo"
        look = f"{sees}; kill -0 1 && echo reaches; exec sleep 600"
        beside = await world.start_beside(pod, debugger(look))
        await until(lambda: len(world.log("web", container="debugger")) == 3)
        assert world.log("web", container="debugger") == ["files", "sleep 50012 ", "reaches"]
        assert namespace(beside, "pid") == namespace(main, "pid")
        for kind in ("mnt", "uts", "ipc", "cgroup"):
            assert namespace(beside, kind) != namespace(main, kind)
        assert world.processes("debugger") == [process_of(beside).pid], "it is in a cgroup of its own"
        assert world.processes("web") == [process_of(main).pid]

    containers.run(body)


def test_its_end_is_its_own_and_that_of_its_target_is_its_end(containers: Containers):
    async def body(world: Containers) -> None:
        main = await world.start("web", "sleep", "600")
        pod = world.pod("web", ["sleep", "600"])
        first = await world.start_beside(pod, debugger("sleep 600 & exit 3"))
        ended = await asyncio.wait_for(world.exited(), PATIENCE_SECONDS)
        assert (ended.attempt, ended.exit.exit_code) == (first.attempt, 3)
        await until(lambda: not world.processes("debugger"))
        assert world.processes("web") == [process_of(main).pid]

        second = debugger("exec sleep 600")._replace(name="second")
        beside = await world.start_beside(pod, second)
        os.kill(process_of(main).pid, signal.SIGKILL)
        ends = [await asyncio.wait_for(world.exited(), PATIENCE_SECONDS) for _ in range(2)]
        assert {one.attempt for one in ends} == {main.attempt, beside.attempt}
        assert {one.exit.signal for one in ends} == {signal.SIGKILL}
        eventually(lambda: not world.processes("second"))

    containers.run(body)


def test_without_a_target_it_has_a_process_namespace_of_its_own(containers: Containers):
    async def body(world: Containers) -> None:
        main = await world.start("web", "sleep", "600")
        pod = world.pod("web", ["sleep", "600"])
        beside = await world.start_beside(pod, debugger("exec sleep 600", target=""))
        assert namespace(beside, "pid") not in (
            namespace(main, "pid"),
            str(Path("/proc/self/ns/pid").readlink()),
        )

    containers.run(body)


def test_it_enters_a_target_that_an_earlier_supervisor_has_started(containers: Containers):
    async def body(world: Containers) -> None:
        main = await world.start("web", "sleep", "600")
        os.kill(supervisor := world.supervisor(), signal.SIGKILL)
        await until(lambda: world.supervisor() not in (0, supervisor))
        pod = world.pod("web", ["sleep", "600"])
        beside = await world.start_beside(pod, debugger("exec sleep 600"))
        assert namespace(beside, "pid") == namespace(main, "pid")

    containers.run(body)


def test_nothing_starts_beside_a_target_that_has_ended(containers: Containers):
    async def body(world: Containers) -> None:
        await world.start("web", "true")
        await asyncio.wait_for(world.exited(), PATIENCE_SECONDS)
        pod = world.pod("web", ["true"])
        with pytest.raises(StartFailed, match='container "main", whose processes it is to see, does not run'):
            await world.start_beside(pod, debugger("exec sleep 600"))
        assert not world.processes("debugger")

    containers.run(body)
