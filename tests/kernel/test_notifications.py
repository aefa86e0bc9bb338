"""Notifications of the kernel: usage thresholds, OOM, memory.events, pressure triggers and the log (E6)."""

import asyncio
import contextlib
import gc
import os
import select
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from evenkeel.host.event_stream import EventStream, Source
from evenkeel.host.event_types import (
    Event,
    MemoryEvents,
    MemoryThreshold,
    OomKill,
    OomNotified,
    OomRecord,
    SubscriptionEnded,
)
from evenkeel.host.machine import parse_capabilities
from evenkeel.host.memory_notifications import UsageThreshold
from evenkeel.host.psi import ArmedTrigger, Kind, Resource, Trigger, cgroup_file, node_file
from tests.kernel.cgroups import UNIFIED, Cgroup
from tests.kernel.processes import Spawn
from tests.kernel.waiting import PATIENCE_SECONDS, eventually
from tests.machines.programs import programs

MIB = 1 << 20


async def heard(stream: EventStream, is_enough: Callable[[list[Event]], bool]) -> list[Event]:
    """The stream's events up to the first with which they are enough."""
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in stream:
            events.append(event)
            if is_enough(events):
                break
    return events


async def quiet(stream: EventStream, seconds: float = 0.3) -> list[Event]:
    """What else comes within a moment."""
    events: list[Event] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                events.append(await anext(stream))
    return events


