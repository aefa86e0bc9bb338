"""`evenkeel delete`: ends pods and workloads and waits until their pods are gone; removes ConfigMaps, Secrets,
Services and claims."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from evenkeel.cli.arguments import (
    EVENTS,
    NODE,
    OBJECTS,
    PODS,
    add_namespace_flag,
    add_state_flag,
    grace_seconds,
    known_kind,
    named,
    of_several_kinds,
    plural_of,
    pods_owned,
)
from evenkeel.cli.client import AgentRefused, Client, client_from, reported
from evenkeel.cli.get import ALL, kinds_and_names, listing_of
from evenkeel.cli.listing import Request, add_selector_flag, selecting
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

USAGE = (
    "NAME… | KIND NAME… | [KIND] --all | [KIND] -l LABELS | -f FILE… [-n NS] [--grace-period SECONDS] [--now|--force] "
    "[--wait=false]"
)
EXAMPLES = """examples:
  evenkeel delete web batch-0                  these two, and wait until they are gone
  evenkeel delete -f pod.yaml                  everything that a file has
  evenkeel delete deployment web               a workload and its pods
  evenkeel delete deployment/web service/web   objects of several kinds
  evenkeel delete pvc data-db-0                a claim with its files; pods that have it must be gone
  evenkeel delete secret database              pods that have it keep what they have, and cannot start anew
  evenkeel delete pod web --grace-period 5     SIGTERM, and after 5 seconds SIGKILL
  evenkeel delete web --now --wait=false       SIGKILL after a second; do not wait
  evenkeel delete --all -n batch               every pod of a namespace
  evenkeel delete jobs -l app=import           every Job with this label; also deployments,services, and all

A pod from a file in the agent's directory comes back unless the file is removed. So does a pod of a workload.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", nargs="*", metavar="NAME", help="pods by name; also pod/NAME")
    parser.add_argument(
        "-f", "--filename", metavar="FILE", nargs="+", action="extend", help="the pods of these manifests"
    )
    parser.add_argument("--all", action="store_true", help="every pod of the namespace, or all of a KIND")
    add_selector_flag(parser)
    parser.add_argument(
        "--grace-period",
        type=grace_seconds,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL (default: that of the pod)",
    )
    parser.add_argument("--force", action="store_true", help="the same as --grace-period 0: SIGKILL at once")
    parser.add_argument("--now", action="store_true", help="the same as --grace-period 1")
    parser.add_argument(
        "--wait",
        choices=("true", "false"),
        nargs="?",
        const="true",
        default="true",
        help="wait until the pods are gone (default: true)",
    )
    parser.add_argument("--ignore-not-found", action="store_true", help="a missing pod is no error")
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.now and (args.grace_period is not None or args.force):
        raise EvenkeelError("--now contradicts --grace-period and --force: give one of them")
    if args.force and args.grace_period:
        raise EvenkeelError(
            "--force ends a pod at once, so --grace-period must be 0 with it: give one of them"
        )
    client = client_from(args)
    targets = list(_targets(args, client))
    grace = 1.0 if args.now else 0.0 if args.force else args.grace_period
    objects = [target for target in targets if target.kind in OBJECTS]
    waits = args.wait == "true" and len(objects) < len(targets)
    deletion = _Deletion(client, grace, waits=waits, ignores_missing=args.ignore_not_found)
    for target in targets:
        if target.kind not in OBJECTS:
            deletion.ask(*target)
    deletion.wait()
    # The objects come last: a claim stays as long as a pod has it.
    failures = _delete_objects(client, objects, ignores_missing=args.ignore_not_found)
    return reported([*deletion.failures, *failures])


class _Target(NamedTuple):
    """The objects to delete. `kind` is a plural."""

    kind: str
    namespace: str
    name: str


