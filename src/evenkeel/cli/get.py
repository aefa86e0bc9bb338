"""`evenkeel get`: pods, workloads, Services, claims, ConfigMaps, Secrets, the node or events, as a table or for a
program."""

import argparse
from collections.abc import Sequence
from typing import Any

from evenkeel.cli.arguments import (
    EVENTS,
    NODE,
    OBJECTS,
    PODS,
    SERVICES,
    add_namespace_flag,
    add_state_flag,
    is_workload_kind,
    named,
    of_several_kinds,
)
from evenkeel.cli.client import Client, client_from, reported
from evenkeel.cli.listing import Listing, Request, Row, add_selector_flag, printer, selecting, show
from evenkeel.cli.listing_flags import add_listing_flags, field_selector, label_names
from evenkeel.cli.output import NONE, Table, age_of
from evenkeel.cli.output_forms import (
    add_output_flag,
    columns_of,
    print_columns,
    print_whole,
    takes_whole,
)
from evenkeel.cli.pod_text import summary
from evenkeel.errors import EvenkeelError

USAGE = (
    "pods|pod NAME…|deployments|…|services|pvc|secrets|node|events|all [-n NS|-A] [-l LABELS] "
    "[-o wide|name|json|yaml|jsonpath=…|custom-columns=…] [-w]"
)
EXAMPLES = """examples:
  evenkeel get pods                      the pods of namespace default, with their status
  evenkeel get pods -A -o wide           all pods, with class, requests and reasons
  evenkeel get pods -l app=web,tier!=db  those with these labels; --show-labels prints all labels
  evenkeel get pods --field-selector status.phase=Failed --sort-by .metadata.creationTimestamp
  evenkeel get pod web -o yaml           everything about one pod
  evenkeel get pods -w                   and every change, until Ctrl-C
  evenkeel get all                       pods, Services and workloads; also get pods,services
  evenkeel get deployment/web svc/web    these two, of different kinds
  evenkeel get secrets                   names, types and numbers of keys; -o yaml shows the values, too
  evenkeel get services                  and the addresses of the pods that their names lead to
  evenkeel get pvc                       claims: directories that outlive pods
  evenkeel get deployments               replicas that are ready, updated and available; also rs, sts, ds, jobs, cj
  evenkeel get node                      the capacity of the node, and what pods may use of it
  evenkeel get events                    the events of namespace default and of the node
  evenkeel get pods -o jsonpath='{range .items[*]}{.metadata.name}{"\\t"}{.status.phase}{"\\n"}{end}'
                                         a line for each pod; also {.items[?(@.spec.priority>0)].metadata.name}
  evenkeel get pod web -o jsonpath='{.metadata.labels.app\\.kubernetes\\.io/name}'
                                         a dot of a name is escaped
  evenkeel get pods -o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image
                                         a table of these columns
"""
Json = dict[str, Any]
ALL = "all"
_ALL_KINDS = (
    PODS, "replicationcontrollers", SERVICES, "daemonsets", "deployments", "replicasets", "statefulsets", "cronjobs",
    "jobs",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="pods, deployments, jobs, …, services, pvc, configmaps, secrets, node or events; all; several with "
        "commas; also pod/NAME",
    )
    parser.add_argument("pods", nargs="*", metavar="NAME", help="only these")
    add_namespace_flag(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="those of every namespace")
    add_selector_flag(parser)
    add_output_flag(parser)
    add_listing_flags(parser)
    parser.add_argument("--show-labels", action="store_true", help="a last column with the labels")
    parser.add_argument("-w", "--watch", action="store_true", help="go on with changes")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    words = [args.kind, *args.pods]
    mixed = of_several_kinds(words)
    kinds, names = (list(mixed), words) if mixed else kinds_and_names(words)
    _refuse_beside_others(kinds)
    client = client_from(args)
    if kinds == [NODE]:
        if args.watch or args.selector is not None or args.field_selector is not None:
            raise EvenkeelError("the node cannot be watched or selected: -w and -l are for other kinds")
        return _get_node(client, args.output, has_heads=not args.no_headers)
    if kinds == [EVENTS]:
        from evenkeel.cli.events import show_events

        if len(names) > 1 or args.selector is not None or args.output in ("wide", "name"):
            raise EvenkeelError("get events takes at most one pod, no -l, and neither -o wide nor -o name")
        if args.field_selector is not None:
            raise EvenkeelError(
                "get events takes no --field-selector: they are in the order of time",
                hint="evenkeel get events POD shows those of a pod, and -o json is for programs",
            )
        pod = f"{args.namespace}/{names[0]}" if names else ""
        namespace = "" if args.all_namespaces or pod else args.namespace
        return show_events(client, pod=pod, namespace=namespace, follows=args.watch, form=args.output)
    if names and args.all_namespaces:
        raise EvenkeelError("a name belongs to one namespace: give -n NS, not -A")
    if names and (args.selector is not None or args.field_selector is not None):
        raise EvenkeelError("give names or -l LABELS or --field-selector FIELDS, not both")
    request = Request(
        client,
        "" if args.all_namespaces else args.namespace,
        names,
        selecting(args.selector),
        args.output,
        args.show_labels,
        field_selector(args.field_selector),
        args.sort_by,
        label_names(args.label_columns),
        not args.no_headers,
    )
    listings = [listing_of(kind) for kind in kinds]
    return _watch(listings, request) if args.watch else show(listings, request, mixed)