def has_fired(source: Source | ArmedTrigger, seconds: float = PATIENCE_SECONDS) -> bool:
    poll = select.poll()
    poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def of(kind: type, events: list[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


def killed(events: list[Event], pids: Collection[int]) -> list[OomRecord]:
    """The records of these processes. The kernel's log is the whole machine's, and other tests run beside this one."""
    return [event.record for event in events if isinstance(event, OomKill) and event.record.pid in pids]


def descriptors() -> int:
    gc.collect()  # what tests before this one have left is not to be closed in the middle of it
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(autouse=True)
def _every_descriptor_is_closed():
    before = descriptors()
    yield
    assert descriptors() == before


def memory_directory(cgroup: Cgroup) -> str:
    return str(cgroup.directories.get("memory") or cgroup.directories[UNIFIED])


def limit(cgroup: Cgroup, limit_bytes: int) -> None:
    cgroup.write("memory.max" if cgroup.has("memory.max") else "memory.limit_in_bytes", limit_bytes)


# cgroup v1


@pytest.mark.cgroup("v1")
def test_crossing_a_threshold_is_told_upwards_and_downwards(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    program = spawn("memory", cgroup=place)
    program.ask("free")

    with contextlib.closing(UsageThreshold("/place", memory_directory(place), 16 * MIB)) as threshold:
        assert list(threshold.first()) == []
        program.ask(f"allocate {32 * MIB}")
        assert has_fired(threshold)
        (up,) = threshold.ready()
        assert isinstance(up, MemoryThreshold)
        assert (up.path, up.threshold_bytes) == ("/place", 16 * MIB)
        assert up.usage_bytes >= 16 * MIB
        program.ask("free")
        assert has_fired(threshold)
        (down,) = threshold.ready()
        assert isinstance(down, MemoryThreshold)
        assert down.usage_bytes < 16 * MIB


@pytest.mark.cgroup("v1")
def test_a_threshold_that_was_crossed_before_it_was_watched_is_reported(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    spawn("memory", cgroup=place).ask(f"allocate {32 * MIB}")

    with contextlib.closing(UsageThreshold("/place", memory_directory(place), 16 * MIB)) as threshold:
        (event,) = threshold.first()
    assert isinstance(event, MemoryThreshold)
    assert event.usage_bytes >= 32 * MIB


@pytest.mark.cgroup("v1")
def test_an_oom_is_told_to_all_below_the_limit_and_counted_where_it_killed(cgroup_root: Cgroup, spawn: Spawn):
    pod = cgroup_root.child("pod")
    eating, resting = pod.child("eating"), pod.child("resting")
    limit(pod, 16 * MIB)
    eater = spawn("memory", cgroup=eating, oom_score_adj=1000)
    spawn("memory", cgroup=resting).ask("free")

    async def job() -> list[Event]:
        async with EventStream() as stream:
            for name, cgroup in (("pod", pod), ("eating", eating), ("resting", resting)):
                stream.watch_oom(name, memory_directory(cgroup))
            eater.tell(f"allocate {32 * MIB}")
            events = await heard(
                stream,
                lambda events: (
                    any(event.oom_kills for event in of(OomNotified, events))
                    and len({event.path for event in of(OomNotified, events)}) == 3
                ),
            )
            return events + await quiet(stream)

    events = of(OomNotified, asyncio.run(job()))
    assert eater.wait() == -signal.SIGKILL
    assert {event.path for event in events if event.notifications} == {"pod", "eating", "resting"}
    kills = {
        name: sum(event.oom_kills for event in events if event.path == name)
        for name in ("pod", "eating", "resting")
    }
    assert kills == {"pod": 0, "eating": 1, "resting": 0}
    assert eating.counters("memory.oom_control")["oom_kill"] == 1


@pytest.mark.cgroup("v1")
def test_a_removed_cgroup_ends_its_subscription_with_an_event(cgroup_root: Cgroup):
    place, other = cgroup_root.child("place"), cgroup_root.child("other")

    async def job() -> list[Event]:
        async with EventStream() as stream:
            stream.watch_oom("/place", memory_directory(place))
            stream.watch_oom("/other", memory_directory(other))
            place.remove()
            return await heard(stream, bool) + await quiet(stream)

    assert asyncio.run(job()) == [
        SubscriptionEnded("/place", "memory.oom_control", "the cgroup was removed"),
    ]


@pytest.mark.cgroup("v1")
def test_a_removed_cgroup_ends_its_usage_threshold(cgroup_root: Cgroup):
    place = cgroup_root.child("place")
    with contextlib.closing(UsageThreshold("/place", memory_directory(place), 16 * MIB)) as threshold:
        place.remove()
        assert has_fired(threshold)
        assert list(threshold.ready()) == [
            SubscriptionEnded("/place", "memory.usage_in_bytes", "the cgroup was removed")
        ]


# cgroup v2


@pytest.mark.cgroup("v2")
def test_memory_events_are_reported_and_add_up_to_the_kernels_counters(cgroup_root: Cgroup, spawn: Spawn):
    pod = cgroup_root.child("pod")
    place = pod.child("place")
    limit(place, 16 * MIB)
    baseline = spawn("memory", cgroup=place)
    baseline.tell(f"allocate {32 * MIB}")
    assert baseline.wait() == -signal.SIGKILL  # before anyone listens: not to be counted
    before = place.counters("memory.events")
    eaters = [spawn("memory", cgroup=place) for _ in range(3)]
    for eater in eaters:
        eater.ask("free")  # else one that still starts could be killed for another's memory

    counters = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")

    def reported(events: list[Event], path: str) -> dict[str, int]:
        of_path = [event for event in of(MemoryEvents, events) if event.path == path]
        return {counter: sum(getattr(event, counter) for event in of_path) for counter in counters}

    async def job() -> tuple[dict[str, int], list[Event]]:
        async with EventStream() as stream:
            stream.watch_memory_events("place", memory_directory(place))
            stream.watch_memory_events("pod", memory_directory(pod))
            for eater in eaters:
                eater.tell(f"allocate {32 * MIB}")
                await asyncio.to_thread(eater.wait)
            # All have ended, so the kernel counts no more. Counts that follow a kill are reported after the kill.
            after = place.counters("memory.events")
            added = {counter: after[counter] - before[counter] for counter in counters}
            events = await heard(
                stream,
                lambda events: all(
                    reported(events, path)[counter] >= added[counter]
                    for path in ("place", "pod")
                    for counter in counters
                ),
            )
            return added, events + await quiet(stream)

    added, events = asyncio.run(job())
    assert reported(events, "place") == added
    assert reported(events, "pod") == added
    assert added["oom_kill"] == 3


@pytest.mark.cgroup("v2")
def test_a_cgroup_killed_as_a_whole_is_reported_as_one(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    limit(place, 16 * MIB)
    place.write("memory.oom.group", 1)
    bystander, eater = spawn("memory", cgroup=place), spawn("memory", cgroup=place)
    bystander.ask("free")
    both = {bystander.pid, eater.pid}

    async def job() -> list[Event]:
        async with EventStream() as stream:
            stream.watch_memory_events("place", memory_directory(place))
            stream.watch_kernel_log()
            eater.tell(f"allocate {32 * MIB}")
            await asyncio.to_thread(bystander.wait)
            events = await heard(
                stream,
                lambda events: (
                    len(killed(events, both)) >= 2
                    and any(event.oom_group_kill for event in of(MemoryEvents, events))
                ),
            )
            return events + await quiet(stream)

    events = asyncio.run(job())
    assert sum(event.oom_group_kill for event in of(MemoryEvents, events)) == 1
    records = killed(events, both)
    assert sorted(record.pid for record in records) == sorted(both)
    assert {record.limit_cgroup for record in records} == {place.path_in_hierarchy(cgroup_root)}


@pytest.mark.cgroup("v2")
def test_a_removed_cgroup_ends_its_subscription_and_its_successor_has_one_of_its_own(
    cgroup_root: Cgroup, spawn: Spawn
):
    place = cgroup_root.child("place")

    async def job() -> None:
        async with EventStream() as stream:
            stream.watch_memory_events("/place", memory_directory(place))
            place.remove()
            assert await heard(stream, bool) == [
                SubscriptionEnded("/place", "memory.events", "the cgroup was removed")
            ]

            again = cgroup_root.child("place")
            stream.watch_memory_events("/place", memory_directory(again))
            stream.unwatch("/place")
            again.remove()
            third = cgroup_root.child("place")  # all of this before the stream has had its turn
            stream.watch_memory_events("/place", memory_directory(third))
            assert await quiet(stream) == []

            limit(third, 16 * MIB)
            eater = spawn("memory", cgroup=third)
            eater.tell(f"allocate {32 * MIB}")
            await heard(stream, lambda events: any(event.oom_kill for event in of(MemoryEvents, events)))

    asyncio.run(job())


@pytest.mark.cgroup("v2")
def test_memory_pressure_at_a_limit_is_reported_by_the_kernel(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    place = cgroup_root.child("place")
    place.write("memory.high", 8 * MIB)
    trigger = Trigger(Resource.MEMORY, Kind.SOME, 50_000, 1_000_000)
    reader = spawn("memory", cgroup=place)

    with contextlib.closing(
        ArmedTrigger(cgroup_file(memory_directory(place), Resource.MEMORY), trigger)
    ) as armed:
        assert armed.trigger == trigger
        assert armed.note == ""  # with CAP_SYS_RESOURCE any window will do
        reader.tell(f"allocate {64 * MIB}")
        assert has_fired(armed)
        assert not armed.is_gone()


# Both


@pytest.mark.cgroup("v1", "v2")
def test_cpu_pressure_is_reported_with_the_window_that_is_allowed(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    directory = str(place.directories[UNIFIED])
    asked = Trigger(Resource.CPU, Kind.SOME, 50_000, 1_000_000)
    allowed = "CAP_SYS_RESOURCE" in parse_capabilities(Path("/proc/self/status").read_text()).effective
    for _ in range((os.cpu_count() or 1) + 1):
        spawn("spin", cgroup=place).answer()

    with contextlib.closing(ArmedTrigger(cgroup_file(directory, Resource.CPU), asked)) as armed:
        if allowed:
            assert armed.trigger == asked
        else:
            assert armed.trigger == asked._replace(stall_us=100_000, window_us=2_000_000)
            assert "without CAP_SYS_RESOURCE it must be a multiple of 2 s, so it is 2 s" in armed.note
        for _ in range(2):  # once in every window
            assert has_fired(armed)
            assert not armed.is_gone()


@pytest.mark.cgroup("v1", "v2")
def test_a_removed_cgroup_ends_its_pressure_trigger(cgroup_root: Cgroup):
    place = cgroup_root.child("place")
    trigger = Trigger(Resource.MEMORY, Kind.FULL, 100_000, 2_000_000)

    file = cgroup_file(str(place.directories[UNIFIED]), Resource.MEMORY)
    with contextlib.closing(ArmedTrigger(file, trigger)) as armed:
        assert not has_fired(armed, seconds=0.3)
        place.remove()
        assert has_fired(armed)
        assert armed.is_gone()


@pytest.mark.cgroup("v1", "v2")
def test_the_whole_machines_pressure_can_be_watched():
    asked = Trigger(Resource.IO, Kind.SOME, 1_999_999, 2_000_000)
    with contextlib.closing(ArmedTrigger(node_file(Resource.IO), asked)) as armed:
        assert armed.trigger == asked
        assert not armed.is_gone()


@pytest.mark.req("E6")
@pytest.mark.cgroup("v1", "v2")
def test_an_oom_kill_of_a_child_process_leaves_a_record_with_process_cgroup_limit_and_figures(
    cgroup_root: Cgroup, spawn: Spawn
):
    pod = cgroup_root.child("pod")
    place = pod.child("place")
    limit(pod, 16 * MIB)

    async def job() -> list[OomRecord]:
        # It says which process is to be killed, and then executes it.
        script = f"sh -c 'echo $$; exec {programs()}/memory'; echo survived; read line"
        shell = spawn("/bin/sh", "-c", script, cgroup=place, oom_score_adj=500)
        async with EventStream() as stream:
            child = int(await asyncio.to_thread(shell.answer))
            stream.watch_kernel_log()
            shell.tell(f"allocate {32 * MIB}")
            assert await asyncio.to_thread(shell.answer) == "survived"
            events = await heard(stream, lambda events: bool(killed(events, {child})))
            return killed(events + await quiet(stream), {child})

    def recorded() -> OomRecord | None:
        """The kernel logs the figures of at most ten kills in five seconds, for the whole machine."""
        (record,) = asyncio.run(job())
        return record if record.limit_cgroup else None

    record = eventually(recorded)
    assert record.process == "memory"
    assert record.constraint == "memcg"
    assert (record.cgroup, record.limit_cgroup) == (
        place.path_in_hierarchy(cgroup_root),
        pod.path_in_hierarchy(cgroup_root),
    )
    assert record.limit_bytes == 16 * MIB
    assert 15 * MIB < record.usage_bytes <= 16 * MIB
    assert 8 * MIB < record.anon_rss_bytes <= 16 * MIB
    assert record.oom_score_adj == 500


@pytest.mark.req("E6")
@pytest.mark.cgroup("v1", "v2")
def test_every_one_of_many_kills_in_a_row_is_recorded_once(cgroup_root: Cgroup, spawn: Spawn):
    """More than the kernel prints a header for: what it does not say, the record does not claim."""
    place = cgroup_root.child("place")
    limit(place, 8 * MIB)
    eaters = [spawn("memory", cgroup=place) for _ in range(15)]
    for eater in eaters:
        eater.ask("free")
    pids = {eater.pid for eater in eaters}

    async def job() -> list[Event]:
        async with EventStream() as stream:
            stream.watch_kernel_log()
            for eater in eaters:
                eater.tell(f"allocate {16 * MIB}")
            events = await heard(stream, lambda events: len(killed(events, pids)) >= len(eaters))
            return events + await quiet(stream)

    ours = killed(asyncio.run(job()), pids)
    for eater in eaters:
        assert eater.wait() == -signal.SIGKILL
    assert sorted(record.pid for record in ours) == sorted(pids)
    assert {record.cgroup for record in ours} <= {place.path_in_hierarchy(cgroup_root), ""}
    assert {record.constraint for record in ours} == {"memcg"}


@pytest.mark.req("E6")
@pytest.mark.cgroup("v1", "v2")
def test_records_written_while_nobody_listened_are_read_afterwards(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    limit(place, 8 * MIB)

    async def record_of(pid: int | None, after_sequence: int | None) -> OomRecord:
        async with EventStream() as stream:
            stream.watch_kernel_log(after_sequence)
            one = pid or eat()
            (record,) = killed(await heard(stream, lambda events: bool(killed(events, {one}))), {one})
            return record

    def eat() -> int:
        eater = spawn("memory", cgroup=place)
        eater.tell(f"allocate {16 * MIB}")
        assert eater.wait() == -signal.SIGKILL
        return eater.pid

    first = asyncio.run(record_of(None, None))
    missed = eat()
    second = asyncio.run(record_of(missed, first.sequence))
    assert second.sequence > first.sequence
