"""`evenkeel get`: pods, workloads, Services, claims, ConfigMaps, Secrets, the node or events, as a table or for a
program."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from evenkeel.cli.client import (
    EVENTS,
    NODE,
    OBJECTS,
    Client,
    add_namespace_flag,
    add_state_flag,
    client_from,
    found_by_name,
    is_workload_kind,
    named,
    reported,
)
from evenkeel.cli.output import STRUCTURED, Table, age_of, print_structured
from evenkeel.cli.pod_text import summary
from evenkeel.errors import EvenkeelError

USAGE = (
    "pods|pod NAME…|deployments|…|services|pvc|secrets|node|events [-n NS|-A] [-o wide|name|json|yaml] [-w]"
)
EXAMPLES = """examples:
  evenkeel get pods                      the pods of namespace default, with their status
  evenkeel get pods -A -o wide           all pods, with class, requests and reasons
  evenkeel get pod web -o yaml           everything about one pod
  evenkeel get pods -w                   and every change, until Ctrl-C
  evenkeel get secrets                   names, types and numbers of keys; -o yaml shows the values, too
  evenkeel get services                  and the addresses of the pods that their names lead to
  evenkeel get pvc                       claims: directories that outlive pods
  evenkeel get deployments               replicas that are ready, updated and available; also rs, sts, ds, jobs, cj
  evenkeel get node                      the capacity of the node, and what pods may use of it
  evenkeel get events                    the events of namespace default and of the node
"""
Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="pods, deployments, jobs, …, services, pvc, configmaps, secrets, node or events; also pod/NAME",
    )
    parser.add_argument("pods", nargs="*", metavar="NAME", help="only these pods")
    add_namespace_flag(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the pods of every namespace")
    parser.add_argument(
        "-o", "--output", choices=("wide", "name", *STRUCTURED), help="print this form and not a table"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="go on with changes")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    kind, names = named([args.kind, *args.pods])
    client = client_from(args)
    if kind == NODE:
        if args.watch:
            raise EvenkeelError("the node cannot be watched: -w is for pods and events")
        return _get_node(client, args.output)
    if kind == EVENTS:
        from evenkeel.cli.events import show_events

        if len(names) > 1 or args.output in ("wide", "name"):
            raise EvenkeelError("get events takes at most one pod, and -o json or -o yaml")
        pod = f"{args.namespace}/{names[0]}" if names else ""
        namespace = "" if args.all_namespaces or pod else args.namespace
        return show_events(client, pod=pod, namespace=namespace, follows=args.watch, form=args.output)
    if names and args.all_namespaces:
        raise EvenkeelError("a name belongs to one namespace: give -n NS, not -A")
    if kind in OBJECTS:
        from evenkeel.cli.object_text import show_objects

        if args.watch or args.output == "wide":
            raise EvenkeelError(f"get {kind} takes -o name, -o json or -o yaml, and no -w")
        return show_objects(client, kind, names, "" if args.all_namespaces else args.namespace, args.output)
    if is_workload_kind(kind):
        from evenkeel.cli.workload_text import show_workloads

        return show_workloads(client, kind, names, args)
    return _get_pods(client, names, args)


def _get_pods(client: Client, names: Sequence[str], args: argparse.Namespace) -> int:
    namespace = "" if args.all_namespaces else args.namespace
    failures: list[str] = []
    if names:
        pods, failures = found_by_name(names, lambda name: client.pod(namespace, name))
    else:
        pods = client.pods(namespace)
    if args.output in STRUCTURED and not args.watch:
        if len(names) == 1 and pods:
            print_structured(pods[0], args.output)
        elif not failures:
            print_structured({"apiVersion": "v1", "kind": "List", "items": pods}, args.output)
    else:
        show = _printer(args)
        show(pods)
        if not pods and not failures and not args.watch and args.output is None:
            print(f"no pods{f' in namespace {namespace}' if namespace else ''}", file=sys.stderr)
        if args.watch and not failures:
            _follow(client, pods, names, namespace, show)
    return reported(failures)


def _follow(
    client: Client,
    known: Sequence[Json],
    names: Sequence[str],
    namespace: str,
    show: Callable[[Sequence[Json]], None],
) -> None:
    """Shows every change after the `known` pods, until the agent ends."""
    last = {pod["metadata"]["uid"]: pod for pod in known}
    parameters = {"namespace": namespace} if namespace else {}
    for change in client.lines("/watch", **parameters):
        pod = change["object"]
        uid = pod["metadata"]["uid"]
        if names and pod["metadata"]["name"] not in names:
            continue
        if change["type"] == "DELETED":
            last.pop(uid, None)
        elif last.get(uid) == pod:
            continue  # shown before
        else:
            last[uid] = pod
        show([pod])
    raise EvenkeelError("the agent ended, so the watch ended too")


def _printer(args: argparse.Namespace) -> Callable[[Sequence[Json]], None]:
    """A function that prints pods, and can be called again for changes."""
    if args.output == "name":
        return lambda pods: (
            print(*(f"pod/{pod['metadata']['name']}" for pod in pods), sep="\n", flush=True) if pods else None
        )
    if args.output in STRUCTURED:

        def show_structured(pods: Sequence[Json]) -> None:
            for pod in pods:
                print_structured(pod, args.output)
                if args.output == "yaml":
                    print("---")
                sys.stdout.flush()

        return show_structured
    is_wide, has_namespace = args.output == "wide", args.all_namespaces
    least = {"STATUS": len("ContainerCreating")} if args.watch else {}
    table = Table(pod_heads(is_wide=is_wide, has_namespace=has_namespace), least)
    return lambda pods: table.print_rows(
        [pod_row(pod, is_wide=is_wide, has_namespace=has_namespace) for pod in pods]
    )


def pod_heads(*, is_wide: bool = False, has_namespace: bool = False) -> list[str]:
    heads = ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    if has_namespace:
        heads.insert(0, "NAMESPACE")
    return [*heads, "QOS", "CPU", "MEMORY", "PRIORITY", "REASON"] if is_wide else heads


def pod_row(
    pod: Json, *, is_wide: bool = False, has_namespace: bool = False, now: float | None = None
) -> list[str]:
    meta, status = pod["metadata"], pod.get("status", {})
    line = summary(pod)
    began = meta.get("creationTimestamp") or status.get("startTime")
    row = [meta["name"], line.ready_text, line.status, line.restarts_text(now), age_of(began, now)]
    if has_namespace:
        row.insert(0, meta.get("namespace", "default"))
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
    return [status.get("qosClass", ""), cpu, memory, priority, reason]


def _get_node(client: Client, form: str | None) -> int:
    from evenkeel.policy.amounts import resource_text
    from evenkeel.quantity import Quantity

    node = client.get("/node")
    name = node["metadata"].get("name", "")
    if form in STRUCTURED:
        print_structured(node, form)
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
    Table(["NAME", "STATUS", "CPU", "MEMORY", "PODS"]).print_rows([[name, ",".join(words), *amounts]])
    return 0


def node_words(node: Json) -> list[str]:
    """Ready or NotReady, and the pressures of the node."""
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    words = ["NotReady" if conditions.pop("Ready", "True") == "False" else "Ready"]
    return words + [kind for kind, status in conditions.items() if status == "True"]
