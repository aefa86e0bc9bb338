"""How soon an allocator that crosses a threshold of the machine's memory is killed: by us, earlyoom or systemd-oomd.

They watch a whole machine, whose memory has to be used up: it is a small virtual one, and all are measured in the same
boot of it (peers_guest.py). It is emulated. Python becomes 10 to 20 times slower there, but a sleep takes no longer:
the agent computes while the others sleep. So only the ratios mean something, and they are the worst for us.
systemd-oomd knows no line, but stalls: it has its shortest times, and a `memory.high` just above the line makes the
allocator stall."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from statistics import median

from tests.machines.cache import CACHE
from tests.machines.packages import unpacked

from bench.figure import Figure, failed, ratio_at_most, value_at_most
from bench.guest import Guest, lines_from
from bench.reference import compiled
from evenkeel.named_tuples import NamedTuple

AGENT, EARLYOOM, OOMD = "evenkeel", "earlyoom", "systemd-oomd"
KERNEL, NOBODY = "the kernel", "nobody"
LINE_MIB = 192  # of available memory
ROUNDS = 5
PATIENCE_SECONDS = 15
GUEST_MIB = 1024
GUEST_SECONDS = 1200


class Kind(NamedTuple):
    name: str
    rate_mib: int  # a second; 0: as fast as it can
    has_files: bool  # something beside the allocator reads a file again and again


KINDS = (
    Kind("as fast as it can", 0, has_files=False),
    Kind("at 64 MiB/s", 64, has_files=False),
    Kind("at 64 MiB/s and reading files", 64, has_files=True),
)


class Storm(NamedTuple):
    """One allocator that crossed the threshold. `seconds` is None if it was not stopped in time."""

    guard: str
    kind: str
    by: str
    seconds: float | None
    least_mib: int  # of available memory

    def to_json(self) -> str:
        return json.dumps(self._asdict())


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:  # which the guest can see
        watcher = compiled("line_watch", directory, "-static")
        guards = [str(unpacked("earlyoom")), str(unpacked("systemd-oomd"))]
        guest = Guest("systemd", "peers", GUEST_MIB, GUEST_SECONDS)
        lines, trouble = lines_from(guest, "bench.peers_guest", str(watcher), *guards)
    if trouble:
        yield failed("storms in a guest", trouble, None)
    yield from compared(Storm(**json.loads(line)) for line in lines if line[:1] == "{")


def compared(storms: Iterable[Storm]) -> Iterator[Figure]:
    """The agent beside each of the others, and storms that another program or the kernel stopped."""
    measured = list(storms)
    for kind in KINDS:
        of: dict[str, list[Storm]] = {guard: [] for guard in (AGENT, EARLYOOM, OOMD)}
        for one in measured:
            if one.kind == kind.name:
                of[one.guard].append(one)
        for peer in (EARLYOOM, OOMD):
            yield beside(
                f"line crossed {kind.name} to growth stopped, emulated, beside {peer}", of[AGENT], of[peer]
            )
        for guard, ones in of.items():
            others = sum(one.by != guard for one in ones)
            name = f"storms {kind.name} not stopped by {guard} ({reported(ones)})"
            target = value_at_most(0) if guard == AGENT else None
            yield Figure(name, others, f"of {len(ones)}", None, None, target)


def beside(name: str, ours: list[Storm], theirs: list[Storm]) -> Figure:
    """Compares the medians of the storms that each program stopped itself."""
    value, reference = median_ms(ours), median_ms(theirs)
    if value is None:
        return failed(name, reported(ours), ratio_at_most(1))
    if reference is None:
        return Figure(name, value, "ms", None, None, None)
    return Figure(name, value, "ms", reference, value / reference, ratio_at_most(1))


def median_ms(storms: list[Storm]) -> float | None:
    times = [one.seconds * 1000 for one in storms if one.by == one.guard and one.seconds is not None]
    return median(times) if times else None


def reported(storms: list[Storm]) -> str:
    if not storms:
        return "not measured"
    by = [one.by for one in storms]
    stopped = ", ".join(f"{by.count(who)} by {who}" for who in dict.fromkeys(by))
    return f"{stopped}; {min(one.least_mib for one in storms)} MiB left at the least"


# What the guest finds


def storm_of(guard: str, kind: Kind, said: str, *, is_kernels: bool) -> Storm:
    """A storm from the output of line_watch.c, and from whether the kernel's OOM killer acted meanwhile."""
    numbers = {word: int(number) for word, number in (line.split() for line in said.splitlines())}
    stopped = numbers.get("stopped")
    seconds = None if stopped is None else (stopped - numbers["crossed"]) / 1e9
    by = KERNEL if is_kernels else NOBODY if stopped is None else guard
    return Storm(guard, kind.name, by, seconds, numbers["least"] // 1024)


def oom_kills(vmstat: str) -> int:
    """How often the kernel's killer has acted, in any cgroup."""
    return int(dict(line.split() for line in vmstat.splitlines())["oom_kill"])


def available_mib(meminfo: str) -> int:
    lines = dict(line.split(":") for line in meminfo.splitlines())
    return int(lines["MemAvailable"].split()[0]) // 1024
