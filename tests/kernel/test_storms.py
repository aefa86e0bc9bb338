"""Storms: no pod within its request is harmed, no pod is evicted in vain, and the journal has all of it."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.journal.store import Decision as Recorded
from evenkeel.journal.store import Journal
from evenkeel.policy.amounts import PAGE_BYTES
from evenkeel.policy.eviction.snapshot import PodFigures, PodSnapshot
from evenkeel.policy.eviction.thresholds import threshold_amount
from evenkeel.policy.eviction.usage import Resource, usage
from evenkeel.policy.pod_resources import eviction_request
from evenkeel.policy.qos import QoSClass, pod_class
from evenkeel.pressure.decision_records import EVICTION_KIND, replayed_eviction
from evenkeel.pressure.eviction_steps import Step
from tests.kernel.agents import MIB, MakeUp, Up, up
from tests.kernel.planned import memory_bytes
from tests.kernel.storms import NODE_MIB, THRESHOLD_MIB, Storm, seeds, storm
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = pytest.mark.long

IS_GUEST = os.environ.get("EVENKEEL_MACHINE") != "host"
CALM_SECONDS = 1.5
LONGEST_SECONDS = 120.0
# A load that reads a file larger than the room is at the limit, and the kernel takes back some of its cache all the
# time. One that grows takes this much in a seventh of a second.
MOVES_BYTES = 8 * MIB
# On each processor the kernel counts up to 64 pages ahead as used, of as many cgroups (7 since Linux 6.16): by so much
# usage may fall afterwards, without any memory being freed.
CHARGED_AHEAD_BYTES = 64 * PAGE_BYTES * 7 * (os.cpu_count() or 1)
KERNEL_CLOCK_SECONDS = 0.5  # that of its log may be behind; calm between two storms lasts longer


@pytest.mark.req("A5", "A15", "A20", "B8", "E1", "E2", "E12", "E14")
def test_storms(up: MakeUp):
    agent = started(up)
    ride_out_all(agent, 1 if agent.containerd else 3 if IS_GUEST else 10, lambda _: None)


@pytest.mark.processes_only("the kind of containers does not matter here")
@pytest.mark.req("A5", "A15", "A20", "E1", "E2", "E14")
def test_storms_in_which_the_agent_is_killed_or_stopped(up: MakeUp):
    """At a random moment of each: the process that watches memory goes on alone."""
    agent = started(up)
    ride_out_all(agent, 2 if IS_GUEST else 6, lambda weather: without_agent(agent, weather))


def started(up: MakeUp) -> Up:
    agent = up(
        f"--eviction-hard=memory.available<{THRESHOLD_MIB}Mi",
        "--eviction-pressure-transition-period=500ms",
        node=f"{NODE_MIB}Mi,2cpu",
    )
    agent.start()
    agent.await_watch()
    return agent


def ride_out_all(agent: Up, default: int, meanwhile: Callable[[Storm], None]) -> None:
    last = 0
    for seed in seeds(default):
        weather = storm(seed)
        print(weather, flush=True)
        try:
            last = ride_out(agent, weather, last, meanwhile)
        except AssertionError as error:
            raise AssertionError(f"{weather}: {error}\n{agent.log_tail()}") from error


def without_agent(agent: Up, weather: Storm) -> None:
    """The agent is away for a while. The moment, the way and the length follow from the storm's seed."""
    chance = random.Random(weather.seed)
    time.sleep(chance.uniform(0.0, 2.0))  # the moment is part of the story
    watch = agent.watch_pid()
    if chance.random() < 0.5:
        print("  the agent is killed", flush=True)
        agent.kill()
        time.sleep(chance.uniform(0.0, 1.5))
        agent.start()
    else:
        print("  the agent is stopped", flush=True)
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, 2.0))
        os.kill(agent.pid, signal.SIGCONT)
    assert agent.watch_pid() == watch


