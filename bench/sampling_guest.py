"""`python -m bench.sampling_guest REFERENCE`: what `bench sampling` measures, on a machine that is thrown away.

It runs one agent, whose node is large enough that an idle node is sampled rarely. A pod within its request then fills
it to BASE_MIB above the line, from where others grow. A line of JSON for each figure (`bench_sampling.Cost`,
`Crossing`)."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.cgroups import UNIFIED, Cgroup
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

from bench.bench_eviction import GUARD, WATCH
from bench.bench_sampling import (
    AGENT,
    KINDS,
    LINE_MIB,
    NODE_MIB,
    PODS,
    REFERENCE,
    ROUNDS,
    Cost,
    Crossing,
    Kind,
    crossing_of,
    numbers,
    voluntary_switches,
)
from bench.evicting_agent import Kills, cgroup, is_under_pressure, pod, root_of, running
from bench.processes import below, named, run_seconds
from evenkeel.cli.client import Client

MIB = 1 << 20
BASE_MIB = 128  # left above the threshold, for the pods that cross it
NEAR_MIB = 8
STATE = "/scratch/state"
SETTLING_SECONDS = 15.0
IDLE_SECONDS = 60.0
NEAR_SECONDS = 20.0
PATIENCE_SECONDS = 600.0  # emulated, everything takes its time
POD_BYTES = 2 * MIB  # that a pod's own process and page tables take, at the most
EATER_BYTES = 4096 * MIB


def main(reference: str) -> None:
    if os.environ.get("EVENKEEL_MACHINE") != "v2":
        sys.exit("This fills the machine's memory: it is for the guest of `bench sampling`.")
    with cgroup() as root:
        root.write("memory.max", (NODE_MIB + 512) * MIB)
        with agent(root) as (client, pid):
            pods = root_of(root, "kubepods")
            start(client, *(pod(f"idle-{number}", ["sleep", "100000"]) for number in range(PODS)))
            time.sleep(SETTLING_SECONDS)  # until work after the starts is done
            print(cost(pods, pid, reference, IDLE_SECONDS).to_json(), flush=True)
            fill(client, pods, "base", BASE_MIB, is_requested=True)
            fill(client, pods, "near", NEAR_MIB)
            time.sleep(SETTLING_SECONDS)
            print(cost(pods, pid, reference, NEAR_SECONDS).to_json(), flush=True)
            end(client, "near")
            for kind in KINDS:
                for number in range(ROUNDS):
                    print(stopped(client, pods, reference, kind, number).to_json(), flush=True)
                    print(killed(root, reference, kind).to_json(), flush=True)


@contextmanager
def agent(root: Cgroup) -> Iterator[tuple[Client, int]]:
    """Its client, and its number."""
    node = ("--cgroup-root", f"/{root.paths()[0].name}", "--node", f"{NODE_MIB}Mi,2cpu")
    most = ("--max-pods", str(PODS + 10))
    with running(STATE, LINE_MIB, *node, *most, patience_seconds=PATIENCE_SECONDS) as started:
        yield started


def start(client: Client, *pods: dict) -> None:
    names = {one["metadata"]["name"] for one in pods}
    client.apply({"apiVersion": "v1", "kind": "List", "items": list(pods)})

    def run() -> bool:
        phases = {one["metadata"]["name"]: one["status"]["phase"] for one in client.pods()}
        return all(phases.get(name) == "Running" for name in names)

    eventually(run, within_seconds=PATIENCE_SECONDS)


def end(client: Client, name: str) -> None:
    client.delete("default", name, 0)
    eventually(lambda: client.pod_or_none("default", name) is None, within_seconds=PATIENCE_SECONDS)
    eventually(lambda: not is_under_pressure(client), within_seconds=PATIENCE_SECONDS)


def fill(client: Client, pods: Cgroup, name: str, left_mib: int, *, is_requested: bool = False) -> None:
    """A pod that uses all but so much of what is left above the line."""
    size = headroom_bytes(pods) - left_mib * MIB - POD_BYTES
    one = pod(name, [str(programs() / "grow"), "anon", str(size), "0"])
    if is_requested:
        request = {"memory": str(size + size // 64 + POD_BYTES)}
        one["spec"]["containers"][0]["resources"] = {"requests": request}
    start(client, one)
    eventually(
        lambda: headroom_bytes(pods) < (left_mib + 2) * MIB + POD_BYTES, within_seconds=PATIENCE_SECONDS
    )


def headroom_bytes(pods: Cgroup) -> int:
    return line_bytes(pods) - int(pods.read("memory.current"))


def line_bytes(pods: Cgroup) -> int:
    """The usage at which the pods' cgroup is at the line. Cache is in it, some of which the agent may leave out: it
    crosses later then, never before."""
    return int(pods.read("memory.max")) - LINE_MIB * MIB


# What it costs


def cost(pods: Cgroup, pid: int, reference: str, seconds: float) -> Cost:
    watch, guard = (named(below(pid), name) for name in (WATCH, GUARD))
    began, ran, waited = time.monotonic(), run_seconds(watch) + run_seconds(guard), waits(watch)
    time.sleep(seconds)
    looks, ran = waits(watch) - waited, run_seconds(watch) + run_seconds(guard) - ran
    took = time.monotonic() - began
    command = [reference, "looks", pods.paths()[0], looks, int(took * 1e9)]
    said = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    return Cost(headroom_bytes(pods) // MIB, looks, took, ran, numbers(said)["took"] / 1e9)


def waits(pid: int) -> int:
    return voluntary_switches(Path(f"/proc/{pid}/status").read_text())


# How close it comes


def stopped(client: Client, pods: Cgroup, reference: str, kind: Kind, number: int) -> Crossing:
    """A crossing that the agent stops."""
    name = f"eater-{KINDS.index(kind)}-{number}"
    line, limit = line_bytes(pods), int(pods.read("memory.max"))
    with watching(reference, pods, line) as found:
        client.apply(pod(name, allocator(kind)))
        try:
            seen = found()
        except AssertionError as error:
            status = client.pod("default", name)["status"]
            left = headroom_bytes(pods) // MIB
            raise AssertionError(
                f"{error}; {left} MiB are left above the line, and {name} is {status}"
            ) from error
    eventually(
        lambda: client.pod("default", name)["status"]["phase"] == "Failed", within_seconds=PATIENCE_SECONDS
    )
    ended = client.pod("default", name)["status"]["containerStatuses"][0]["state"]["terminated"]["reason"]
    sent = None
    if ended != "OOMKilled":
        sent = eventually(lambda: Kills(STATE).last_of(name), within_seconds=PATIENCE_SECONDS).sent * 1e9
    end(client, name)
    return crossing_of(AGENT, kind, seen, sent, line=line, limit=limit)


def killed(root: Cgroup, reference: str, kind: Kind) -> Crossing:
    """A crossing that the C program stops, in a cgroup with as much memory above and below its threshold."""
    place = root.child("reference")
    try:
        line, limit = BASE_MIB * MIB, (BASE_MIB + LINE_MIB) * MIB
        place.write("memory.max", limit)
        with watching(reference, place, line, str(place.directories[UNIFIED] / "cgroup.kill")) as found:
            command = [str(programs() / "enter"), "-", str(place.paths()[0]), "--", *allocator(kind)]
            eater = subprocess.Popen(command)
            seen = found()
            eater.wait(PATIENCE_SECONDS)
        return crossing_of(REFERENCE, kind, seen, seen["sent"], line=line, limit=limit)
    finally:
        place.remove()


def allocator(kind: Kind) -> list[str]:
    return [str(programs() / "grow"), "anon", str(EATER_BYTES), str(kind.rate_mib * MIB)]


@contextmanager
def watching(reference: str, place: Cgroup, line: int, *kill: str) -> Iterator[Callable[[], dict[str, int]]]:
    """A function that waits for the crossing and what comes of it."""
    back = line - BASE_MIB // 4 * MIB
    command = [reference, "line", str(place.paths()[0]), str(line), str(back), *kill]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def found() -> dict[str, int]:
            text, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, f"the reference ended with {process.returncode}"
            return numbers(text)

        try:
            yield found
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
