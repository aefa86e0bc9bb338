"""`python -m tests.machines run|test|part|all|stress …`: a command or tests, on this host or in a guest."""

import argparse
import contextlib
import os
import secrets
import signal
import sys

from tests.machines import Unavailable, host
from tests.machines.parts import BY_NAME, PARTS
from tests.machines.run import MACHINES, Request, missing, run_command, run_kernel_tests, run_part, run_rounds
from tests.machines.side_by_side import run_side_by_side
from tests.machines.stress import run_stress


def main(arguments: list[str]) -> int:
    parser = _parser()
    ours, rest = _split(arguments)
    settings = parser.parse_args(ours)
    if settings.action == "run" and not rest:
        parser.error("no command: python -m tests.machines run MACHINE -- COMMAND…")
    if settings.action in ("stress", "rounds") and not rest:
        parser.error(f"no tests: python -m tests.machines {settings.action} MACHINE -- PYTEST-ARGUMENTS")
    signal.signal(signal.SIGTERM, _terminated)
    is_part_of_all = settings.action == "part" and settings.reports
    kept = contextlib.nullcontext() if is_part_of_all else host.kernel_settings_kept()
    try:
        with kept:
            return _done(settings, rest)
    except Unavailable as reason:
        print(f"{settings.name or settings.machine}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output is gone, and the machine has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _done(settings: argparse.Namespace, rest: list[str]) -> int:
    if settings.action == "all":
        parts = [BY_NAME[name] for name in settings.parts] or PARTS
        return run_side_by_side(parts, missing=missing(parts))
    if settings.action == "part":
        return run_part(BY_NAME[settings.name], reports=settings.reports)
    request = Request(
        settings.machine,
        settings.name or settings.machine,
        settings.time_limit,
        settings.memory,
        settings.cpus,
    )
    if settings.action == "stress":
        return run_stress(request, rest, rounds=settings.rounds, seed=settings.seed)
    if settings.action == "rounds":
        return run_rounds(request, rest, rounds=settings.rounds, seed=settings.seed)
    if settings.action == "test":
        return run_kernel_tests(request, rest)
    return run_command(request, rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.machines")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    run = actions.add_parser("run", help="a command on a machine: run MACHINE [options] -- COMMAND…")
    _add_machine(run, cpus=1, time_limit_seconds=900)

    test = actions.add_parser("test", help="kernel tests: test MACHINE [options] [-- PYTEST-ARGUMENTS]")
    _add_machine(test, cpus=1, time_limit_seconds=900)

    for name, said in (("stress", "and a table of what failed"), ("rounds", "as 'stress' reads them")):
        repeated = actions.add_parser(
            name, help=f"tests again and again, {said}: {name} MACHINE [options] -- PYTEST-ARGUMENTS"
        )
        _add_machine(repeated, cpus=2, time_limit_seconds=7200)
        repeated.add_argument("--rounds", type=int, default=20, metavar="N", help="default %(default)s")
        repeated.add_argument(
            "--seed",
            type=int,
            default=secrets.randbelow(10**6),
            help="the first round's; each next one's is one more, and odd ones run beside load; default random",
        )

    part = actions.add_parser("part", help="one part of 'make kernel'")
    part.add_argument("name", choices=BY_NAME)
    part.add_argument("--reports", action="store_true", help="with lines that 'all' reads")

    everything = actions.add_parser(
        "all", help="the parts of 'make kernel' beside each other, or those named"
    )
    everything.add_argument("parts", nargs="*", choices=[[], *BY_NAME], metavar="PART")
    return parser


def _add_machine(parser: argparse.ArgumentParser, *, cpus: int, time_limit_seconds: float) -> None:
    default = "default %(default)s"
    parser.add_argument("machine", choices=MACHINES)
    parser.add_argument("--name", help="what messages and its log call a guest, default MACHINE")
    parser.add_argument(
        "--time-limit", type=float, default=time_limit_seconds, metavar="SECONDS", help=default
    )
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB", help=f"a guest's, {default}")
    parser.add_argument("--cpus", type=int, default=cpus, metavar="N", help=f"a guest's, {default}")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands after the first `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _terminated(number: int, _frame: object) -> None:
    """End as by ^C, so that everything started is ended as well."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
