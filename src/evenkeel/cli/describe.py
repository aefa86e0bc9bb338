"""`evenkeel describe`: everything about a pod, a ConfigMap, a Secret or the node, as text."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
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
from evenkeel.cli.output import NONE, age, printable
from evenkeel.cli.pod_text import amount_text, environment_lines, typed
from evenkeel.errors import EvenkeelError
from evenkeel.policy.amounts import bytes_text, resource_text
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
Lines = Iterator[str]


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
        print("\n".join(_node(client.get("/node"), client.pods(), _events(client, "", most=20))))
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
        print("\n".join(_pod(pod, _events(client, f"{args.namespace}/{name}"))))
    return int(failures > 0)


def _events(client: Client, pod: str, most: int = 50) -> list[Json]:
    parameters = {"most": str(most), **({"pod": pod} if pod else {})}
    return list(client.lines("/events", **parameters))


def _pod(pod: Json, events: list[Json]) -> Lines:
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    yield from _fields(
        {
            "Name": meta["name"],
            "Namespace": meta.get("namespace", "default"),
            "Controlled By": ", ".join(
                f"{owner['kind']}/{owner['name']}" for owner in meta.get("ownerReferences", ())
            ),
            "Priority": str(spec.get("priority", 0)),
            "Start Time": status.get("startTime") or NONE,
            "Labels": _pairs(meta.get("labels", {})),
            "Annotations": _pairs(meta.get("annotations", {})),
            "Deletion Time": meta.get("deletionTimestamp", ""),
            "Status": status.get("phase", "Unknown"),
            "Reason": status.get("reason", ""),
            "Message": status.get("message", ""),
            "IP": status.get("podIP", ""),
            "QoS Class": status.get("qosClass", ""),
            "Restart Policy": spec.get("restartPolicy", ""),
            "Grace Period": f"{spec['terminationGracePeriodSeconds']}s"
            if spec.get("terminationGracePeriodSeconds")
            else "",
            "Deadline": f"{spec['activeDeadlineSeconds']}s" if spec.get("activeDeadlineSeconds") else "",
            "UID": meta.get("uid", ""),
        }
    )
    if "resources" in spec or "resources" in status:
        yield from _resources(spec.get("resources", {}), status.get("resources"), "")
    for title, containers, statuses in (
        ("Init Containers", spec.get("initContainers", ()), status.get("initContainerStatuses", ())),
        ("Containers", spec.get("containers", ()), status.get("containerStatuses", ())),
        (
            "Ephemeral Containers",
            spec.get("ephemeralContainers", ()),
            status.get("ephemeralContainerStatuses", ()),
        ),
    ):
        if containers:
            yield f"{title}:"
            by_name = {container["name"]: container for container in statuses}
            for container in containers:
                yield from _container(container, by_name.get(container["name"], {}))
    yield from _conditions(status.get("conditions", ()))
    yield from _volumes(spec.get("volumes", ()))
    yield from _event_lines(events)


def _container(container: Json, status: Json) -> Lines:
    yield f"  {printable(container['name'])}:"
    command = [*container.get("command", ()), *container.get("args", ())]
    yield from _fields(
        {
            "Image": container.get("image", ""),
            "Command": " ".join(_quoted(word) for word in command),
            "Working Dir": container.get("workingDir", ""),
            "Ports": ", ".join(
                f"{p['containerPort']}/{p.get('protocol', 'TCP')}" for p in container.get("ports", ())
            ),
        },
        "    ",
    )
    yield from _state("State", status.get("state", {}))
    if status.get("lastState"):
        yield from _state("Last State", status["lastState"])
    yield from _fields(
        {
            "Ready": str(bool(status.get("ready"))),
            "Restart Count": str(status.get("restartCount", 0)),
            "QoS": ", ".join(
                f"{which} {status[field]}"
                for which, field in (("memory", "memoryQosClass"), ("cpu", "cpuQosClass"))
                if status.get(field)
            ),
        },
        "    ",
    )
    yield from _resources(container.get("resources", {}), status.get("resources"), "    ")
    for title, field in (
        ("Liveness", "livenessProbe"),
        ("Readiness", "readinessProbe"),
        ("Startup", "startupProbe"),
    ):
        if field in container:
            yield f"    {title + ':':<16}{_probe(container[field])}"
    yield from (printable(f"    {line}") for line in environment_lines(container))
    if mounts := container.get("volumeMounts", ()):
        yield "    Mounts:"
        for mount in mounts:
            way = "ro" if mount.get("readOnly") else "rw"
            yield printable(f"      {mount['mountPath']} from {mount['name']} ({way})")


def _state(title: str, state: Json) -> Lines:
    for kind, of_kind in state.items():
        yield f"    {title + ':':<16}{kind.capitalize()}"
        yield from _fields(
            {
                "Reason": of_kind.get("reason", ""),
                "Message": of_kind.get("message", ""),
                "Exit Code": str(of_kind.get("exitCode", 0)) if kind == "terminated" else "",
                "Signal": str(of_kind.get("signal") or ""),
                "Started": of_kind.get("startedAt", ""),
                "Finished": of_kind.get("finishedAt", ""),
            },
            "      ",
        )
        return
    yield f"    {title + ':':<16}Waiting"


def _resources(asked: Json, applied: Json | None, indent: str) -> Lines:
    """The amounts asked for, beside the applied ones (E17)."""
    rows = []
    for kind, field in (("request", "requests"), ("limit", "limits")):
        wanted, given = asked.get(field, {}), (applied or {}).get(field, {})
        rows += [
            (f"{name} {kind}", _text(name, wanted), _text(name, given))
            for name in dict.fromkeys((*wanted, *given))
        ]
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    first, second = max(widths[0], 14), max(widths[1], len("ASKED"))
    yield f"{indent}{'Resources:':<{first + 2}}  {'ASKED':<{second}}  APPLIED"
    for name, wanted_text, applied_text in rows:
        yield f"{indent}  {name:<{first}}  {wanted_text:<{second}}  {applied_text}"


def _probe(probe: Json) -> str:
    if "exec" in probe:
        how = "exec " + " ".join(_quoted(word) for word in probe["exec"].get("command", ()))
    elif "httpGet" in probe:
        get = probe["httpGet"]
        where = f"{get.get('host', '')}:{get.get('port')}{get.get('path', '/')}"
        how = f"http-get {get.get('scheme', 'HTTP').lower()}://{where}"
    else:
        how = f"tcp-socket :{probe.get('tcpSocket', {}).get('port')}"
    return printable(
        f"{how} delay={probe.get('initialDelaySeconds', 0)}s timeout={probe.get('timeoutSeconds', 1)}s "
        f"period={probe.get('periodSeconds', 10)}s #success={probe.get('successThreshold', 1)} "
        f"#failure={probe.get('failureThreshold', 3)}"
    )


def _conditions(conditions: Iterable[Json]) -> Lines:
    if rows := [(c["type"], c["status"], c.get("reason", ""), c.get("message", "")) for c in conditions]:
        yield "Conditions:"
        yield from _columns([("Type", "Status", "Reason", "Message"), *rows])


def _volumes(volumes: Iterable[Json]) -> Lines:
    if listed := list(volumes):
        yield "Volumes:"
    for volume in listed:
        yield printable(f"  {volume['name']}: {_source(volume)}")


def _source(volume: Json) -> str:
    if "hostPath" in volume:
        return f"hostPath {volume['hostPath'].get('path', '')}"
    if "projected" in volume:
        return f"projected {', '.join(map(_data_source, volume['projected'].get('sources', ())))}"
    if not {"configMap", "secret", "downwardAPI"}.isdisjoint(volume):
        return _data_source(volume)
    if "persistentVolumeClaim" in volume:
        return f"persistentVolumeClaim {volume['persistentVolumeClaim'].get('claimName', '')}"
    if "ephemeral" in volume:
        return "ephemeral, on disk"
    source = volume.get("emptyDir", {})
    bound = source.get("sizeLimit")
    size = f", at most {bytes_text(Quantity(bound).value)}" if bound is not None else ""
    return f"emptyDir {'in memory' if source.get('medium') == 'Memory' else 'on disk'}{size}"


def _data_source(source: Json) -> str:
    """A configMap, secret or downwardAPI by its name; of a Secret that is all there is to see."""
    for kind in ("configMap", "secret"):
        if kind in source:
            name = source[kind].get("name") or source[kind].get("secretName", "")
            return f"{kind} {name}{' (optional)' if source[kind].get('optional') else ''}"
    return "downwardAPI"


def _event_lines(events: list[Json]) -> Lines:
    if not events:
        yield f"Events:         {NONE}"
        return
    yield "Events:"
    rows = [
        (event.get("type", ""), event.get("reason", ""), age(event.get("at", 0.0)), message_of(event))
        for event in events
    ]
    yield from _columns([("Type", "Reason", "Age", "Message"), *rows])


def _node(node: Json, pods: list[Json], events: list[Json]) -> Lines:
    yield from node_lines(node, pods)
    yield from _event_lines([event for event in events if not event.get("pod")])


def _fields(fields: Mapping[str, str], indent: str = "") -> Lines:
    for name, value in fields.items():
        if value:
            yield f"{indent}{name + ':':<16}{printable(value)}"


def _columns(rows: list[tuple[str, ...]]) -> Lines:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield printable("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or NONE


def _quoted(word: str) -> str:
    """A word of a command, quoted for a shell."""
    is_plain = word and all(letter.isalnum() or letter in "-_./=:,+@%" for letter in word)
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"


_ENDED = ("Succeeded", "Failed")


def node_lines(node: Json, pods: list[Json]) -> Iterator[str]:
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
        rows.append((name, _text(name, capacity), _text(name, allocatable), promised, limited))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"Pods:           {len(pods)} ({len(pods) - len(held)} ended)"
    for pod in held:
        amounts = pod_requests(pod)
        asks = ", ".join(
            f"{name} {amount_text(name, amounts.get(name))}" for name in (CPU, MEMORY) if amounts.get(name)
        )
        yield printable(f"  {pod.key}: {pod.status.qos_class or 'BestEffort'}, {asks or 'requests nothing'}")


def _text(name: str, amounts: Json) -> str:
    return resource_text(name, Quantity(amounts[name])) if name in amounts else "-"


def _share(name: str, amounts: list[Quantity], whole: Quantity) -> str:
    """The sum and its share of the whole: `550m (6%)`."""
    total = sum(amount.milli for amount in amounts)
    percent = f" ({100 * total // whole.milli}%)" if whole.milli else ""
    return f"{amount_text(name, Quantity.of_milli(total)) if total else '0'}{percent}"
