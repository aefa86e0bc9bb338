"""`evenkeel delete`: ends pods, and waits until nothing of them is left."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from evenkeel.cli.client import AgentRefused, Client, client_from
from evenkeel.cli.common_flags import PODS, add_namespace_flag, add_state_flag, grace_seconds, named
from evenkeel.errors import EvenkeelError

USAGE = "NAME… | pod NAME… | -f FILE… | --all [-n NS] [--grace-period SECONDS] [--now] [--wait=false]"
EXAMPLES = """examples:
  evenkeel delete web batch-0                  these two, and wait until they are gone
  evenkeel delete -f pod.yaml                  the pods of a file
  evenkeel delete pod web --grace-period 5     SIGTERM, and what is left after 5 seconds is killed
  evenkeel delete web --now --wait=false       killed after a second; do not wait for it
  evenkeel delete --all -n batch               every pod of a namespace
a pod that came from a file in the agent's directory comes back unless the file is removed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", nargs="*", metavar="NAME", help="pods by name; also pod/NAME")
    parser.add_argument(
        "-f", "--filename", metavar="FILE", nargs="+", action="extend", help="the pods of these manifests"
    )
    parser.add_argument("--all", action="store_true", help="every pod of the namespace")
    parser.add_argument(
        "--grace-period",
        type=grace_seconds,
        metavar="SECONDS",
        help="from SIGTERM to the kill; else the pod's own",
    )
    parser.add_argument("--now", action="store_true", help="the same as --grace-period 1")
    parser.add_argument(
        "--wait",
        choices=("true", "false"),
        nargs="?",
        const="true",
        default="true",
        help="until they are gone",
    )
    parser.add_argument("--ignore-not-found", action="store_true", help="a pod that is not there is no error")
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.now and args.grace_period is not None:
        raise EvenkeelError("--now and --grace-period say two things: give one of them")
    if sum(map(bool, (args.pods, args.filename, args.all))) != 1:
        raise EvenkeelError(
            "delete needs names, or -f FILE, or --all", hint="evenkeel get pods lists what there is"
        )
    client = client_from(args)
    grace = 1.0 if args.now else args.grace_period
    deletion = _Deletion(client, grace, waits=args.wait == "true", may_lack=args.ignore_not_found)
    for namespace, name in list(_wanted(args, client)):
        deletion.ask(namespace, name)
    deletion.wait()
    for message in deletion.failures:
        print(f"evenkeel: {message}", file=sys.stderr)
    return int(bool(deletion.failures))


class _Deletion:
    def __init__(self, client: Client, grace: float | None, *, waits: bool, may_lack: bool) -> None:
        self.failures: list[str] = []
        self._client = client
        self._grace = grace
        self._may_lack = may_lack
        self._asked: dict[str, str] = {}  # namespace/name → uid
        # Listening begins before the first pod is asked to end, so that no end is missed.
        self._changes: Iterator[Any] | None = client.lines("/watch") if waits else None

    def ask(self, namespace: str, name: str) -> None:
        try:
            self._client.delete(namespace, name, self._grace)
        except AgentRefused as refusal:
            if not (refusal.is_not_found and self._may_lack):
                self.failures.append(str(refusal))
            return
        self._asked[f"{namespace}/{name}"] = name
        print(f'pod "{name}" deleted', flush=True)

    def wait(self) -> None:
        if self._changes is None:
            return
        left = set(self._asked)
        while left:
            change = next(self._changes, None)
            if change is None:  # the agent ended, or dropped us
                break
            if change["type"] == "DELETED":
                meta = change["object"]["metadata"]
                left.discard(f"{meta.get('namespace', 'default')}/{meta['name']}")
        if left:
            raise EvenkeelError(f"the agent ended before {', '.join(sorted(left))} had")


def _wanted(args: argparse.Namespace, client: Client) -> Iterator[tuple[str, str]]:
    if args.all:
        for pod in client.pods(args.namespace):
            yield args.namespace, pod["metadata"]["name"]
    elif args.filename:
        from evenkeel.cli.apply import profile_of
        from evenkeel.cli.inputs import read_all

        for read in read_all(args.filename, profile_of(client)).or_raise().pods:
            yield read.metadata.namespace, read.metadata.name
    else:
        kind, names = named(args.pods, default=PODS)
        if kind != PODS or not names:
            raise EvenkeelError("only pods can be deleted: name them")
        for name in names:
            yield args.namespace, name
