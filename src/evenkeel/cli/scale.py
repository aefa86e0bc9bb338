"""`evenkeel scale`: changes the number of replicas of a workload."""

import argparse

from evenkeel.cli.arguments import (
    add_namespace_flag,
    add_state_flag,
    full_name,
    is_workload_kind,
    named,
    singular,
)
from evenkeel.cli.client import client_from
from evenkeel.errors import EvenkeelError

USAGE = "--replicas N KIND/NAME… [-n NS] [--state-dir PATH]"
EXAMPLES = """examples:
  evenkeel scale --replicas 3 deployment/web       deployment.apps/web scaled
  evenkeel scale --replicas 0 statefulset db       all of its pods end

A workload from a file in the agent's directory is scaled in that file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="deployment, replicaset or statefulset; also KIND/NAME")
    parser.add_argument("pods", nargs="*", metavar="NAME", help="names of workloads")
    parser.add_argument(
        "--replicas", type=_count, required=True, metavar="N", help="how many pods it has from now on"
    )
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    kind, names = named([args.kind, *args.pods])
    if not is_workload_kind(kind) or not names:
        raise EvenkeelError("scale needs a workload", hint="evenkeel scale --replicas 3 deployment/NAME")
    client = client_from(args)
    for name in names:
        client.scale(kind, args.namespace, name, args.replicas)
        print(f"{full_name(singular(kind), name)} scaled")
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number, 0 or more')
    return int(text)
