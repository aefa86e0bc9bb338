"""No descriptor is left (EMFILE): nothing is known of a process or a file then, above all not that it is gone."""

import asyncio
import errno
import gc
import json
import os
import resource
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenkeel.agent.grpc_health import ask_grpc
from evenkeel.agent.probe_requests import Answer, ask_http, ask_tcp
from evenkeel.api.container import Container, GRPCAction, HTTPGetAction, TCPSocketAction
from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.host.files import descriptor_shortage
from evenkeel.runtime import procfs
from evenkeel.runtime.cri.container_table import ContainerTable, CriContainer
from evenkeel.runtime.interface import Attempt, Record
from evenkeel.runtime.paths import StatePaths, every_attempt, read_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.seccomp import NO_FILTER
from evenkeel.runtime.process.supervisor import spawn
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.supervised_containers import SupervisedContainers
from evenkeel.runtime.process.supervisor_link import orphan_status
from evenkeel.runtime.process.supervisor_protocol import Message, ProcessFile

_LARGEST_PID = 1 << 22  # no process has it: the kernel's PID_MAX_LIMIT
KEY = ("uid", "main", 0)
PATIENCE_SECONDS = 30.0  # until it fails; one that succeeds takes a second


@contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """What is open stays open, and nothing can be opened, but so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, open_descriptors()))
    fillers = []
    while (filler := os.open("/", os.O_PATH | os.O_CLOEXEC)) <= highest:
        fillers.append(filler)
    os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + but, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@contextmanager
def recorded_container(paths: StatePaths) -> Iterator[ProcessFile]:
    """A process with the record that an earlier supervisor has left."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            ticks = procfs.start_ticks(child.pid)
            assert ticks is not None
            cgroup = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()[0].split(":", 2)[2]
            process = ProcessFile(child.pid, ticks, cgroup, (), 1.0, has_pid_namespace=True)
            directory = paths.attempt(*KEY)
            Path(directory).mkdir(parents=True)
            supervisor_protocol.write_process(directory, process)
            for name in (supervisor_protocol.STDOUT, supervisor_protocol.STDERR):
                os.mkfifo(f"{directory}/{name}")
            yield process
        finally:
            child.kill()


def raise_error(error: BaseException) -> None:
    raise error


def test_a_process_that_cannot_be_looked_at_has_not_ended(tmp_path: Path):
    with recorded_container(StatePaths(str(tmp_path))) as process:
        for look in (
            lambda: procfs.is_alive(process.pid, process.ticks),
            lambda: supervisor_protocol.is_running(process),
            lambda: supervisor_protocol.send_signal(process, 9),
        ):
            with pytest.raises(OSError) as raised, no_descriptors():
                look()
            assert raised.value.errno == errno.EMFILE
        assert supervisor_protocol.is_running(process)


def test_a_record_that_cannot_be_looked_at_is_not_missing(tmp_path: Path):
    paths = StatePaths(str(tmp_path))
    directory = Path(paths.attempt(*KEY))
    directory.mkdir(parents=True)
    (directory / "exit").write_text(json.dumps({"exit_code": 0}))
    for look in (lambda: read_json(str(directory), "exit"), lambda: list(every_attempt(paths))):
        with pytest.raises(OSError) as raised, no_descriptors():
            look()
        assert raised.value.errno == errno.EMFILE
    assert read_json(str(directory), "exit") == {"exit_code": 0}
    assert list(every_attempt(paths)) == [KEY]


def supervised(loop: Loop, paths: StatePaths, told: list[Message]) -> SupervisedContainers:
    def tell(event: Message) -> bool:
        told.append(event)
        return True

    origin = spawn.Origin(0, (os.geteuid(), os.getegid()), lambda _: NO_FILTER)
    return SupervisedContainers(loop, paths, origin, tell)


