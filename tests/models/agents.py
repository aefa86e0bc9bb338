"""An agent without a machine: a runtime whose containers are entries in a table, and a model of the kernel. Both
outlive the agent, as the real ones do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from evenkeel.agent.agent import Agent
from evenkeel.agent.bootstrap import assemble
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Setting
from evenkeel.host.disk_usage import Usage
from evenkeel.host.node_figures import NodeClock
from evenkeel.journal.store import Journal
from evenkeel.policy.admission import Refusal
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.runtime.interface import (
    Attempt,
    Directories,
    ExecResult,
    Exit,
    Exited,
    Image,
    Launch,
    Placed,
    Pull,
    Readiness,
    Record,
    RuntimeEvent,
)
from evenkeel.runtime.procfs import Process
from evenkeel.runtime.sessions import Session, SessionRefused, Streams
from evenkeel.runtime.start_errors import StartFailed
from tests.models.kernel import CountingKernel

GIB = 2**30


class TableRuntime:
    """`on_start` may look at, or refuse, each start before it is done."""

    def __init__(self) -> None:
        self.records: dict[Attempt, Record] = {}
        self.stopped: list[tuple[Attempt, float]] = []
        self.emptied: list[str] = []
        self.may_empty = asyncio.Event()
        self.may_empty.set()
        self.removed: list[str] = []
        self.removed_logs: list[str] = []
        self.starts: list[Attempt] = []
        self.prepared: list[tuple[str, PodData]] = []
        self.removed_claims: list[tuple[str, str]] = []
        self.hosts: dict[Attempt, dict[str, str]] = {}  # names and addresses in /etc/hosts
        self.on_start: Callable[[Launch], None] = lambda _: None
        self.ignores_term = False
        self.clock: Callable[[], float] = lambda: 0.0
        self._queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue()

    def refusal(self, pod: Pod) -> Refusal | None:
        images = [container.image for container in pod.spec.every_container if container.image != "host"]
        return Refusal("NotHonoured", f"image {images[0]} is not host") if images else None

    async def open(self) -> None:
        self._queue = asyncio.Queue()

    async def close(self) -> None: ...

    readiness = Readiness(True, "")
    may_trace = False

    def addresses(self, pod: Pod) -> tuple[str, ...] | None:
        return None

    def placed(self, uid: str) -> Placed | None:
        return None

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None: ...

    async def containers(self) -> Mapping[Attempt, Record]:
        return dict(self.records)

    async def prepare(self, pod: Pod, data: PodData = NO_DATA) -> None:
        self.prepared.append((pod.key, data))

    async def start(self, launch: Launch) -> Record:
        if launch.attempt in self.records:
            return self.records[launch.attempt]
        self.on_start(launch)
        running = [a for a, r in self.records.items() if a[:2] == launch.attempt[:2] and r.exit is None]
        assert not running, f"{launch.attempt} would run beside {running}"
        self.starts.append(launch.attempt)
        record = Record(launch.attempt, Process(1000 + len(self.starts), 1), self.clock())
        self.records[launch.attempt] = record
        return record

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        self.stopped.append((attempt, grace_seconds))
        if self.ignores_term:
            await asyncio.sleep(grace_seconds)
        self.end(attempt, 143, 15)

    def end(
        self,
        attempt: Attempt,
        code: int = 0,
        signal: int = 0,
        *,
        is_oom_killed: bool = False,
        oom_kills: int | None = None,
    ) -> None:
        record = self.records.get(attempt)
        if record is None or (record.exit is not None and not is_oom_killed):
            return
        exit_ = Exit(
            code,
            signal,
            record.started_at,
            self.clock(),
            is_oom_killed=is_oom_killed,
            oom_kills=oom_kills,
        )
        self.records[attempt] = record._replace(exit=exit_)
        self._queue.put_nowait(Exited(attempt, exit_))

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        raise StartFailed("nothing can be run in a table")

    async def open_session(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        raise SessionRefused("nothing can be run in a table")

    async def attach(self, attempt: Attempt, container: Container, wanted: Streams) -> Session:
        raise SessionRefused("nothing runs in a table")

    async def forget(self, attempt: Attempt) -> None:
        record = self.records.get(attempt)
        if record is not None and record.exit is not None:
            del self.records[attempt]

    async def empty_memory(self, uid: str) -> None:
        await self.may_empty.wait()
        self.emptied.append(uid)

    async def remove(self, uid: str) -> None:
        self.removed.append(uid)

    def take_note(self, pods: Iterable[Pod]) -> None: ...

    async def write_hosts(self, pod: Pod, attempts: Sequence[Attempt]) -> None:
        names = {name: alias.ip for alias in pod.spec.host_aliases for name in alias.hostnames}
        self.hosts.update(dict.fromkeys(attempts, names))

    async def remove_claim(self, namespace: str, name: str) -> None:
        self.removed_claims.append((namespace, name))

    async def remove_logs(self, uid: str) -> None:
        self.removed_logs.append(uid)

    async def pods(self) -> frozenset[str]:
        return frozenset(attempt.uid for attempt in self.records)

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        while True:
            yield await self._queue.get()

    def daemon(self) -> Process | None:
        return None

    storage_path = images_path = "/"

    async def images_usage(self) -> Usage | None:
        return None

    def directories(self, pod: Pod) -> Directories:
        return Directories()

    def give_up(self, attempt: Attempt) -> None: ...

    async def images(self) -> tuple[Image, ...]:
        return ()

    def pulls(self) -> tuple[Pull, ...]:
        return ()

    async def remove_image(self, id_: str) -> None: ...

    async def remove_unused_images(self) -> None: ...

    async def remove_old_logs(self) -> None: ...

    def running(self) -> set[str]:
        """Container names that run now."""
        return {attempt.container for attempt, record in self.records.items() if record.exit is None}


class PlaceClock(NodeClock):
    """A clock that a test moves: `seconds` is time that passes, `jump_seconds` is how far the clock was set."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.jump_seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def was_set(self) -> bool:
        return bool(self.jump_seconds)

    def follow(self) -> float:
        jump, self.jump_seconds = self.jump_seconds, 0.0
        self.seconds += jump
        return jump


