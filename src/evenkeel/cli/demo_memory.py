"""Two demonstrations about memory (A25): Guaranteed pods survive a barrage, and empty a node that is full."""

import asyncio
import os
import sys

from evenkeel.cli.demo_stage import MIB, Stage, Story, Verdict
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.words import bytes_text

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