def kinds_and_names(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """`pods web`, `pod/web`, `pods,services web`, and `all`, which takes no names."""
    first, *names = words
    if first == ALL:
        if names:
            raise EvenkeelError(f'get all takes no names: "{names[0][:60]}"')
        return list(_ALL_KINDS), []
    if "," not in first:
        kind, names = named(words)
        return [kind], names
    kinds = list(dict.fromkeys(named([word])[0] for word in first.split(",")))
    _refuse_beside_others(kinds)
    return kinds, names


def _refuse_beside_others(kinds: Sequence[str]) -> None:
    for alone in (NODE, EVENTS):
        if alone in kinds and len(kinds) > 1:
            raise EvenkeelError(f"{alone} cannot be listed beside other kinds: evenkeel get {alone}")


def listing_of(kind: str) -> Listing:
    """For a plural that is neither the node's nor the events'."""
    if kind in OBJECTS:
        from evenkeel.cli.object_text import object_listing

        return object_listing(kind)
    if is_workload_kind(kind):
        from evenkeel.cli.workload_text import workload_listing

        return workload_listing(kind)
    return _POD_LISTING


def _watch(listings: Sequence[Listing], request: Request) -> int:
    """Prints what there is, then an object whenever it has changed, until the agent ends."""
    (listing, *others) = listings
    if others or listing.plural in OBJECTS:
        raise EvenkeelError("-w follows pods, or workloads of one kind")
    changes = request.client.lines(
        "/watch", **({"namespace": request.namespace} if request.namespace else {})
    )
    found, failures = request.found(listing)
    if failures:
        return reported(failures)
    print_objects = printer(listing, request, widths={"STATUS": len("ContainerCreating")})
    print_objects(found)
    last = {one["metadata"]["uid"]: one for one in found}
    for change in changes:
        if listing.plural == PODS:
            changed = [change["object"]] if request.takes(change["object"]) else []
        else:
            changed = request.found(listing)[0]
        is_gone = listing.plural == PODS and change["type"] == "DELETED"
        fresh = [one for one in changed if is_gone or last.get(one["metadata"]["uid"]) != one]
        print_objects(fresh)
        for one in changed:
            last[one["metadata"]["uid"]] = one
    raise EvenkeelError("the agent ended, so the watch ended too")


# Pods


def _pod_table(request: Request) -> tuple[list[str], Row]:
    is_wide = request.is_wide
    return pod_heads(is_wide=is_wide), lambda pod: pod_row(pod, is_wide=is_wide)


_POD_LISTING = Listing(
    PODS, Client.pods, Client.pod, lambda pod: f"pod/{pod['metadata']['name']}", _pod_table
)


def pod_heads(*, is_wide: bool = False) -> list[str]:
    heads = ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    return [*heads, "IP", "QOS", "CPU", "MEMORY", "PRIORITY", "REASON"] if is_wide else heads


def pod_row(pod: Json, *, is_wide: bool = False, now: float | None = None) -> list[str]:
    meta, status = pod["metadata"], pod.get("status", {})
    line = summary(pod)
    began = meta.get("creationTimestamp") or status.get("startTime")
    row = [meta["name"], line.ready_text, line.status, line.restarts_text(now), age_of(began, now)]
    return [*row, *_wide_cells(pod)] if is_wide else row


def _wide_cells(pod: Json) -> list[str]:
    from evenkeel.cli.pod_text import request_and_limit

    status = pod.get("status", {})
    cpu, memory = request_and_limit(pod)
    reason = status.get("message") or next(
        (
            state["message"]
            for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
            for state in container.get("state", {}).values()
            if state.get("message")
        ),
        "",
    )
    priority = str(pod.get("spec", {}).get("priority", 0))
    return [status.get("podIP") or NONE, status.get("qosClass", ""), cpu, memory, priority, reason]


def _get_node(client: Client, form: str | None, *, has_heads: bool) -> int:
    from evenkeel.policy.amounts import resource_text
    from evenkeel.quantity import Quantity

    node = client.get("/node")
    name = node["metadata"].get("name", "")
    if form and takes_whole(form):
        print_whole(node, form)
        return 0
    if columns := columns_of(form):
        print_columns(columns, node)
        return 0
    if form == "name":
        print(f"node/{name}")
        return 0
    status = node.get("status", {})
    words = node_words(node)
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    amounts = [
        "/".join(resource_text(which, Quantity(of.get(which, "0"))) for of in (allocatable, capacity))
        for which in ("cpu", "memory", "pods")
    ]
    heads = ["NAME", "STATUS", "CPU", "MEMORY", "PODS"]
    Table(heads, has_heads=has_heads).print_rows([[name, ",".join(words), *amounts]])
    return 0


def node_words(node: Json) -> list[str]:
    """Ready or NotReady, and the pressures of the node."""
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    words = ["NotReady" if conditions.pop("Ready", "True") == "False" else "Ready"]
    return words + [kind for kind, status in conditions.items() if status == "True"]