class Place:
    """A machine on which agents start and end. A test moves its clock."""

    def __init__(self, directory: str, config: KubeletConfiguration | None = None) -> None:
        self.directory = directory
        self.runtime = TableRuntime()
        self.kernel = CountingKernel()
        self.machine_oom_kills = 0
        self.clock = PlaceClock()
        self.runtime.clock = lambda: self.now
        self.config = config or KubeletConfiguration(eviction_hard={})
        self.node = node_view(NodeCapacity(4000, 8 * GIB), self.config)

    @property
    def now(self) -> float:
        return self.clock.seconds

    @now.setter
    def now(self, seconds: float) -> None:
        self.clock.seconds = seconds

    @asynccontextmanager
    async def agent(self, *paths: str) -> AsyncIterator[Agent]:
        with Journal.open(f"{self.directory}/journal.db") as journal:
            files = PodFiles(list(paths), self.node.profile) if paths else None
            agent = assemble(
                self.node,
                self.runtime,
                journal,
                lambda: self.kernel,
                files,
                machine_oom_kills=lambda: self.machine_oom_kills,
                node_clock=self.clock,
            )
            await agent.open()
            try:
                yield agent
            finally:
                await agent.close()


def pods_of(text: str) -> tuple[Pod, ...]:
    return read_manifests(text, "test").or_raise().pods


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Lets the loop run until the condition holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come to pass"
        await asyncio.sleep(0.001)


def drive(place: Place, story: Callable[[Agent], Awaitable[object]], *paths: str) -> None:
    """Runs the story with an agent of its own."""

    async def main() -> None:
        async with place.agent(*paths) as agent:
            await story(agent)

    asyncio.run(main())
