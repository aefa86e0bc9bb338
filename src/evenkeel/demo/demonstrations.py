"""The demonstrations (A25): Guaranteed pods survive BestEffort pods, a Guaranteed pod gets room on a full node, and CPU
is shared by request."""

import asyncio
import os
import sys

from evenkeel.demo.stage import MIB, Demonstration, Stage, Verdict
from evenkeel.host.files import read_text
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.amounts import bytes_text

# Allocates this many MiB, one at a time, and keeps them. It ends by itself if nothing else ends it.
_ALLOCATOR = """
import sys, time
mib, pause = int(sys.argv[1]), float(sys.argv[2])
end = time.monotonic() + 300
held = []
for _ in range(mib):
    held.append(b"x" * (1 << 20))
    time.sleep(pause)
while time.monotonic() < end:
    time.sleep(1)
"""
_PAUSE_SECONDS = 0.01
# The same for an image with only a shell: dd has read all of it into memory, and sleep never reads from dd.
_SHELL_ALLOCATOR = "dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep 300"
_PYTHON_MIB = 6  # memory of Python beyond that of a shell, so that both allocators hold the same
_FAILED = "Failed"


def _allocator(stage: Stage, name: str, mib: int, *, request_mib: int = 0) -> dict[str, object]:
    """A Guaranteed pod with a request, or a BestEffort pod without one."""
    python = (os.path.realpath(sys.executable), "-I", "-S", "-c", _ALLOCATOR)
    program: tuple[str, ...] = (*python, str(mib), str(_PAUSE_SECONDS))
    if stage.has_containers:
        program = ("sh", "-c", _SHELL_ALLOCATOR.format(mib=mib + _PYTHON_MIB))
    if not request_mib:
        return stage.a_pod(name, *program)
    return stage.a_pod(name, *program, resources={"limits": {"memory": f"{request_mib}Mi", "cpu": "100m"}})


# A barrage of BestEffort allocators

_SURVIVORS, _BARRAGE = 2, 6
_REQUEST_MIB, _HELD_MIB = 80, 60
_NODE_MIB = 288


async def _survive(stage: Stage) -> Verdict:
    survivors = [f"guaranteed-{number}" for number in range(1, _SURVIVORS + 1)]
    attackers = [f"besteffort-{number}" for number in range(1, _BARRAGE + 1)]
    stage.say(f"{_SURVIVORS} Guaranteed pods request {_REQUEST_MIB}Mi each and use {_HELD_MIB}Mi of it")
    await stage.apply(*(_allocator(stage, name, _HELD_MIB, request_mib=_REQUEST_MIB) for name in survivors))
    await stage.until(
        lambda: _all_hold(stage, survivors, _HELD_MIB), "the Guaranteed pods allocate their memory"
    )
    stage.say(f"{_BARRAGE} BestEffort pods arrive; each tries to allocate the whole node: {_NODE_MIB}Mi")
    for name in attackers:
        await stage.apply(_allocator(stage, name, _NODE_MIB))
        await asyncio.sleep(0.2)
    await _until_failed(stage, attackers, survivors, "memory runs out, and the kernel kills")
    living = [name for name in survivors if stage.phase(name) == "Running" and not stage.restarts(name)]
    held = min(stage.memory_bytes(name) for name in survivors)
    gone = _evicted(stage, attackers)
    is_held = len(living) == len(survivors) and held >= _HELD_MIB * MIB and gone == len(attackers)
    return Verdict(
        is_held,
        f"{len(living)} of {len(survivors)} Guaranteed pods run, never restarted, with {bytes_text(held)} or more "
        f"each; {gone} of {len(attackers)} BestEffort pods were OOM-killed and evicted",
    )


SURVIVED = Demonstration(
    "guaranteed",
    "Guaranteed pods survive a barrage of BestEffort ones",
    NodeCapacity(millicpu=2000, memory_bytes=_NODE_MIB * MIB),
    _survive,
)


# A node full of BestEffort pods

_RESIDENTS, _RESIDENT_MIB = 5, 48
_ARRIVALS, _ARRIVAL_REQUEST_MIB, _ARRIVAL_MIB = 3, 94, 78


