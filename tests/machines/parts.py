"""The parts of the kernel tests that `make kernel` runs: which tests on which machine, and which of them alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ALONE = ("tests/kernel/test_storms.py", "tests/kernel/test_cpu_promises.py")


class Part(NamedTuple):
    """`tests` is what pytest is told; a part that `is_alone` has nothing running beside it."""

    name: str
    machine: str
    time_limit_seconds: float
    tests: tuple[str, ...] = ("tests/kernel",)
    cpus: int = 1
    variables: Mapping[str, str] = MappingProxyType({})
    is_alone: bool = False


# Started in this order: those that take longest come first, so that the last ones end together. What they cost, in
# seconds of the host's processors: v2-agents 400, v2-others 240, systemd 140, v2-attacks 130, v1 55, v2-alone 130.
PARTS = (
    Part("host", "host", 1800, ("tests/kernel", "tests/attacks", *(f"--ignore={file}" for file in ALONE))),
    # One processor: they wait for each other, and a second one that is emulated costs a fifth more (475 s to 402 s).
    Part("v2-agents", "v2", 2700, ("tests/kernel", "-m", "agent")),
    Part(
        "v2-others",
        "v2",
        2700,
        ("tests/kernel", "-m", "not agent", "--ignore=tests/kernel/test_cpu_promises.py"),
        cpus=2,
    ),
    Part("systemd", "systemd", 1200),
    Part("v2-attacks", "v2", 1800, ("tests/attacks", "-m", "agent")),
    Part(
        "v1",
        "v1",
        900,
        tuple(f"tests/kernel/test_{name}.py" for name in ("huge_pages", "swap", "drivers_v1", "reconcile")),
        cpus=2,
    ),
    # Which pod goes in a storm, and which gets what of a processor, is not to depend on what emulators leave of either.
    Part("host-alone", "host", 900, ALONE, is_alone=True),
    # Of the long tests these storms are short enough to be emulated each time.
    Part(
        "v2-alone",
        "v2",
        900,
        (*ALONE, "-k", "not cri"),
        cpus=2,
        variables=MappingProxyType({"EVENKEEL_LONG": "1"}),
        is_alone=True,
    ),
)
# Crashes, storms and barrages in a guest as well: most of an hour, so that `make kernel` leaves it out.
LONG = Part(
    "v2-long",
    "v2",
    7200,
    ("tests/kernel", "-m", "long"),
    cpus=2,
    variables=MappingProxyType({"EVENKEEL_LONG": "1"}),
)
BY_NAME = {part.name: part for part in (*PARTS, LONG)}
