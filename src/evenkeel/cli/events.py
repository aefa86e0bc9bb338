"""`evenkeel events`: the events of pods and of the node."""

import argparse
import sys
from functools import partial
from typing import Any

from evenkeel.cli.arguments import PODS, add_namespace_flag, add_state_flag, named
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.output import STRUCTURED, Table, age
from evenkeel.cli.output_forms import cells_of, columns_of, heads_of, print_whole
from evenkeel.errors import EvenkeelError

USAGE = "[POD | --for pod/NAME] [-n NS|-A] [-f] [--most N] [-o json|yaml]"
EXAMPLES = """examples:
  evenkeel events                  the events of namespace default and of the node
  evenkeel events web              the events of one pod
  evenkeel events -A -f            all events, and new ones until Ctrl-C
  evenkeel events -o json          with the figures of each decision
"""
_HEADS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", nargs="?", metavar="POD", help="only the events of this pod")
    parser.add_argument("--for", dest="object", metavar="pod/NAME", help="the same, as in kubectl")
    parser.add_argument(
        "-f", "-w", "--follow", "--watch", action="store_true", dest="follow", help="go on with new events"
    )
    parser.add_argument(
        "--most", metavar="N", type=int, default=1000, help="at most this many, the latest (%(default)s)"
    )
    add_namespace_flag(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the events of every namespace")
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="print this form and not a table")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    client = client_from(args)
    pod = f"{args.namespace}/{_pod(args.pods, args.object)}" if args.pods or args.object else ""
    namespace = "" if args.all_namespaces or pod else args.namespace
    return show_events(
        client, pod=pod, namespace=namespace, follows=args.follow, form=args.output, most=args.most
    )


def _pod(name: str | None, wanted: str | None) -> str:
    """The pod of the argument, or of `--for`."""
    if name and wanted:
        raise EvenkeelError(f"{name[:60]} and --for {wanted[:60]} both name a pod: give one of them")
    word = name or wanted or ""
    kind, names = named([word], PODS)
    if kind != PODS:
        raise EvenkeelError(
            f"{word[:100]} is not a pod: events shows those of one pod, or all",
            hint="evenkeel describe shows those of a workload or the node",
        )
    return names[0]


def show_events(
    client: Client, *, pod: str, namespace: str, follows: bool, form: str | None, most: int = 1000
) -> int:
    """The events of one pod, or of a namespace and the node, or all."""
    parameters = {"most": str(most)}
    if pod:
        parameters["pod"] = pod
    if follows:
        parameters["follow"] = "1"
    events = (
        event
        for event in client.lines("/events", **parameters)
        if not namespace or event.get("pod", "").partition("/")[0] in ("", namespace)
    )
    columns = columns_of(form)
    if form and not columns:
        if not follows:
            print_whole({"kind": "List", "items": list(events)}, form)
            return 0
        for event in events:
            print_whole(event, form)
            sys.stdout.flush()
        return 0
    table = Table(heads_of(columns) if columns else _HEADS)
    row = partial(cells_of, columns) if columns else _row
    if follows:
        for event in events:
            table.print_rows([row(event)])
    elif rows := [row(event) for event in events]:
        table.print_rows(rows)
    else:
        print("no events", file=sys.stderr)
    return 0


def _row(event: dict[str, Any]) -> list[str]:
    return [
        age(event.get("at", 0.0)),
        event.get("type", ""),
        event.get("reason", ""),
        object_of(event),
        message_of(event),
    ]


def object_of(event: dict[str, Any]) -> str:
    pod = event.get("pod", "")
    return f"pod/{pod.partition('/')[2]}" if pod else "node"


def message_of(event: dict[str, Any]) -> str:
    container = event.get("container", "")
    message: str = event.get("message", "")
    return f"{container}: {message}" if container and container not in message else message