async def _empty(stage: Stage) -> Verdict:
    residents = [f"besteffort-{number}" for number in range(1, _RESIDENTS + 1)]
    arrivals = [f"guaranteed-{number}" for number in range(1, _ARRIVALS + 1)]
    stage.say(f"{_RESIDENTS} BestEffort pods fill the node, with {_RESIDENT_MIB}Mi each")
    await stage.apply(*(_allocator(stage, name, _RESIDENT_MIB) for name in residents))
    await stage.until(lambda: _all_hold(stage, residents, _RESIDENT_MIB), "the BestEffort pods fill the node")
    stage.say(
        f"{_ARRIVALS} Guaranteed pods arrive, and use {_ARRIVAL_MIB}Mi of the {_ARRIVAL_REQUEST_MIB}Mi they request"
    )
    for name in arrivals:
        await stage.apply(_allocator(stage, name, _ARRIVAL_MIB, request_mib=_ARRIVAL_REQUEST_MIB))
        await asyncio.sleep(0.2)
    await stage.until(
        lambda: (
            _all_hold(stage, arrivals, _ARRIVAL_MIB) or any(stage.phase(name) == _FAILED for name in arrivals)
        ),
        "the Guaranteed pods allocate their memory",
    )
    await _until_failed(stage, residents, arrivals, "the BestEffort pods are killed")
    filled = [name for name in arrivals if stage.phase(name) == "Running" and not stage.restarts(name)]
    held = min(stage.memory_bytes(name) for name in arrivals)
    gone = _evicted(stage, residents)
    lost = len(stage.events("RuntimeLost"))
    runtime = "container runtime" if stage.has_containers else "supervisor"
    is_held = (
        len(filled) == len(arrivals) and held >= _ARRIVAL_MIB * MIB and gone == len(residents) and not lost
    )
    return Verdict(
        is_held,
        f"{len(filled)} of {len(arrivals)} Guaranteed pods have {bytes_text(held)} or more each; {gone} of "
        f"{len(residents)} BestEffort pods were OOM-killed and evicted; agent and {runtime} "
        + ("are unharmed" if not lost else f"were not: the {runtime} was lost {lost} times"),
    )


EMPTIED = Demonstration(
    "besteffort",
    "a node full of BestEffort pods is emptied by arriving Guaranteed ones",
    NodeCapacity(millicpu=2000, memory_bytes=_NODE_MIB * MIB),
    _empty,
)


def _all_hold(stage: Stage, names: list[str], mib: int) -> bool:
    return all(stage.phase(name) == "Running" and stage.memory_bytes(name) >= mib * MIB for name in names)


async def _until_failed(stage: Stage, victims: list[str], survivors: list[str], what: str) -> None:
    """Waits until all victims have failed, or a survivor has."""
    await stage.until(
        lambda: (
            all(stage.phase(name) == _FAILED for name in victims)
            or any(stage.phase(name) == _FAILED for name in survivors)
        ),
        what,
    )


def _evicted(stage: Stage, names: list[str]) -> int:
    return sum(stage.pod(name).status.reason == "Evicted" for name in names)


# A CPU request and a pod without one

# It is pinned to its CPU before it starts, and ends by itself if nothing else ends it.
_SPINNER = ("timeout", "300", "sh", "-c", "while :; do :; done")
_IDLE_WINDOW_SECONDS = 0.5
_WINDOW_SECONDS = 2.0
_REQUEST_MILLICPU = 900
_SPUN_US = 100_000
_SMALL_SHARE = 0.05  # of what both use
_MOST_IDLE = 0.1  # of what a pod alone could use


