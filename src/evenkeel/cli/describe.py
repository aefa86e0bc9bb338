"""`evenkeel describe`: everything about a pod, a ConfigMap, a Secret or the node, as text."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from evenkeel.api.resources import CPU, MEMORY
from evenkeel.cli.arguments import (
    EVENTS,
    NODE,
    OBJECTS,
    PODS,
    add_namespace_flag,
    add_state_flag,
    is_workload_kind,
    known_kind,
    named,
)
from evenkeel.cli.client import AgentRefused, Client, client_from
from evenkeel.cli.events import message_of
from evenkeel.cli.get import listing_of
from evenkeel.cli.listing import Request, add_selector_flag, selecting
from evenkeel.cli.output import NONE, age, columns, printable
from evenkeel.cli.pod_description import pod_lines
from evenkeel.cli.pod_text import amount_text, given_text, typed
from evenkeel.errors import EvenkeelError
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.quantity import Quantity

USAGE = "pod NAME…|deployment NAME…|…|service NAME…|pvc NAME…|secret NAME…|node [-l LABELS] [-n NS]"
EXAMPLES = """examples:
  evenkeel describe pod web           its containers, resources asked for and applied, and events
  evenkeel describe web               the same
  evenkeel describe deployment web    its replicas, conditions and events; also job, cronjob, statefulset …
  evenkeel describe node              its capacity, the requests of its pods, and its conditions
"""
Json = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="pod, deployment, …, service, pvc, secret, node; else the name of a pod",
    )
    parser.add_argument("pods", nargs="*", metavar="NAME", help="names of pods")
    add_selector_flag(parser)
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    words = [args.kind, *args.pods]
    client = client_from(args)
    if len(words) == 1 and "/" not in args.kind and known_kind(args.kind):
        kind, names = named(words)
    else:
        kind, names = named(words, default=PODS)
    if kind == NODE:
        events = [event for event in _events(client, "", most=20) if not event.get("pod")]
        print("\n".join((*_node_lines(client.get("/node"), client.pods()), *_event_lines(events))))
        return 0
    if args.selector is not None and names:
        raise EvenkeelError("give names or -l LABELS, not both")
    if kind != EVENTS and not names:
        request = Request(client, args.namespace, selects=selecting(args.selector))
        names = [one["metadata"]["name"] for one in request.found(listing_of(kind))[0]]
        if not names:
            print(f"no {kind} in namespace {args.namespace}", file=sys.stderr)
            return 0
    if kind in OBJECTS:
        from evenkeel.cli.object_text import describe_objects

        return describe_objects(client, kind, names, args.namespace)
    if is_workload_kind(kind):
        from evenkeel.cli.workload_text import describe_workloads

        return describe_workloads(client, kind, names, args.namespace)
    if kind != PODS:
        raise EvenkeelError(
            "describe shows pods, workloads and the node", hint="evenkeel events shows events"
        )
    failures = 0
    for number, name in enumerate(names):
        try:
            pod = client.pod(args.namespace, name)
        except AgentRefused as refusal:
            print(printable(f"evenkeel: {refusal}"), file=sys.stderr)
            failures += 1
            continue
        print("\n\n" if number else "", end="")
        events = _events(client, f"{args.namespace}/{name}")
        print("\n".join((*pod_lines(pod), *_event_lines(events))))
    return int(failures > 0)


def _events(client: Client, pod: str, most: int = 50) -> list[Json]:
    parameters = {"most": str(most), **({"pod": pod} if pod else {})}
    return list(client.lines("/events", **parameters))


def _event_lines(events: list[Json]) -> Iterator[str]:
    if not events:
        yield f"Events:         {NONE}"
        return
    yield "Events:"
    rows = [
        (event.get("type", ""), event.get("reason", ""), age(event.get("at", 0.0)), message_of(event))
        for event in events
    ]
    for line in columns([("Type", "Reason", "Age", "Message"), *rows]):
        yield printable(f"  {line}")


def _node_lines(node: Json, pods: list[Json]) -> Iterator[str]:
    status = node.get("status", {})
    yield f"Name:           {printable(node['metadata'].get('name', ''))}"
    if conditions := status.get("conditions", ()):
        yield "Conditions:"
        width = max(len(condition["type"]) for condition in conditions)
        for condition in conditions:
            words = ": ".join(filter(None, (condition.get("reason", ""), condition.get("message", ""))))
            yield printable(f"  {condition['type']:<{width}}  {condition['status']:<7}  {words}".rstrip())
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    yield "Resources:"
    held = [typed(pod) for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    requests, limits = [pod_requests(pod) for pod in held], [pod_limits(pod) for pod in held]
    rows = [("", "CAPACITY", "ALLOCATABLE", "REQUESTED", "LIMITS")]
    for name in dict.fromkeys((*capacity, *allocatable)):
        may_use = Quantity(allocatable.get(name, "0"))
        asked = [of_pod[name] for of_pod in requests if name in of_pod]
        most = [of_pod[name] for of_pod in limits if name in of_pod]
        promised = str(len(held)) if name == "pods" else _share(name, asked, may_use)
        limited = "" if name == "pods" else _share(name, most, may_use)
        rows.append((name, given_text(name, capacity), given_text(name, allocatable), promised, limited))
    yield from (f"  {line}" for line in columns(rows))
    yield f"Pods:           {len(pods)} ({len(pods) - len(held)} ended)"
    for pod in held:
        amounts = pod_requests(pod)
        asks = ", ".join(
            f"{name} {amount_text(name, amounts.get(name))}" for name in (CPU, MEMORY) if amounts.get(name)
        )
        yield printable(f"  {pod.key}: {pod.status.qos_class or 'BestEffort'}, {asks or 'requests nothing'}")


def _share(name: str, amounts: list[Quantity], whole: Quantity) -> str:
    """The sum and its share of the whole: `550m (6%)`."""
    total = sum(amount.milli for amount in amounts)
    percent = f" ({100 * total // whole.milli}%)" if whole.milli else ""
    return f"{amount_text(name, Quantity.of_milli(total)) if total else '0'}{percent}"
