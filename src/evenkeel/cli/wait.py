"""`evenkeel wait`: returns when pods or workloads have a condition, a value in a field, or are gone."""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

from evenkeel.cli.arguments import (
    EVENTS,
    NODE,
    PODS,
    add_namespace_flag,
    add_state_flag,
    duration_seconds,
    named,
)
from evenkeel.cli.client import AgentRefused, Client, client_from
from evenkeel.cli.get import listing_of
from evenkeel.cli.listing import Listing, Request, add_selector_flag, selecting
from evenkeel.cli.rollout import next_change, queued_changes
from evenkeel.errors import EvenkeelError

USAGE = "--for=condition=NAME[=VALUE]|delete|jsonpath=PATH[=VALUE] KIND/NAME…|KIND --all|KIND -l LABELS [--timeout 30s]"
EXAMPLES = """examples:
  evenkeel wait --for=condition=Ready pod/web            until it is ready, 30 seconds at most
  evenkeel wait --for=condition=Available deployment/web --timeout 2m
  evenkeel wait --for=condition=complete job/import      also pods -l app=web, or pods --all
  evenkeel wait --for=delete pod/web                     until it is gone
  evenkeel wait --for=jsonpath='{.status.phase}'=Running pod/web
"""
Json = dict[str, Any]
Holds = Callable[[Json], bool]
_DEFAULT_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", nargs="*", metavar="KIND/NAME", help="what to wait for; also KIND NAME…")
    parser.add_argument(
        "--for",
        dest="what",
        required=True,
        type=_checked,
        metavar="WHAT",
        help="condition=NAME, condition=NAME=VALUE, delete, or jsonpath=PATH=VALUE",
    )
    parser.add_argument("--all", action="store_true", help="all of the KIND in the namespace")
    add_selector_flag(parser)
    parser.add_argument(
        "--timeout",
        type=duration_seconds,
        default=_DEFAULT_SECONDS,
        metavar="30s",
        help="give up after that long (default: 30s); 0 looks once",
    )
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    is_selection = args.all or args.selector is not None
    kind, names = named(args.pods, default="" if is_selection else PODS)
    if not kind or kind in (NODE, EVENTS) or is_selection == bool(names):
        raise EvenkeelError(
            "wait needs pods, workloads or other objects: by name, or by KIND with --all or -l LABELS",
            hint="evenkeel wait --for=condition=Ready pod/web",
        )
    client, listing = client_from(args), listing_of(kind)
    if is_selection:
        request = Request(client, args.namespace, selects=selecting(args.selector))
        names = [one["metadata"]["name"] for one in request.found(listing)[0]]
        if not names and args.what != "delete":
            raise EvenkeelError(f"there are no such {kind} in namespace {args.namespace}")
    deadline = time.monotonic() + args.timeout
    for name in names:
        _wait(client, listing, args.namespace, name, args.what, deadline)
    return 0


def _wait(client: Client, listing: Listing, namespace: str, name: str, what: str, deadline: float) -> None:
    # The watch begins before the first look, so that no change is missed.
    changes = queued_changes(client.lines("/watch", namespace=namespace))
    holds = None if what == "delete" else condition(what)
    uid = ""
    while True:
        try:
            found = listing.by_name(client, namespace, name)
        except AgentRefused as refusal:
            if holds is not None or not refusal.is_not_found:
                raise
            print(f'{listing.plural.removesuffix("s")} "{name}" is gone', flush=True)
            return
        full_name, uid_now = listing.full_name(found), str(found["metadata"].get("uid", ""))
        if holds is None and uid and uid_now != uid:
            print(f"{full_name} is gone, and there is another one", flush=True)
            return
        uid = uid_now
        if holds is not None and holds(found):
            print(f"{full_name} condition met", flush=True)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise EvenkeelError(
                f"{full_name}: timed out waiting for {what}", hint=f"evenkeel describe {full_name}"
            )
        next_change(changes, min(left, math.inf), "the agent ended while it was waited for")


def condition(what: str) -> Holds:
    """Whether an object is as the text of `--for` says. Raises EvenkeelError if that cannot be read."""
    form, _, rest = what.partition("=")
    if form == "condition" and rest:
        name, _, value = rest.partition("=")
        return lambda one: _has_condition(one, name.lower(), (value or "true").lower())
    if form == "jsonpath" and rest:
        return _field(rest)
    raise EvenkeelError(
        f'--for: "{what[:80]}" is not condition=NAME, condition=NAME=VALUE, delete or jsonpath=PATH=VALUE'
    )


def _has_condition(one: Json, name: str, value: str) -> bool:
    status = one.get("status", {})
    if status.get("observedGeneration", math.inf) < one["metadata"].get("generation", 0):
        return False  # what is said there is about the former one
    return any(
        (each["type"].lower(), each["status"].lower()) == (name, value)
        for each in status.get("conditions", ())
    )


def _field(text: str) -> Holds:
    from evenkeel.cli.jsonpath import cell_of
    from evenkeel.cli.jsonpath_reader import parse, relaxed
    from evenkeel.cli.output import NONE

    path, brace, value = text.rpartition("}=") if "}=" in text else (text, "", "")
    if not brace and not text.endswith("}"):  # the form without braces: .status.phase=Running
        path, _, value = text.partition("=")
    template = parse(relaxed(f"{path}}}" if brace else path))
    if value:
        return lambda one: cell_of(template, one) == value.strip("'\"")
    return lambda one: cell_of(template, one) not in ("", NONE)


def _checked(text: str) -> str:
    try:
        if text != "delete":
            condition(text)
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text
