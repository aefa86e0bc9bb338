"""`python -m tests.machines run|test MACHINE …`: a command, or the kernel tests, on this host or in a guest."""

import argparse
import os
import signal
import sys

from tests.machines import Unavailable
from tests.machines.run import MACHINES, Request, run_command, run_kernel_tests


def main(arguments: list[str]) -> int:
    parser = _parser()
    ours, rest = _split(arguments)
    settings = parser.parse_args(ours)
    name = settings.name or settings.machine
    request = Request(settings.machine, name, settings.time_limit, settings.memory, settings.cpus)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if settings.action == "test":
            return run_kernel_tests(request, rest)
        if not rest:
            parser.error("no command: python -m tests.machines run MACHINE -- COMMAND…")
        return run_command(request, rest)
    except Unavailable as reason:
        print(f"{name}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output has gone; so has the machine
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.machines",
        usage="%(prog)s run MACHINE [options] -- COMMAND…\n"
        "       %(prog)s test MACHINE [options] [-- PYTEST-ARGUMENTS]",
    )
    parser.add_argument("action", choices=("run", "test"), help="run a command, or the tests of tests/kernel")
    parser.add_argument("machine", choices=MACHINES)
    parser.add_argument("--name", help="what messages and its log call a guest, default MACHINE")
    parser.add_argument(
        "--time-limit", type=float, default=900, metavar="SECONDS", help="default %(default)s"
    )
    parser.add_argument(
        "--memory", type=int, default=1024, metavar="MIB", help="a guest's, default %(default)s"
    )
    parser.add_argument("--cpus", type=int, default=1, metavar="N", help="a guest's, default %(default)s")
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands after the first `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _terminated(number: int, _frame: object) -> None:
    """End as by ^C, so that everything started is ended as well."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
