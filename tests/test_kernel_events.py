"""OOM kills in containers of a container runtime: they may run, and be hit, before it is known what their cgroups are
called."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest

from evenkeel.agent.node import oom_kills
from evenkeel.agent.node.oom_kills import KernelEvents
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Tree, Version
from evenkeel.host.event_types import Event, OomKill, OomRecord
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from evenkeel.runtime.interface import Attempt
from tests.models.agents import until

POD = Cgroup("/root/pod1", Kind.POD, (), pod="default/web", holds_only_ours=False)
CONTAINER = Cgroup(
    "/root/pod1/abc",
    Kind.CONTAINER,
    (),
    pod="default/web",
    container="main",
    is_killed_whole=True,
    is_ours_to_make=False,
)


class Cgroups:
    driver = SimpleNamespace(files=lambda path: {"memory": path})

    def __init__(self, oom_kills: int) -> None:
        self.killed: list[str] = []
        self._oom_kills = oom_kills

    def has_counted(self, held: Any, container: str) -> bool:
        return self._oom_kills > 0

    async def kill(self, path: str) -> None:
        self.killed.append(path)


class Recorder:
    def __init__(self) -> None:
        self.recorded: list[tuple[str, str]] = []

    def record(self, kind: str, reason: str, message: str, pod: Any, container: str, figures: Any) -> None:
        self.recorded.append((reason, container))

    def commit(self) -> None: ...


class Stream:
    """The kernel's events, as a test reports them."""

    def __init__(self) -> None:
        self._reported: asyncio.Queue[Event] = asyncio.Queue()

    def watch_oom(self, path: str, directory: str) -> None: ...
    def watch_kernel_log(self, after: int | None) -> None: ...
    def unwatch(self, path: str) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            yield await self._reported.get()
            self._reported.task_done()

    async def report(self, *events: Event) -> None:
        """Returns when all of them are handled."""
        for event in events:
            self._reported.put_nowait(event)
        await self._reported.join()


class Store(list[Any]):
    def by_key(self, key: str) -> Any:
        return self[0]


def record(attempt: int, pid: int) -> Any:
    state = PodState(
        containers={"main": ContainerRecord(attempt=attempt, pid=pid, started_at=float(attempt))}
    )
    return SimpleNamespace(pod=SimpleNamespace(metadata=SimpleNamespace(uid="u-1")), state=state)


@asynccontextmanager
async def listening(
    cgroups: Cgroups,
    event_recorder: Recorder,
    reported: list[Attempt] | None = None,
    store: Store | None = None,
) -> AsyncIterator[tuple[KernelEvents, Stream]]:
    journal: Any = SimpleNamespace(set_value=lambda name, value: None, value=lambda name: None)
    steps: Any = SimpleNamespace(
        want_step=lambda uid: None,
        report=lambda outcome: ([] if reported is None else reported).append(outcome.attempt),
    )
    stream: Any = Stream()
    given: Any = (journal, cgroups, cgroups, store or Store([record(1, 7)]), event_recorder, steps)
    events = KernelEvents(*given, make_stream=lambda: stream)
    running = asyncio.create_task(events.run())
    await asyncio.sleep(0)
    try:
        yield events, stream
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def tree(*cgroups: Cgroup) -> Tree:
    return Tree(Version.V1, Naming.CGROUPFS, cgroups)


@pytest.mark.req("A19")
@pytest.mark.parametrize("oom_kills", [0, 1])
def test_the_rest_of_a_container_that_was_hit_before_it_was_watched_is_ended(oom_kills):
    cgroups = Cgroups(oom_kills)

    async def story() -> None:
        async with listening(cgroups, Recorder()) as (events, _):
            events.cgroups_changed(tree(POD))
            events.cgroups_changed(tree(POD, CONTAINER))
            await until(lambda: len(cgroups.killed) == oom_kills)

    asyncio.run(story())
    assert cgroups.killed == [CONTAINER.path] * oom_kills


@pytest.mark.req("E6")
@pytest.mark.parametrize("is_known_later", [True, False])
def test_an_oom_kill_is_recorded_though_the_container_is_not_known_yet(monkeypatch, is_known_later):
    monkeypatch.setattr(oom_kills, "_LATE_SECONDS", 0.01)
    event_recorder = Recorder()

    async def story() -> None:
        async with listening(Cgroups(0), event_recorder) as (events, stream):
            events.cgroups_changed(tree(POD))
            await stream.report(
                OomKill(OomRecord("eater", 7, CONTAINER.path)),
                OomKill(OomRecord("other", 8, "/elsewhere/abc")),
            )
            assert not event_recorder.recorded
            if is_known_later:
                events.cgroups_changed(tree(POD, CONTAINER))
            await until(lambda: bool(event_recorder.recorded))

    asyncio.run(story())
    assert event_recorder.recorded == [("OOMKilling", "main" if is_known_later else "")]


@pytest.mark.req("A17")
def test_a_logged_kill_is_of_the_attempt_whose_first_process_it_was_or_whose_cgroup_it_was_in():
    reported: list[Attempt] = []

    async def story() -> None:
        async with listening(Cgroups(0), Recorder(), reported) as (events, stream):
            events.cgroups_changed(tree(POD, CONTAINER))
            await stream.report(
                OomKill(OomRecord("main", 7)),  # the kernel kept the cgroup to itself
                OomKill(OomRecord("child", 9, CONTAINER.path)),
                OomKill(OomRecord("other", 8, "/elsewhere/abc")),
            )

    asyncio.run(story())
    assert reported == [Attempt("u-1", "main", 1)] * 2


@pytest.mark.req("A17")
def test_a_kill_that_is_logged_when_the_next_attempt_runs_is_not_of_that_one():
    reported: list[Attempt] = []
    earlier = CONTAINER._replace(path="/root/pod1/earlier")
    store = Store([record(1, 7)])

    async def story() -> None:
        async with listening(Cgroups(0), Recorder(), reported, store) as (events, stream):
            events.cgroups_changed(tree(POD, earlier))
            store[0] = record(2, 17)
            events.cgroups_changed(tree(POD, CONTAINER))
            await stream.report(OomKill(OomRecord("main", 7, earlier.path)))

    asyncio.run(story())
    assert reported == [Attempt("u-1", "main", 1)]
