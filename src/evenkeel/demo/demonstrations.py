"""Two demonstrations about memory (A25): Guaranteed pods survive a barrage, and empty a node that is full."""

import asyncio
import os
import sys
from typing import NamedTuple

from evenkeel.demo.stage import MIB, Stage, Story, Verdict
from evenkeel.host.files import read_text
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.units import bytes_text

# Takes so many MiB, one at a time, and keeps them. It ends by itself, should nobody be left to end it.
_EATER = """
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
# The same where only a shell can be counted on, as fast as can be: dd has read it all, and nobody takes it from dd.
_SHELL_EATER = "dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep 300"
_PYTHON_MIB = 6  # what the other takes for itself, less the shell: this one holds as much
_FAILED = "Failed"


def _eater(stage: Stage, name: str, mib: int, *, request_mib: int = 0) -> dict[str, object]:
    """With a request, Guaranteed; without one, BestEffort."""
    python = (os.path.realpath(sys.executable), "-I", "-S", "-c", _EATER)
    program: tuple[str, ...] = (*python, str(mib), str(_PAUSE_SECONDS))
    if stage.has_containers:
        program = ("sh", "-c", _SHELL_EATER.format(mib=mib + _PYTHON_MIB))
    if not request_mib:
        return stage.a_pod(name, *program)
    return stage.a_pod(name, *program, resources={"limits": {"memory": f"{request_mib}Mi", "cpu": "100m"}})


# A barrage of BestEffort allocators

_SURVIVORS, _BARRAGE = 2, 6
_REQUEST_MIB, _HELD_MIB = 80, 60
_NODE_MIB = 288


async def _survive(stage: Stage) -> Verdict:
    survivors = [f"guaranteed-{number}" for number in range(1, _SURVIVORS + 1)]
    eaters = [f"besteffort-{number}" for number in range(1, _BARRAGE + 1)]
    stage.say(f"{_SURVIVORS} Guaranteed pods request {_REQUEST_MIB}Mi each and take {_HELD_MIB}Mi of it")
    await stage.apply(*(_eater(stage, name, _HELD_MIB, request_mib=_REQUEST_MIB) for name in survivors))
    await stage.until(
        lambda: _all_hold(stage, survivors, _HELD_MIB), "that the Guaranteed pods hold their memory"
    )
    stage.say(f"{_BARRAGE} BestEffort pods arrive, each of which would take all there is: {_NODE_MIB}Mi")
    for name in eaters:
        await stage.apply(_eater(stage, name, _NODE_MIB))
        await asyncio.sleep(0.2)
    await stage.until(
        lambda: (
            all(stage.phase(name) == _FAILED for name in eaters)
            or any(stage.phase(name) == _FAILED for name in survivors)
        ),
        "that memory runs out, and the kernel chooses",
    )
    living = [name for name in survivors if stage.phase(name) == "Running" and not stage.restarts(name)]
    held = min(stage.memory_bytes(name) for name in survivors)
    gone = _evicted(stage, eaters)
    is_held = len(living) == len(survivors) and held >= _HELD_MIB * MIB and gone == len(eaters)
    return Verdict(
        is_held,
        f"{len(living)} of {len(survivors)} Guaranteed pods live, never restarted, with {bytes_text(held)} or more "
        f"each; {gone} of {len(eaters)} BestEffort pods were OOM-killed and evicted",
    )


SURVIVED = Story(
    "guaranteed",
    "Guaranteed pods survive a barrage of BestEffort ones",
    NodeCapacity(millicpu=2000, memory_bytes=_NODE_MIB * MIB),
    _survive,
)


# A node full of BestEffort pods

_SQUATTERS, _SQUATTED_MIB = 5, 48
_ARRIVALS, _ARRIVAL_REQUEST_MIB, _ARRIVAL_MIB = 3, 94, 78


async def _empty(stage: Stage) -> Verdict:
    squatters = [f"besteffort-{number}" for number in range(1, _SQUATTERS + 1)]
    arrivals = [f"guaranteed-{number}" for number in range(1, _ARRIVALS + 1)]
    stage.say(f"{_SQUATTERS} BestEffort pods fill the node, with {_SQUATTED_MIB}Mi each")
    await stage.apply(*(_eater(stage, name, _SQUATTED_MIB) for name in squatters))
    await stage.until(lambda: _all_hold(stage, squatters, _SQUATTED_MIB), "that the node is full")
    stage.say(
        f"{_ARRIVALS} Guaranteed pods arrive, and take {_ARRIVAL_MIB}Mi of the {_ARRIVAL_REQUEST_MIB}Mi they request"
    )
    for name in arrivals:
        await stage.apply(_eater(stage, name, _ARRIVAL_MIB, request_mib=_ARRIVAL_REQUEST_MIB))
        await asyncio.sleep(0.2)
    await stage.until(
        lambda: (
            _all_hold(stage, arrivals, _ARRIVAL_MIB) or any(stage.phase(name) == _FAILED for name in arrivals)
        ),
        "that the Guaranteed pods have their memory",
    )
    await stage.until(
        lambda: (
            all(stage.phase(name) == _FAILED for name in squatters)
            or any(stage.phase(name) == _FAILED for name in arrivals)
        ),
        "that the BestEffort pods have gone",
    )
    filled = [name for name in arrivals if stage.phase(name) == "Running" and not stage.restarts(name)]
    held = min(stage.memory_bytes(name) for name in arrivals)
    gone = _evicted(stage, squatters)
    lost = len(stage.happenings("RuntimeLost"))
    runtime = "container runtime" if stage.has_containers else "keeper"
    is_held = (
        len(filled) == len(arrivals) and held >= _ARRIVAL_MIB * MIB and gone == len(squatters) and not lost
    )
    return Verdict(
        is_held,
        f"{len(filled)} of {len(arrivals)} Guaranteed pods have {bytes_text(held)} or more each; {gone} of "
        f"{len(squatters)} BestEffort pods were OOM-killed and evicted; agent and {runtime} "
        + ("are unharmed" if not lost else f"were not: the {runtime} was lost {lost} times"),
    )


EMPTIED = Story(
    "besteffort",
    "a node full of BestEffort pods is emptied by arriving Guaranteed ones",
    NodeCapacity(millicpu=2000, memory_bytes=_NODE_MIB * MIB),
    _empty,
)


def _all_hold(stage: Stage, names: list[str], mib: int) -> bool:
    return all(stage.phase(name) == "Running" and stage.memory_bytes(name) >= mib * MIB for name in names)


def _evicted(stage: Stage, names: list[str]) -> int:
    return sum(stage.pod(name).status.reason == "Evicted" for name in names)


# It is on its CPU from its first instruction, and ends by itself, should nobody be left to end it.
_SPINNER = ("timeout", "300", "sh", "-c", "while :; do :; done")
_LOOK_SECONDS = 0.5
_WINDOW_SECONDS = 2.0
_REQUEST_MILLICPU = 900
_SPUN_US = 100_000
_SLIVER = 0.05  # of what both have
_MOST_LEFT_IDLE = 0.1  # of what one that is alone could have had


async def _squeeze(stage: Stage) -> Verdict:
    cpu = await _idlest_cpu()
    program = ("taskset", "-c", str(cpu), *_SPINNER)
    stage.say(f"pod idler requests no CPU, and spins on CPU {cpu}")
    await stage.apply(stage.a_pod("idler", *program))
    await _spinning(stage, "idler")
    alone = await _measure(stage, cpu)
    stage.say(f"alone it has {_percent(alone.idler)} of the CPU, and leaves {_percent(alone.idle)} idle")

    stage.say(f"pod requester requests {_REQUEST_MILLICPU}m and spins on the same CPU")
    await stage.apply(
        stage.a_pod("requester", *program, resources={"requests": {"cpu": f"{_REQUEST_MILLICPU}m"}})
    )
    await _spinning(stage, "requester")
    beside = await _measure(stage, cpu)
    stage.say(f"requester has {_percent(beside.requester)}, idler {_percent(beside.idler)}: {_ratio(beside)}")

    stage.say("pod requester ends")
    await stage.delete("requester")
    await stage.until(lambda: not stage.phase("requester"), "that pod requester is gone")
    after = await _measure(stage, cpu)
    stage.say(f"idler has {_percent(after.idler)} again")

    both = beside.idler + beside.requester
    is_held = (
        _leaves_nothing(alone)
        and _leaves_nothing(after)
        and both > 0
        and beside.idler <= _SLIVER * both
        and beside.requester > 0
    )
    return Verdict(
        is_held,
        f"alone the pod without a request had {_percent(alone.idler)} of the CPU, beside one with a request "
        f"{_percent(beside.idler)} against {_percent(beside.requester)} ({_ratio(beside)}), and after it "
        f"{_percent(after.idler)}{_others(alone, beside, after)}",
    )


SQUEEZED = Story(
    "cpu",
    "who requests no CPU has all of it alone, and a sliver beside one who does",
    NodeCapacity(millicpu=1000, memory_bytes=256 << 20),
    _squeeze,
)


class _Shares(NamedTuple):
    """Of one CPU over one window: parts of 1."""

    idler: float
    requester: float
    idle: float
    others: float


async def _spinning(stage: Stage, name: str) -> None:
    """What makes a container uses its CPU before the container does."""
    await stage.until(lambda: stage.phase(name) == "Running", f"that pod {name} runs")
    before = _cpu_us(stage, name)
    await stage.until(lambda: _cpu_us(stage, name) - before > _SPUN_US, f"that pod {name} spins")


async def _measure(stage: Stage, cpu: int) -> _Shares:
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), (_cpu_us(stage, "idler"), _cpu_us(stage, "requester"), _idle_seconds()[cpu])
    await asyncio.sleep(_WINDOW_SECONDS)
    after = (_cpu_us(stage, "idler"), _cpu_us(stage, "requester"), _idle_seconds()[cpu])
    seconds = loop.time() - begun
    idler, requester = (max(after[i] - before[i], 0) / 1e6 / seconds for i in range(2))
    rest = max(1 - idler - requester, 0.0)
    # Counted in ticks, and coarsely where the CPU is emulated.
    idle = min((after[2] - before[2]) / seconds, rest)
    return _Shares(idler, requester, idle, rest - idle)


def _leaves_nothing(shares: _Shares) -> bool:
    """What other programs of the machine used is theirs: of the rest, hardly anything may be idle."""
    return shares.idle <= _MOST_LEFT_IDLE * (shares.idle + shares.idler)


def _cpu_us(stage: Stage, name: str) -> int:
    found = stage.statistics(name)
    return found.cpu_usage_us if found is not None else 0


async def _idlest_cpu() -> int:
    before = _idle_seconds()
    await asyncio.sleep(_LOOK_SECONDS)
    after = _idle_seconds()
    usable = os.sched_getaffinity(0) & after.keys() & before.keys()
    return max(usable, key=lambda cpu: (after[cpu] - before[cpu], cpu))


def _idle_seconds() -> dict[int, float]:
    """For each CPU that runs, how long it had nothing to do since the machine started."""
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
    return f"; other programs of this machine used up to {_percent(most)} of it" if most > _SLIVER else ""