def ride_out(agent: Up, weather: Storm, last: int, meanwhile: Callable[[Storm], None]) -> int:
    """One storm from its first pod to the last one's removal; the number of the last decision."""
    began_at = time.monotonic()
    agent.apply(*weather.quiet)
    for one in weather.quiet:
        agent.await_phase(name(one), "Running")
    eventually(lambda: memory_bytes(agent.cgroup()) >= weather.quiet_bytes)
    agent.apply(*weather.loads)
    meanwhile(weather)
    await_calm(agent, weather)
    steps = decisions(agent, last)
    check_quiet(agent, weather)
    check_once(steps)
    for record, step in steps:
        check_step(record, step)
    check_last(agent, weather, steps)
    kills = [kill for kill in kernel_kills(agent, weather) if kill[2] > began_at - KERNEL_CLOCK_SECONDS]
    for pod, used_bytes, at in kills:
        check_kernel_kill(pod, used_bytes, at, steps)
    evicted = {one for one in map(name, weather.loads) if agent.status(one).get("reason") == "Evicted"}
    chosen = {eviction.pod.metadata.name for _, step in steps for eviction in step.decision.evictions}
    by_kernel = {pod.partition("/")[2] for pod, _, _ in kills}
    assert evicted - by_kernel <= chosen
    print(
        f"  evicted {sorted(evicted) or 'nobody'}, by the kernel {sorted(by_kernel) or 'nobody'}", flush=True
    )
    for one in (*weather.quiet, *weather.loads):
        agent.client.delete("default", name(one), grace_seconds=0)
    for one in (*weather.quiet, *weather.loads):
        agent.await_gone(name(one))
    eventually(lambda: not under_pressure(agent))
    return max([last, *(record.number for record, _ in decisions(agent, last))])


def await_calm(agent: Up, weather: Storm) -> None:
    """Waits until all admitted pods have started, and nothing changes any more."""
    deadline = time.monotonic() + LONGEST_SECONDS
    since, rests_at, before = time.monotonic(), -MOVES_BYTES, ""
    while time.monotonic() - since < CALM_SECONDS * (4 if IS_GUEST else 1):
        assert time.monotonic() < deadline, f"it does not come to rest: {rests_at} bytes, {before}"
        phases = " ".join(agent.phase(name(one)) for one in weather.loads)
        used = memory_bytes(agent.cgroup())
        if abs(used - rests_at) >= MOVES_BYTES or phases != before or "Pending" in phases:
            since, rests_at, before = time.monotonic(), used, phases
        time.sleep(0.05)


def check_quiet(agent: Up, weather: Storm) -> None:
    for one in weather.quiet:
        status = agent.status(name(one))
        assert status["phase"] == "Running", f"{name(one)} kept to its request and is {status}"
        assert not status["containerStatuses"][0].get("restartCount"), f"{name(one)} was started again"


def check_once(steps: list[tuple[Recorded, Step]]) -> None:
    victims = [
        eviction.pod.metadata.uid
        for record, step in steps
        for eviction in step.decision.evictions
        if isinstance(record.decision, dict)
        and record.decision["isDone"]
        and not record.decision.get("byKernel")
    ]
    assert len(victims) == len(set(victims)), "an eviction is recorded twice"


def check_step(record: Recorded, step: Step) -> None:
    """Each evicted pod was first in rank and above its request, and its eviction was needed: the memory left was not
    enough, pending memory included."""
    decision = step.decision
    for eviction in decision.evictions:
        key = eviction.pod.key
        assert key == first_in_rank(step), f"{key} went in decision {record.number}, before the first in rank"
        assert over_request(seen_of(step, key)) > 0, f"{key} was within its request"
        assert decision.acting_on is not None
        found = decision.observations[decision.acting_on.signal]
        assert found.available < threshold_amount(decision.acting_on.value, found.capacity)


def check_last(agent: Up, weather: Storm, steps: list[tuple[Recorded, Step]]) -> None:
    """Now that all is over: with the last victim still there, there would be less left than the threshold."""
    said: list[Any] = [record.decision for record, _ in steps]
    done = [
        step
        for one, (_, step) in zip(said, steps, strict=True)
        if one["isDone"] and step.decision.victim is not None
    ]
    if not done or weather.has_cache:  # cache that was unwritten then may be dropped by now
        return
    victim = done[-1].decision.victim
    assert victim is not None
    held = usage(seen_of(done[-1], victim.pod.key), Resource.MEMORY) or 0
    left = NODE_MIB * MIB - memory_bytes(agent.cgroup())
    assert left - held < THRESHOLD_MIB * MIB + CHARGED_AHEAD_BYTES, (
        f"{victim.pod.key} went for nothing: {(left - held) // MIB} MiB would be left with it"
    )