def _targets(args: argparse.Namespace, client: Client) -> Iterator[_Target]:
    is_selection = args.all or args.selector is not None
    if bool(args.filename) + is_selection + bool(args.pods and not is_selection) != 1:
        raise EvenkeelError(
            "delete needs names, or -f FILE, or --all, or -l LABELS",
            hint="evenkeel get all lists what there is",
        )
    if args.filename:
        yield from _of_files(args.filename, client)
        return
    if is_selection and len(args.pods) == 1 and (args.pods[0] == ALL or "," in args.pods[0]):
        kinds, _ = kinds_and_names(args.pods)
        for kind in kinds:
            yield from _selected(args, client, kind)
        return
    if not is_selection and len(args.pods) == 1 and (kind := known_kind(args.pods[0])):
        raise EvenkeelError(f"delete {kind}: name them, or give --all", hint="a pod of that name is pod/NAME")
    mixed = of_several_kinds(args.pods)
    kind, names = ("", []) if mixed else named(args.pods, default="" if is_selection and args.pods else PODS)
    if not {NODE, EVENTS}.isdisjoint((kind, *mixed)) or (is_selection and (names or mixed)):
        raise EvenkeelError(
            "only pods, workloads, services, pvc, configmaps and secrets can be deleted: by name, or by KIND with "
            "--all or -l LABELS"
        )
    if mixed:
        yield from (_Target(kind, args.namespace, name) for kind, named_ in mixed.items() for name in named_)
        return
    if is_selection:
        yield from _selected(args, client, kind)
    elif not names:
        raise EvenkeelError(f"delete {kind}: name them, or give --all")
    yield from (_Target(kind, args.namespace, name) for name in names)


def _selected(args: argparse.Namespace, client: Client, kind: str) -> Iterator[_Target]:
    request = Request(client, args.namespace, selects=selecting(args.selector))
    for one in request.found(listing_of(kind))[0]:
        yield _Target(kind, args.namespace, one["metadata"]["name"])


def _of_files(files: list[str], client: Client) -> Iterator[_Target]:
    from evenkeel.api.stored_objects import OBJECT_KINDS, key_of_object
    from evenkeel.cli.apply import config_of
    from evenkeel.cli.inputs import read_all

    reading = read_all(files, config_of(client).rulebook, is_to_run=False).or_raise()
    for pod in reading.pods:
        yield _Target(PODS, pod.metadata.namespace, pod.metadata.name)
    for workload, _, _ in reading.workloads:
        yield _Target(plural_of(workload), workload.metadata.namespace, workload.metadata.name)
    for one in reading.objects:
        key = key_of_object(one)
        yield _Target(OBJECT_KINDS[key.kind].plural, key.namespace, key.name)


def _delete_objects(client: Client, objects: Sequence[_Target], *, ignores_missing: bool) -> list[str]:
    """Returns why some of them could not be deleted."""
    failures = []
    for kind, namespace, name in objects:
        try:
            client.delete_object(kind, namespace, name)
        except AgentRefused as refusal:
            if not (refusal.is_not_found and ignores_missing):
                failures.append(str(refusal))
            continue
        print(f'{kind.removesuffix("s")} "{name}" deleted', flush=True)
    return failures


class _Deletion:
    """Deletes pods and workloads one by one, then waits for all pods."""

    def __init__(self, client: Client, grace: float | None, *, waits: bool, ignores_missing: bool) -> None:
        self.failures: list[str] = []
        self._client = client
        self._grace = grace
        self._ignores_missing = ignores_missing
        self._asked: dict[str, str] = {}  # namespace/name → uid
        # The watch begins before the first deletion, so that no end is missed.
        self._changes: Iterator[Any] | None = client.lines("/watch") if waits else None

    def ask(self, kind: str, namespace: str, name: str) -> None:
        pods = [name]
        try:
            if kind == PODS:
                self._client.delete(namespace, name, self._grace)
            else:
                pods = pods_owned(self._client, kind, namespace, name)
                self._client.delete_workload(kind, namespace, name, self._grace)
        except AgentRefused as refusal:
            if not (refusal.is_not_found and self._ignores_missing):
                self.failures.append(str(refusal))
            return
        self._asked.update((f"{namespace}/{pod}", pod) for pod in pods)
        print(f'{kind.removesuffix("s")} "{name}" deleted', flush=True)

    def wait(self) -> None:
        if self._changes is None:
            return
        left = set(self._asked)
        while left:
            change = next(self._changes, None)
            if change is None:  # the agent ended, or closed the watch
                break
            if change["type"] == "DELETED":
                meta = change["object"]["metadata"]
                left.discard(f"{meta.get('namespace', 'default')}/{meta['name']}")
        if left:
            raise EvenkeelError(f"the agent ended before these pods: {', '.join(sorted(left))}")
