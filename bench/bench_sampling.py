"""cgroup v2 has no event for usage above a threshold: the cost of sampling instead, and how late it sees a crossing.

In one boot of a virtual machine with cgroup v2 (sampling_guest.py), the samples of the agent's watch are counted, with
110 idle pods: first with much memory left, then with a pod just above the hard threshold, where it samples most often.
A C program reads the same files as often. Then pods grow over the threshold. For comparison, a C program reads the
usage of a cgroup all the time, and kills. The machine is emulated: Python becomes 10 to 20 times slower there and C not
quite as much, so a share of its processor is no figure of a real one. The ratio is, and it is the worst for us."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from statistics import median

from tests.machines.cache import CACHE

from bench.figure import Figure, failed, value_at_most
from bench.guest import Guest, lines_from
from bench.reference import compiled
from evenkeel.named_tuples import NamedTuple

AGENT, REFERENCE = "evenkeel", "C"
PODS = 110
NODE_MIB = 4096
LINE_MIB = 100  # of available memory
GUEST_MIB = 6144  # the kernel gives it memory when it uses some
GUEST_SECONDS = 1200
ROUNDS = 5


class Kind(NamedTuple):
    name: str
    rate_mib: int  # a second; 0: as fast as it can


KINDS = (Kind("at 64 MiB/s", 64), Kind("at 256 MiB/s", 256), Kind("as fast as it can", 0))


class Cost(NamedTuple):
    """The cost of sampling for a while. `reference` is the cost of the same number of samples in the C program."""

    headroom_mib: int  # above the line
    looks: int
    seconds: float
    run_seconds: float
    reference_run_seconds: float

    def to_json(self) -> str:
        return json.dumps({"cost": self._asdict()})


class Crossing(NamedTuple):
    """A pod or cgroup grew over the threshold. `late_ms` is None if no kill was sent: the kernel's OOM killer was
    first."""

    guard: str
    kind: str
    late_ms: float | None
    over_mib: float  # the line, at the most
    left_mib: float  # at the least

    def to_json(self) -> str:
        return json.dumps({"crossing": self._asdict()})


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:  # which the guest can see
        reference = compiled("sampling_reference", directory, "-static")
        guest = Guest("v2", "sampling", GUEST_MIB, GUEST_SECONDS)
        lines, trouble = lines_from(guest, "bench.sampling_guest", str(reference))
    if trouble:
        yield failed("sampling in a guest", trouble, None)
    costs, crossings = reported(lines)
    for cost in costs:
        yield cost_figure(cost)
    yield from closeness(crossings)


def reported(lines: Iterable[str]) -> tuple[list[Cost], list[Crossing]]:
    """The figures in the output of the guest."""
    costs, crossings = [], []
    for line in lines:
        if line[:1] == "{":
            found = json.loads(line)
            if "cost" in found:
                costs.append(Cost(**found["cost"]))
            else:
                crossings.append(Crossing(**found["crossing"]))
    return costs, crossings


def cost_figure(cost: Cost) -> Figure:
    value, reference = (
        spent / cost.seconds * 100 for spent in (cost.run_seconds, cost.reference_run_seconds)
    )
    often = cost.looks / cost.seconds
    name = (
        f"watching {PODS} pods with {cost.headroom_mib} MiB to the line, {often:.3g} looks a second, emulated"
    )
    return Figure(name, value, "% of a core", reference, value / reference, None)


def closeness(crossings: Iterable[Crossing]) -> Iterator[Figure]:
    measured = list(crossings)
    for kind in KINDS:
        ours, references = (
            [one for one in measured if (one.guard, one.kind) == (guard, kind.name)]
            for guard in (AGENT, REFERENCE)
        )
        if not ours or not references:
            yield failed(f"the line crossed {kind.name}", "not measured", None)
            continue
        late = [one.late_ms for one in ours if one.late_ms is not None]
        if late:
            value = median(late)
            reference = median([one.late_ms for one in references if one.late_ms is not None])
            name = f"line crossed {kind.name} to kill sent, looking, emulated, median"
            yield Figure(name, value, "ms", reference, value / reference, None)
        value, reference = (median([one.over_mib for one in ones]) for ones in (ours, references))
        least = min(one.left_mib for one in ours)
        name = (
            f"furthest over the line {kind.name}, emulated ({least:.3g} of {LINE_MIB} MiB left at the least)"
        )
        yield Figure(name, value, "MiB", reference, value / reference, None)
        name = f"lines crossed {kind.name} and left to the kernel's killer, emulated"
        yield Figure(name, len(ours) - len(late), f"of {len(ours)}", None, None, value_at_most(0))


# What the guest finds


def numbers(said: str) -> dict[str, int]:
    """The numbers in the reference's output, which has lines of a word and a number."""
    return {word: int(number) for word, number in (line.split() for line in said.splitlines())}


def voluntary_switches(status: str) -> int:
    """How often a thread has waited for something, from its /proc/…/status: each look ends with that."""
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["voluntary_ctxt_switches"])


def crossing_of(
    guard: str, kind: Kind, found: dict[str, int], sent_ns: float | None, *, line: int, limit: int
) -> Crossing:
    """`line` and `limit` are usages, in bytes."""
    late = None if sent_ns is None else (sent_ns - found["crossed"]) / 1e6
    over, left = (round(amount / 2**20, 2) for amount in (found["most"] - line, limit - found["most"]))
    return Crossing(guard, kind.name, late, over, left)
