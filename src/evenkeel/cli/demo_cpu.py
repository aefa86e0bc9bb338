"""The demonstration about CPU (A25): who requests none may use all that is idle, and only that.

Both pods spin on one and the same CPU, the idlest, so that they compete on a machine of any size, and the others stay
free. Shares are measured from what the kernel counts for each cgroup and for that CPU.
"""

import asyncio
import os
from typing import NamedTuple

from evenkeel.cli.demo_stage import Stage, Story, Verdict
from evenkeel.host.files import read_text
from evenkeel.policy.allocatable import NodeCapacity

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