async def _squeeze(stage: Stage) -> Verdict:
    cpu = await _idlest_cpu()
    program = ("taskset", "-c", str(cpu), *_SPINNER)
    stage.say(f"pod idler requests no CPU, and is busy on CPU {cpu}")
    await stage.apply(stage.a_pod("idler", *program))
    await _await_work(stage, "idler")
    alone = await _measure(stage, cpu)
    stage.say(f"alone it gets {_percent(alone.idler)} of the CPU, and {_percent(alone.idle)} is idle")

    stage.say(f"pod requester requests {_REQUEST_MILLICPU}m, and is busy on the same CPU")
    await stage.apply(
        stage.a_pod("requester", *program, resources={"requests": {"cpu": f"{_REQUEST_MILLICPU}m"}})
    )
    await _await_work(stage, "requester")
    beside = await _measure(stage, cpu)
    stage.say(
        f"requester gets {_percent(beside.requester)}, idler {_percent(beside.idler)}: {_ratio(beside)}"
    )

    stage.say("pod requester ends")
    await stage.delete("requester")
    await stage.until(lambda: not stage.phase("requester"), "the end of pod requester")
    after = await _measure(stage, cpu)
    stage.say(f"idler gets {_percent(after.idler)} again")

    both = beside.idler + beside.requester
    is_held = (
        _leaves_nothing_idle(alone)
        and _leaves_nothing_idle(after)
        and both > 0
        and beside.idler <= _SMALL_SHARE * both
        and beside.requester > 0
    )
    return Verdict(
        is_held,
        f"alone the pod without a request got {_percent(alone.idler)} of the CPU, beside one with a request "
        f"{_percent(beside.idler)} against {_percent(beside.requester)} ({_ratio(beside)}), and after it "
        f"{_percent(after.idler)}{_others(alone, beside, after)}",
    )


SQUEEZED = Demonstration(
    "cpu",
    "a pod without a CPU request has all of it alone, and little beside a pod with one",
    NodeCapacity(millicpu=1000, memory_bytes=256 << 20),
    _squeeze,
)


class _Shares(NamedTuple):
    """Shares of one CPU over a time window, as parts of 1."""

    idler: float
    requester: float
    idle: float
    others: float


async def _await_work(stage: Stage, name: str) -> None:
    """Waits until the program itself is busy: the start of a container uses CPU, too."""
    await stage.until(lambda: stage.phase(name) == "Running", f"the start of pod {name}")
    before = _cpu_us(stage, name)
    await stage.until(lambda: _cpu_us(stage, name) - before > _SPUN_US, f"work of pod {name}")


async def _measure(stage: Stage, cpu: int) -> _Shares:
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), (_cpu_us(stage, "idler"), _cpu_us(stage, "requester"), _idle_seconds()[cpu])
    await asyncio.sleep(_WINDOW_SECONDS)
    after = (_cpu_us(stage, "idler"), _cpu_us(stage, "requester"), _idle_seconds()[cpu])
    seconds = loop.time() - begun
    idler, requester = (max(after[i] - before[i], 0) / 1e6 / seconds for i in range(2))
    rest = max(1 - idler - requester, 0.0)
    # The kernel counts idle time in ticks, and coarsely on an emulated CPU.
    idle = min((after[2] - before[2]) / seconds, rest)
    return _Shares(idler, requester, idle, rest - idle)


def _leaves_nothing_idle(shares: _Shares) -> bool:
    """Other programs of the machine do not count. Of the rest, hardly anything may be idle."""
    return shares.idle <= _MOST_IDLE * (shares.idle + shares.idler)


def _cpu_us(stage: Stage, name: str) -> int:
    found = stage.statistics(name)
    return found.cpu_usage_us if found is not None else 0


async def _idlest_cpu() -> int:
    before = _idle_seconds()
    await asyncio.sleep(_IDLE_WINDOW_SECONDS)
    after = _idle_seconds()
    usable = os.sched_getaffinity(0) & after.keys() & before.keys()
    return max(usable, key=lambda cpu: (after[cpu] - before[cpu], cpu))


def _idle_seconds() -> dict[int, float]:
    """The idle time of each CPU since the machine was started."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in read_text("/proc/stat").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            found[int(name[3:])] = (int(fields[3]) + int(fields[4])) / ticks  # idle and iowait
    return found


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _ratio(shares: _Shares) -> str:
    if not shares.idler:
        return "all to nothing"
    return f"{shares.requester / shares.idler:.0f} to 1"


def _others(*windows: _Shares) -> str:
    most = max(shares.others for shares in windows)
    return (
        f"; other programs of this machine used up to {_percent(most)} of it" if most > _SMALL_SHARE else ""
    )
