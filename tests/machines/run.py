"""Runs a command, or the kernel tests, on one of the machines. Prepares the machine first, and prints the times
afterwards."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.cluster.binaries import control_plane_programs, kubelet
from tests.machines import Unavailable, host, user_mode, virtual_machine
from tests.machines.cache import CACHE
from tests.machines.container_images import container_images
from tests.machines.environment import compile_ahead, compile_project, guest_environment, variables
from tests.machines.guest_process import VirtualMachine
from tests.machines.image import root_image
from tests.machines.initrd import initrd
from tests.machines.packages import IMAGES, PROGRAMS, VIRTUAL_MACHINE, require
from tests.machines.parts import Part

MACHINES = ("host", "v1", "v2", "systemd", user_mode.KIND)
MACHINE_FAILED = 125
CONSOLE_LINES = 60
# `make test` is to take less than 20 minutes: what took longest is said each time.
TOLD_OF_TIMES = ("--durations=25", "--durations-min=3")
# Nothing is written into the project, a signal ends a run as ^C does, and a test that hangs says where.
OPTIONS = ("-p", "no:cacheprovider", "-p", "tests.machines.ending", "-o", "faulthandler_timeout=300")
REPORTING = ("-p", "tests.machines.reports")


class Request(NamedTuple):
    """`name` is what the machine is called in what is said of it, and its log: there may be two of a kind."""

    machine: str
    name: str
    time_limit_seconds: float
    memory_mib: int = 1024
    cpus: int = 1


def run_command(request: Request, command: Sequence[str]) -> int:
    """Run `command` on the machine, from the project's directory; its exit status."""
    if request.machine == "host":
        return host.run(command, _told(request), time_limit_seconds=request.time_limit_seconds)
    return _run_in_guest(request, command)


def missing(parts: Iterable[Part]) -> dict[str, str]:
    """Builds what parts need before any of them starts, since a compiler takes the processors that tests wait for.
    The parts that cannot be run for want of it, each with the reason."""
    needing = [part.name for part in parts if part.needs_control_plane]
    try:
        if needing:
            host.require_root()
            control_plane_programs()
    except Unavailable as reason:
        return {name: _skipped(name, reason) for name in needing}
    return {}


def run_part(part: Part, *, reports: bool) -> int:
    """Run one of the parts of `make kernel`; with `reports`, lines of tests/machines/reports.py are in its output."""
    os.environ.update(part.variables)
    if part.gives_way:
        host.give_way()
    request = Request(_machine_of(part), part.name, part.time_limit_seconds, cpus=part.cpus)
    arguments = [*(REPORTING if reports else ()), *part.tests]
    if not part.needs_kernel:
        return run_command(request, _pytest([*OPTIONS, *arguments]))
    return run_kernel_tests(request, arguments)


def _machine_of(part: Part) -> str:
    """Without a kernel in user mode its tests run emulated, which takes longer."""
    if part.machine != user_mode.KIND or os.geteuid() != 0:
        return part.machine
    try:
        user_mode.require_user_mode()
    except Unavailable as reason:
        print(f"{part.name}: emulated, which takes longer: {reason}", file=sys.stderr)
        return "v2"
    return part.machine


def run_rounds(request: Request, pytest_arguments: Sequence[str], *, rounds: int, seed: int) -> int:
    """Run tests so many times in one go of the machine (tests/machines/rounds.py)."""
    tests = [*OPTIONS, *REPORTING, *pytest_arguments]
    return _run_tests(
        request, ["python", "-m", "tests.machines.rounds", str(rounds), str(seed), *tests], tests
    )


def run_kernel_tests(request: Request, pytest_arguments: Sequence[str]) -> int:
    """Run tests/kernel there once."""
    tests = [*OPTIONS, *(pytest_arguments or ["tests/kernel"])]
    return _run_tests(request, _pytest(tests), tests)


def _pytest(arguments: Sequence[str]) -> list[str]:
    return ["python", "-m", "pytest", *TOLD_OF_TIMES, *arguments]


def _run_tests(request: Request, command: Sequence[str], tests: Sequence[str]) -> int:
    """A machine that is not available is said with its reason, and fails only in CI."""
    try:
        host.require_root()
        host.require_seen_by_pods()
        # Here, since pytest would keep the news of it to itself.
        if any(test.startswith("tests/kubelet") for test in tests):
            kubelet()
        if request.machine != "host":
            return _run_in_guest(request, command, tests)
        host.require_cgroups()
        require((*PROGRAMS, *IMAGES))
        compile_project(sys.executable)
        if any(test.startswith("tests/cluster") for test in tests):
            control_plane_programs()
        return run_command(request, command)
    except Unavailable as reason:
        print(_skipped(request.name, reason), file=sys.stderr)
        return skipped_status()


def skipped_status() -> int:
    """The exit status of tests that cannot be run: success for a user, failure in CI."""
    return 1 if os.environ.get("CI") == "true" else 0


def _skipped(name: str, reason: Unavailable) -> str:
    return f"kernel tests on {name}: skipped, {reason}"


def _run_in_guest(request: Request, command: Sequence[str], tests: Sequence[str] = ()) -> int:
    """Run `command` in a virtual machine; `tests` are compiled before, if it is going to run those."""
    began = time.monotonic()
    host.require_root()
    require((*VIRTUAL_MACHINE, *PROGRAMS, *IMAGES))
    if request.machine == user_mode.KIND:
        user_mode.require_user_mode()
    container_images()  # and with them the programs
    image = root_image()
    first = (
        initrd(image, user_mode.kernel_modules(), user_mode.MODULES)
        if request.machine == user_mode.KIND
        else initrd(image)
    )
    machine = VirtualMachine(image, first, request.machine, request.memory_mib, request.cpus)
    environment = guest_environment()
    if tests:
        compile_ahead(environment, tests)
    prepared_seconds = time.monotonic() - began
    outcome = virtual_machine.run(
        machine,
        command,
        variables(environment, virtual_machine.SCRATCH) | _told(request),
        time_limit_seconds=request.time_limit_seconds,
    )
    return _reported(request.name, prepared_seconds, outcome)


def _told(request: Request) -> dict[str, str]:
    """The environment variables that tests/kernel/conftest.py reads."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("EVENKEEL_")}
    return {**ours, "EVENKEEL_MACHINE": request.machine}


def _reported(name: str, prepared_seconds: float, outcome: virtual_machine.Outcome) -> int:
    ended = outcome.failure or f"exit status {outcome.status}"
    print(
        f"{name}: prepared in {prepared_seconds:.1f} s, booted in {outcome.boot_seconds:.1f} s,"
        f" the job took {outcome.job_seconds:.1f} s and {outcome.processor_seconds:.1f} s of processors, {ended}",
        file=sys.stderr,
    )
    log = CACHE / "log" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    written = log.with_suffix(f".{os.getpid()}")
    written.write_text(outcome.console)
    written.replace(log)
    if outcome.status != 0 and outcome.console:
        print(f"{name}: the end of the console, all of it in {log}:", file=sys.stderr)
        print("\n".join(outcome.console.splitlines()[-CONSOLE_LINES:]), file=sys.stderr)
    return MACHINE_FAILED if outcome.status is None else outcome.status