@pytest.mark.parametrize("free", range(8))
def test_a_container_is_adopted_as_a_whole_or_not_yet(tmp_path: Path, free: int):
    """Adopted without its streams, it would wait for ever at a pipe that nobody reads."""
    paths = StatePaths(str(tmp_path))
    loop = Loop(raise_error)
    containers = supervised(loop, paths, [])
    with recorded_container(paths):
        gc.collect()  # what tests before this one have left open
        before = open_descriptors()
        with no_descriptors(but=free):
            containers.adopt(KEY)
        kept = containers.running(KEY)
        assert containers  # one that is not adopted yet keeps the supervisor too
        if kept is None:
            assert open_descriptors() == before
            loop.after(PATIENCE_SECONDS, lambda: pytest.fail("the container is not adopted"))
            loop.run(lambda: containers.running(KEY) is not None)
            kept = containers.running(KEY)
        assert kept is not None
        assert kept.relay is not None


def test_a_container_is_adopted_once_there_are_descriptors_and_has_not_ended_before(tmp_path: Path):
    paths = StatePaths(str(tmp_path))
    loop = Loop(raise_error)
    told: list[Message] = []
    containers = supervised(loop, paths, told)
    with recorded_container(paths):
        with no_descriptors():
            containers.adopt(KEY)
        assert told == []
        assert supervisor_protocol.read_exit(paths.attempt(*KEY)) is None
        loop.after(PATIENCE_SECONDS, lambda: pytest.fail("the container is not adopted"))
        loop.run(lambda: containers.running(KEY) is not None)
        assert told == []
    loop.run(lambda: bool(told))
    assert told == [{"event": "ended", "attempt": list(KEY)}]
    containers.finish(KEY, 9)
    assert supervisor_protocol.read_exit(paths.attempt(*KEY)) is not None


def test_a_process_that_cannot_be_looked_at_after_its_kill_is_not_dead():
    with no_descriptors():
        assert not is_dead(os.getpid())
    assert is_dead(_LARGEST_PID)


def test_a_shortage_of_descriptors_is_told():
    with no_descriptors():
        assert descriptor_shortage() == "can open no more files: too many open files"
    assert descriptor_shortage() == ""


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ask_http(HTTPGetAction(port=1), Container(name="main"), 5.0),
        lambda: ask_tcp(TCPSocketAction(port=1), Container(name="main"), 5.0),
        lambda: ask_grpc(GRPCAction(port=1), 5.0),
    ],
)
def test_a_probe_for_which_the_agent_has_no_descriptor_says_nothing_about_the_container(
    ask: Callable[[], Awaitable[Answer]],
):
    async def main() -> None:
        await ask()  # what it imports needs descriptors too
        with no_descriptors():
            answer = await ask()
        assert answer.is_success is None
        assert "Too many open files" in answer.message
        assert (await ask()).is_success is False  # nothing listens there

    asyncio.run(main())


def test_the_status_of_an_orphan_is_found_once_there_are_descriptors():
    async def main() -> None:
        child = subprocess.Popen(["sh", "-c", "exit 7"])
        child.returncode = 0  # it is waited for below, and not by its object
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        ticks = procfs.start_ticks(child.pid)
        assert ticks is not None
        process = ProcessFile(child.pid, ticks, "/", (), 1.0, has_pid_namespace=True)
        with no_descriptors():
            found = asyncio.ensure_future(orphan_status(process))
            await asyncio.sleep(0)
            assert not found.done()
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = await found
        assert status is not None
        assert os.waitstatus_to_exitcode(status) == 7

    asyncio.run(main())


def test_a_container_of_a_runtime_is_watched_once_there_are_descriptors():
    async def main() -> None:
        ended: list[CriContainer] = []
        table = ContainerTable(ended.append)
        with subprocess.Popen(["sleep", "1000"]) as child:
            process = procfs.process_at(child.pid)
            container = CriContainer("id", Record(Attempt(*KEY), process, 1.0), "/cgroup")
            with no_descriptors():
                table.put(container)
            assert container.pidfd < 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while container.pidfd < 0:
                    await asyncio.sleep(0.01)
            ended.clear()
            child.kill()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not ended:
                    await asyncio.sleep(0.01)
        table.close()

    asyncio.run(main())