def check_kernel_kill(pod: str, used_bytes: int, at: float, steps: list[tuple[Recorded, Step]]) -> None:
    """The kernel's OOM killer took the pod that was first in rank at that moment, and above its request."""
    then = [
        step
        for record, step in steps
        if isinstance(record.decision, dict)
        and record.decision.get("byKernel")
        and -0.1 < record.decision["beganAt"] - at < 5
    ]
    assert then, f"the kernel killed {pod}, and nobody looked"
    # Some of its memory may be back already.
    step = with_usage(then[0], pod, used_bytes)
    assert over_request(seen_of(step, pod)) > 0, f"the kernel killed {pod}, within its request"
    first = first_in_rank(step)
    assert first == pod, f"the kernel killed {pod}, and {first} was first in rank"


def first_in_rank(step: Step) -> str:
    """The first pod in rank, computed from the rule and not by the code under test: among pods above their request
    BestEffort pods come before Burstable ones, then the pod that is above it by the most."""
    places = {QoSClass.BEST_EFFORT: 0, QoSClass.BURSTABLE: 1, QoSClass.GUARANTEED: 2}
    above = [seen for seen in step.snapshot.pods if over_request(seen) > 0]
    above.sort(key=lambda seen: (places[pod_class(seen.pod, Profile.DOCUMENTS)], -over_request(seen)))
    return above[0].pod.key if above else ""


def over_request(seen: PodSnapshot) -> int:
    return (usage(seen, Resource.MEMORY) or 0) - eviction_request(seen.pod, Resource.MEMORY).value


def seen_of(step: Step, pod: str) -> PodSnapshot:
    return next(seen for seen in step.snapshot.pods if seen.pod.key == pod)


def with_usage(step: Step, pod: str, used_bytes: int) -> Step:
    pods = tuple(
        seen._replace(stats=PodFigures(Amount(max(used_bytes, usage(seen, Resource.MEMORY) or 0))))
        if seen.pod.key == pod
        else seen
        for seen in step.snapshot.pods
    )
    return step._replace(snapshot=step.snapshot._replace(pods=pods))


def kernel_kills(agent: Up, weather: Storm) -> list[tuple[str, int, float]]:
    """Pods that the kernel killed a process of because all pods together were at their limit, what that used, and when
    by the machine's clock. Those of the storms before had the same names."""
    root = f"/{agent.cgroup().paths()[0].parent.name}/kubepods"
    found: list[tuple[str, int, float]] = []
    with Journal.read(str(agent.state / "journal.db")) as journal:
        for one in (*weather.quiet, *weather.loads):
            uid = agent.pod(name(one))["metadata"]["uid"]
            for reported in journal.events(f"default/{name(one)}", 1000):
                if reported.reason == "OOMKilling" and reported.uid == uid:
                    assert reported.figures.get("limit_cgroup", root) == root, reported
                    parts = ("anon_rss_bytes", "file_rss_bytes", "shmem_rss_bytes")
                    used = sum(reported.figures.get(part, 0) for part in parts)
                    boot_seconds = reported.figures["boot_seconds"]
                    assert isinstance(boot_seconds, int | float)
                    found.append((f"default/{name(one)}", used, boot_seconds))
    return found


def decisions(agent: Up, after: int) -> list[tuple[Recorded, Step]]:
    with Journal.read(str(agent.state / "journal.db")) as journal:
        return [(record, replayed_eviction(record)[0]) for record in journal.decisions(EVICTION_KIND, after)]


def under_pressure(agent: Up) -> bool:
    conditions = agent.client.get("/node")["status"]["conditions"]
    return any(one["type"] == "MemoryPressure" and one["status"] == "True" for one in conditions)


def name(one: dict) -> str:
    return one["metadata"]["name"]
