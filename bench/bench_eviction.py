"""The time from the crossing of a hard threshold to the kill, and until the memory is free; and the cost of an idle
watch.

A pod allocates as fast as the machine can, among 110 that do nothing. Beside the agent stands a C program that awaits
the same event of the kernel, in a cgroup with the same limit, and kills the whole cgroup; the crossing is seen by that
same program in both cases. All times are on one clock. cgroup v1 has that event; on v2 the program reads the usage all
the time instead.

The program only kills: its allocator frees the memory by itself, with the shares of an ordinary cgroup. That of the pod
has the shares of a BestEffort pod, and the agent's watch frees its memory. So beside busy loops the two cannot be
compared: "memory back" then shows how long the node is short of memory, not the cost of the watch."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median, quantiles

from tests.kernel.cgroups import UNIFIED, Cgroup
from tests.machines.programs import programs

from bench.bench_agent import resident_mib
from bench.evicting_agent import (
    MIB,
    NODE_MIB,
    STEPS,
    THRESHOLD_MIB,
    Kills,
    agent,
    cgroup,
    client_pid,
    is_under_pressure,
    pod,
    root_of,
    until,
)
from bench.figure import Figure, Target, ratio_at_most, value_at_most
from bench.processes import Waits, below, named, proportional_mib, run_seconds, waits
from bench.reference import compiled
from evenkeel.cli.client import Client
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.watch.guard import NAME as GUARD
from evenkeel.pressure.watch.process import NAME as WATCH

# `--rounds`, for each of the two phases. With fewer than 300 rounds, the 99th percentile is little better than the
# maximum.
ROUNDS = int(os.environ.get("EVENKEEL_ROUNDS", "100"))
IDLE_PODS = 110
SUPERVISOR = "supervisor"  # its name in /proc
IDLE_SECONDS = 10.0
MARK = (NODE_MIB - THRESHOLD_MIB) * MIB
# A pod within its request holds so much all the time: to fill all of the node in each round would take an hour. What is
# left is more than the way on which the watch prepares, 410 MiB with two processors.
BALLAST_MIB = 1480
STALE = 2.0  # milliseconds: reports of an earlier crossing are older
BACK = 64 * MIB  # more than was used before: the rest is the kernel's own


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, cgroup() as root:
        program = str(compiled("eviction_reference", directory))
        state = f"{directory}/state"
        with agent(root, state) as client:
            yield from idle(client)
            numbers, kills = count(), Kills(state)
            for title, load in (("", no_load), (", under load", partial(under_load, state))):
                ours, references = [], []
                before, began = processor_times(Path("/proc/stat").read_text()), time.monotonic()
                with load():
                    for _ in range(ROUNDS):
                        ours.append(evicted(client, kills, root, program, next(numbers)))
                        references.append(reference_killed(root, program, used(root_of(root, "kubepods"))))
                lasted = time.monotonic() - began
                yield from compared(ours, references, title)
                yield Figure(f"a round and its reference{title}", lasted / ROUNDS, "s", None, None, None)
                taken, whole = (
                    now - then
                    for now, then in zip(processor_times(Path("/proc/stat").read_text()), before, strict=True)
                )
                # On a virtual machine, the hypervisor may take the processor away ("steal"). The process on it then
                # does not run for milliseconds.
                yield Figure(
                    f"processor time that was taken from this machine meanwhile{title}",
                    taken / whole * 100,
                    "%",
                    None,
                    None,
                    None,
                )


@contextmanager
def no_load() -> Iterator[None]:
    yield


@contextmanager
def under_load(state: str) -> Iterator[None]:
    """Two loops that never sleep, and a thousand readers of the agent."""
    from bench.bench_readers import readers

    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with readers(state):
            yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def processor_times(stat: str) -> tuple[int, int]:
    """The time that the hypervisor took from all processors ("steal"), and their total time."""
    numbers = [int(word) for word in stat.splitlines()[0].split()[1:9]]
    return numbers[7], sum(numbers)


class Round(NamedTuple):
    """An eviction, in milliseconds since the usage crossed the threshold."""

    sent: float  # the kill
    back: float  # the memory
    stages: tuple[float, ...] = ()  # those of STEPS
    waits: Waits = Waits(0.0, 0, 0, 0)  # of the watch, from the start of the pod until its memory was back

    @property
    def steps(self) -> dict[str, float]:
        """How long each step took."""
        ends = (0.0, *self.stages, self.sent)
        names = (*STEPS.values(), "kill")
        return {name: after - before for name, (before, after) in zip(names, pairwise(ends), strict=True)}


def compared(ours: list[Round], references: list[Round], title: str) -> Iterator[Figure]:
    sent, back = [one.sent for one in ours], [one.back for one in ours]
    sent_reference, back_reference = [one.sent for one in references], [one.back for one in references]
    crossed = "threshold crossed to"
    yield figure(f"{crossed} kill sent{title}, median", sent, sent_reference, 50, value_at_most(1))
    yield figure(f"{crossed} kill sent{title}, p99", sent, sent_reference, 99, value_at_most(5))
    yield figure(f"{crossed} memory back{title}, median", back, back_reference, 50, ratio_at_most(1.3))
    yield figure(f"{crossed} memory back{title}, p99", back, back_reference, 99, ratio_at_most(1.5))
    ranking = median(one.steps["reading"] + one.steps["ranking"] for one in ours)
    yield Figure(
        f"{IDLE_PODS} pods read and ranked at that moment{title}, median",
        ranking,
        "ms",
        None,
        None,
        value_at_most(0.5),
    )
    middle = {name: median(one.steps[name] for one in ours) for name in ours[0].steps}
    yield Figure(
        f"the median of each step{title}: {said(middle)}", sum(middle.values()), "ms", None, None, None
    )
    worst = max(ours, key=lambda one: one.sent)
    reference = references[ours.index(worst)].sent
    name = f"the worst round{title}: {said(worst.steps)}; {cause(worst, middle)}"
    yield Figure(name, worst.sent, "ms", reference, worst.sent / reference, None)


def cause(worst: Round, middle: dict[str, float]) -> str:
    """Which step took longest beyond its median, and what the watch waited for in that round."""
    late = {name: took - middle[name] for name, took in worst.steps.items()}
    slowest = max(late, key=late.__getitem__)
    queued, faults, disk_faults, pushed_aside = worst.waits
    return (
        f"late by {late[slowest]:.2f} in {slowest}; in the whole round {queued * 1000:.2f} without a processor, "
        f"{faults} page faults and {disk_faults} from disk, pushed aside {pushed_aside} times"
    )


def said(steps: dict[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in steps.items())


def figure(
    name: str, values: list[float], references: list[float], percent: int, target: Target | None
) -> Figure:
    value, reference = (percentile(column, percent) for column in (values, references))
    return Figure(name, value, "ms", reference, value / reference, target)


def percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


# An eviction


def evicted(client: Client, kills: Kills, root: Cgroup, program: str, number: int) -> Round:
    until(lambda: not is_under_pressure(client))
    name = f"eater-{number}"
    pods = root_of(root, "kubepods")
    drop_cache(pods)
    watch = named(below(client_pid[client]), WATCH)
    with watching(program, pods) as wait_for_times:
        client.apply(pod(name, [str(programs() / "grow"), "anon", str(16 << 30), "0"]))
        before = waits(watch)
        times = wait_for_times()
        waited = waits(watch) - before
    until(lambda: (client.pod_or_none("default", name) or {}).get("status", {}).get("phase") == "Failed")
    status = client.pod("default", name)["status"]
    assert status.get("reason") == "Evicted", status
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] != "OOMKilled", (
        "the kernel was first"
    )
    killed = until(lambda: kills.last_of(name))
    client.delete("default", name)
    until(lambda: client.pod_or_none("default", name) is None)
    woken_at = killed.stages[1]
    # If the watch was quicker than the kernel's report, the time of the crossing is not known. Then all steps of the
    # watch count.
    crossed = times["crossed"] or woken_at * 1000
    reported, woken, *others = (at * 1000 - crossed for at in killed.stages)
    if not -STALE <= reported <= woken:
        reported = woken  # it is of an earlier crossing: the watch was quicker than the report
    sent, back = killed.sent * 1000 - crossed, times["back"] - crossed
    return Round(sent, back, (reported, woken, *others), waited)


def drop_cache(place: Cgroup) -> None:
    """Cache that can be dropped counts as available. With cache, the threshold is crossed later than usage alone
    suggests. The reference knows only usage, so there must be no cache."""
    if place.has("memory.force_empty"):
        place.write("memory.force_empty", 0)
    else:
        with suppress(OSError):  # there was less
            place.write("memory.reclaim", NODE_MIB * MIB)


def used(place: Cgroup) -> int:
    return int(place.read("memory.current" if place.has("memory.current") else "memory.usage_in_bytes"))


def ballast() -> dict:
    """A pod that uses most of the node, and is within its request."""
    made = pod("ballast", [str(programs() / "grow"), "anon", str(BALLAST_MIB * MIB), "0"])
    made["spec"]["containers"][0]["resources"] = {"requests": {"memory": f"{BALLAST_MIB + 16}Mi"}}
    return made


def idle(client: Client) -> Iterator[Figure]:
    """The share of one core that the watch and its guard use when idle, and their memory."""
    client.apply({"apiVersion": "v1", "kind": "List", "items": [
        pod(f"idle-{number}", ["sleep", "infinity"]) for number in range(IDLE_PODS - 1)
    ]})  # fmt: skip
    client.apply(ballast())
    until(lambda: sum(p["status"]["phase"] == "Running" for p in client.pods()) == IDLE_PODS, 120)
    time.sleep(2)  # until work after the starts is done
    agent = client_pid[client]
    processes = [agent, *below(agent)]
    watch, guard = (named(processes, name) for name in (WATCH, GUARD))
    began, before = time.monotonic(), run_seconds(watch) + run_seconds(guard)
    time.sleep(IDLE_SECONDS)
    percent = (run_seconds(watch) + run_seconds(guard) - before) / (time.monotonic() - began) * 100
    yield Figure(f"watching {IDLE_PODS} idle pods", percent, "% of a core", None, None, value_at_most(0.1))
    yield Figure("the watch's memory", resident_mib(watch), "MiB", None, None, value_at_most(16))
    supervisor = named(processes, SUPERVISOR)
    whole = sum(map(proportional_mib, (agent, supervisor, watch, guard)))
    yield Figure(
        f"the memory of agent, supervisor, watch and guard with {IDLE_PODS} pods",
        whole,
        "MiB",
        None,
        None,
        value_at_most(75),
    )


# The reference


def reference_killed(root: Cgroup, program: str, held_bytes: int) -> Round:
    """The same allocator in a cgroup of its own, killed by the C program that waits for the same event. Its threshold
    is as far away as that of the pods, which use `held_bytes` before it starts."""
    place = root.child("reference")
    try:
        limit = "memory.max" if place.has("memory.max") else "memory.limit_in_bytes"
        place.write(limit, NODE_MIB * MIB - held_bytes)
        kill = str(place.directories[UNIFIED] / "cgroup.kill")
        with watching(program, place, MARK - held_bytes, kill) as wait_for_times:
            command = [
                programs() / "enter",
                "-",
                *place.paths(),
                "--",
                programs() / "grow",
                "anon",
                16 << 30,
                0,
            ]
            eater = subprocess.Popen([str(word) for word in command])
            times = wait_for_times()
            eater.wait(60)
        return Round(times["sent"] - times["crossed"], times["back"] - times["crossed"])
    finally:
        place.remove()


@contextmanager
def watching(program: str, place: Cgroup, mark: int = MARK, kill: str = "") -> Iterator:
    """A function that waits for the times, in milliseconds."""
    directory = str(place.file("memory.stat").parent)
    command = [program, directory, str(mark), str(used(place) + BACK), *([kill] if kill else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def wait_for_times() -> dict[str, float]:
        text, _ = process.communicate(timeout=90)
        assert process.returncode == 0, f"the reference ended with {process.returncode}"
        return {word: int(number) / 1e6 for word, number in (line.split() for line in text.splitlines())}

    try:
        yield wait_for_times
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
