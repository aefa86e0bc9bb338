"""`evenkeel doctor`: what on this machine would break a promise, and how to mend it (C5, E7)."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.output import STRUCTURED, Paint, paint_for, print_structured
from evenkeel.host.checks import Check, State
from evenkeel.host.doctor import Diagnosis, diagnose
from evenkeel.host.machine import Machine, inspect_machine
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.advice import LEAST_SECONDS
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.runtime.cri.endpoints import chosen
from evenkeel.runtime.cri.runtime_checks import runtime_checks

USAGE = "[-o text|json|yaml] [flags]"
EXAMPLES = """examples:
  sudo evenkeel doctor                                 only root can see everything
  evenkeel doctor --config node.yaml                   with the agent's configuration
  evenkeel doctor --kubeconfig node.kubeconfig         and the way to a cluster
  evenkeel doctor -o json | jq '.checks[] | select(.state == "broken")'

Beside a running agent, it also reports requests and reservations that are far from the use.
Exit code 0: every promise can be kept.
"""
_MOST_SUGGESTIONS = 10
_MARKS = {
    State.OK: ("green", "✓"),
    State.NOTE: ("yellow", "!"),
    State.BROKEN: ("red", "✗"),
    State.UNKNOWN: ("cyan", "?"),
}


class Report(NamedTuple):
    """The output of `-o json`."""

    kernel: str
    sound: bool
    agent_starts: bool
    checks: tuple[Check, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", *STRUCTURED), default="text", help="default: text")
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="check the way to this cluster, too (default: the one that `evenkeel join` has joined)",
    )
    add_state_flag(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = config_from(args)
    machine = inspect_machine(config, args.state_dir)
    diagnosis = diagnose(machine, config)
    diagnosis = diagnosis._replace(checks=(*diagnosis.checks, *over_time(args.state_dir)))
    # These replace checks of the same name: the runtime's own answer says more than its process.
    of_runtime = (*_of_filter(config), *runtime_checks(config), *_of_cluster(args))
    named = {check.name for check in of_runtime}
    others = (check for check in diagnosis.checks if check.name not in named)
    diagnosis = diagnosis._replace(checks=(*others, *of_runtime))
    if args.output in STRUCTURED:
        starts = not any(check.stops_agent for check in diagnosis.checks)
        print_structured(Report(diagnosis.kernel, diagnosis.is_sound, starts, diagnosis.checks), args.output)
    else:
        sys.stdout.write("\n".join([*_head(machine), "", *_lines(diagnosis, paint_for()), ""]))
    return 0 if diagnosis.is_sound else 1


def _of_filter(config: KubeletConfiguration) -> Iterator[Check]:
    """The check of the seccomp filter. With a container runtime there is none: the runtime has its own filter."""
    if not chosen(config.container_runtime_endpoint):
        from evenkeel.runtime.process.seccomp import filter_check

        yield filter_check()


def _of_cluster(args: argparse.Namespace) -> Iterator[Check]:
    """The checks of a cluster's node: with the given kubeconfig, or with that of a machine that has joined."""
    joined = os.path.join(args.state_dir, "cluster", "node.kubeconfig")
    path = args.kubeconfig or (joined if os.path.exists(joined) else "")
    if path:
        import asyncio

        from evenkeel.kube.cluster_checks import cluster_checks, inspect_cluster

        yield from cluster_checks(asyncio.run(inspect_cluster(path)))


def over_time(state_dir: str) -> Iterator[Check]:
    """Reservations and requests that a running agent has found to be far from the use (B14, B15)."""
    from evenkeel.cli.client import Client
    from evenkeel.errors import EvenkeelError

    try:
        advice = Client(state_dir).get("/advice")
    except EvenkeelError:
        return  # no agent runs, or this user may not ask it
    seconds = advice.get("watchedSeconds", advice["at"] - advice["since"])  # an older agent does not send it
    checks = [*_reservations(advice.get("reservations", ())), *_requests(advice.get("requests", ()))]
    if seconds < LEAST_SECONDS:
        seen = f"the agent has watched for less than {LEAST_SECONDS / 60:.0f} minutes: too short for advice"
        yield Check("use over time", State.OK, seen)
    elif not any(check.state == State.NOTE for check in checks):
        seen = f"requests and reservations fit the use of the last {seconds / 60:.0f} minutes"
        yield Check("use over time", State.OK, seen)
    yield from checks


def _reservations(findings: Iterable[Mapping[str, Any]]) -> Iterator[Check]:
    for one in findings:
        is_small = "flag" in one
        yield Check(
            "reserved",
            State.NOTE if is_small else State.OK,
            one["reason"],
            "daemons use memory or CPU that pods were promised" if is_small else "",
            (one["requirement"],) if is_small else (),
            (one["flag"],) if is_small else (),
        )


def _requests(suggestions: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    for one in suggestions[:_MOST_SUGGESTIONS]:
        yield Check(
            "requests",
            State.NOTE,
            f"{one['pod']}, container {one['container']}: {one['reason']}",
            mends=(f"resources.requests.{one['resource']}: {one['text']}",),
        )
    more = len(suggestions) - _MOST_SUGGESTIONS
    if more > 0:
        yield Check("requests", State.NOTE, f"and {more} more, less far off; GET /advice lists all of them")


def _head(machine: Machine) -> Iterator[str]:
    size = f"{cores_text(machine.capacity.millicpu)} cpu, {bytes_text(machine.capacity.memory_bytes)} memory"
    yield f"This machine: {size}, kernel {machine.kernel}"


def _lines(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    width = max(len(check.name) for check in diagnosis.checks)
    indent = " " * (width + 4)
    for check in diagnosis.checks:
        colour, mark = _MARKS[check.state]
        yield f"{paint(colour, mark)} {paint('bold', check.name.ljust(width))}  {check.seen}"
        if check.promise:
            rules = f"{paint('cyan', ' '.join(check.requirements))}  " if check.requirements else ""
            yield f"{indent}{rules}{paint('dim', check.promise)}"
        for number, mend in enumerate(check.mends):
            yield f"{indent}{'or' if number else 'mend'}: {mend}"
    yield ""
    yield _verdict(diagnosis, paint)


def _verdict(diagnosis: Diagnosis, paint: Paint) -> str:
    states = [check.state for check in diagnosis.checks]
    broken, unknown = states.count(State.BROKEN), states.count(State.UNKNOWN)
    unseen = f"; {unknown} could not be seen" if unknown else ""
    if not broken:
        return f"{paint('green', 'Every promise can be kept')}{unseen}."
    stopping = sum(check.stops_agent for check in diagnosis.checks)
    starts = f"does not start because of {stopping} of them" if stopping else "starts all the same"
    count = paint("red", f"{broken} of {len(states)} checks")
    return f"{count} would break a promise, and the agent {starts}{unseen}."
