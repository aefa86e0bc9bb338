"""Workloads as tables and as text, with kubectl's columns. It reads the agent's JSON without decoding it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evenkeel.cli.arguments import full_name, is_owned
from evenkeel.cli.client import Client, reported
from evenkeel.cli.events import message_of
from evenkeel.cli.listing import Listing, Request, Row
from evenkeel.cli.output import NONE, age, age_of, columns, pairs, printable, seconds_of
from evenkeel.cli.pod_text import summary

Json = dict[str, Any]
Columns = tuple[tuple[str, Callable[[Json], str]], ...]
_EVENTS = 1000  # this many of the latest are searched for those of a workload


def workload_listing(kind: str) -> Listing:
    return Listing(
        kind,
        lambda client, namespace: client.workloads(kind, namespace),
        lambda client, namespace, name: client.workload(kind, namespace, name),
        lambda one: full_name(one["kind"], one["metadata"]["name"]),
        lambda request: _table(kind, request),
    )


def _table(kind: str, request: Request) -> tuple[list[str], Row]:
    shown = (*_COLUMNS[kind], *(_WIDE if request.is_wide else ()))
    return [head for head, _ in shown], lambda one: [cell(one) for _, cell in shown]


# Cells


def _status(field: str) -> Callable[[Json], str]:
    return lambda one: str(one.get("status", {}).get(field, 0))


def _name(one: Json) -> str:
    return str(one["metadata"]["name"])


def _age(one: Json) -> str:
    return age_of(one["metadata"].get("creationTimestamp"))


def _wanted(one: Json) -> int:
    return int(one["spec"].get("replicas", 1))


def _ready(one: Json) -> str:
    return f"{one.get('status', {}).get('readyReplicas', 0)}/{_wanted(one)}"


def _template(one: Json) -> Json:
    spec = one["spec"]
    inner: Json = spec.get("jobTemplate", {}).get("spec", spec).get("template", {}).get("spec", {})
    return inner


def _job_status(one: Json) -> str:
    for condition in one.get("status", {}).get("conditions", ()):
        if condition["type"] in ("Complete", "Failed", "Suspended") and condition["status"] == "True":
            return str(condition["type"])
    return "Running"


def _completions(one: Json) -> str:
    spec, succeeded = one["spec"], one.get("status", {}).get("succeeded", 0)
    if "completions" in spec:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism", 1)
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _duration(one: Json) -> str:
    status = one.get("status", {})
    if not status.get("startTime"):
        return ""
    end = status.get("completionTime")
    return age_of(status["startTime"], seconds_of(end) if end else None)


def _active(one: Json) -> str:
    return str(len(one.get("status", {}).get("active", ())))


def _last_schedule(one: Json) -> str:
    last = one.get("status", {}).get("lastScheduleTime")
    return age_of(last) if last else NONE


def _selector(one: Json) -> str:
    selector = one["spec"].get("selector", {})
    labels = selector.get("matchLabels", selector)
    return ",".join(f"{key}={value}" for key, value in labels.items() if isinstance(value, str)) or NONE


_NAME, _AGE = ("NAME", _name), ("AGE", _age)
_REPLICA_SET: Columns = (
    _NAME,
    ("DESIRED", lambda one: str(_wanted(one))),
    ("CURRENT", _status("replicas")),
    ("READY", _status("readyReplicas")),
    _AGE,
)
_COLUMNS: Mapping[str, Columns] = {
    "deployments": (
        _NAME,
        ("READY", _ready),
        ("UP-TO-DATE", _status("updatedReplicas")),
        ("AVAILABLE", _status("availableReplicas")),
        _AGE,
    ),
    "replicasets": _REPLICA_SET,
    "replicationcontrollers": _REPLICA_SET,
    "statefulsets": (_NAME, ("READY", _ready), _AGE),
    "daemonsets": (
        _NAME,
        ("DESIRED", _status("desiredNumberScheduled")),
        ("CURRENT", _status("currentNumberScheduled")),
        ("READY", _status("numberReady")),
        ("UP-TO-DATE", _status("updatedNumberScheduled")),
        ("AVAILABLE", _status("numberAvailable")),
        _AGE,
    ),
    "jobs": (_NAME, ("STATUS", _job_status), ("COMPLETIONS", _completions), ("DURATION", _duration), _AGE),
    "cronjobs": (
        _NAME,
        ("SCHEDULE", lambda one: str(one["spec"].get("schedule", ""))),
        ("TIMEZONE", lambda one: str(one["spec"].get("timeZone", NONE))),
        ("SUSPEND", lambda one: str(one["spec"].get("suspend", False))),
        ("ACTIVE", _active),
        ("LAST SCHEDULE", _last_schedule),
        _AGE,
    ),
}
_WIDE: Columns = (
    ("CONTAINERS", lambda one: ",".join(each["name"] for each in _template(one).get("containers", ()))),
    ("IMAGES", lambda one: ",".join(each.get("image", "") for each in _template(one).get("containers", ()))),
    ("SELECTOR", _selector),
)


# Describe


def describe_workloads(client: Client, kind: str, names: Sequence[str], namespace: str) -> int:
    found, failures = Request(client, namespace, names).found(workload_listing(kind))
    events = list(client.lines("/events", most=str(_EVENTS))) if found else []
    pods = client.pods(namespace) if found else []
    for number, one in enumerate(found):
        print("\n\n" if number else "", end="")
        print("\n".join(map(printable, _described(one, pods, events))))
    return reported(failures)


def _described(one: Json, pods: list[Json], events: list[Json]) -> Iterator[str]:
    kind, meta, spec, status = one["kind"], one["metadata"], one["spec"], one.get("status", {})
    fields = {
        "Name": meta["name"],
        "Namespace": meta.get("namespace", ""),
        "Created": meta.get("creationTimestamp", ""),
        "Labels": pairs(meta.get("labels", {})),
        "Annotations": pairs(meta.get("annotations", {})),
        "Selector": _selector(one) if "selector" in spec else "",
        **{_title(name): _text(value) for name, value in spec.items() if not isinstance(value, dict | list)},
        "Strategy": spec.get("strategy", spec.get("updateStrategy", {})).get("type", ""),
        "Containers": ", ".join(
            f"{each['name']} ({each.get('image', '')})" for each in _template(one).get("containers", ())
        ),
    }
    for name, value in fields.items():
        if value:
            yield f"{name + ':':<26}{value}"
    yield "Status:"
    for name, value in status.items():
        if not isinstance(value, dict | list):
            yield f"  {_title(name) + ':':<24}{_text(value)}"
    for each in status.get("active", ()) if kind == "CronJob" else ():
        yield f"  Active Job:             {each['name']}"
    if conditions := status.get("conditions"):
        yield "Conditions:"
        rows = [
            (each["type"], each["status"], each.get("reason", ""), each.get("message", ""))
            for each in conditions
        ]
        yield from _indented(("Type", "Status", "Reason", "Message"), rows)
    own = [pod for pod in pods if is_owned(pod, kind, meta["name"])]
    if own:
        yield "Pods:"
        yield from _indented(
            ("Name", "Status"), [(pod["metadata"]["name"], summary(pod).status) for pod in own]
        )
    words = f"{kind} {meta.get('namespace', '')}/{meta['name']}: "
    told = [event for event in events if event.get("message", "").startswith(words)]
    yield "Events:" if told else f"Events:                   {NONE}"
    if told:
        yield from _indented(
            ("Type", "Reason", "Age", "Message"), [_event_row(event, words) for event in told]
        )


def _event_row(event: Json, words: str) -> tuple[str, str, str, str]:
    text = message_of({**event, "message": event["message"].removeprefix(words)})
    return event.get("type", ""), event.get("reason", ""), age(event.get("at", 0.0)), text


def _indented(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in columns([heads, *rows]))


def _title(name: str) -> str:
    """`readyReplicas` as `Ready Replicas`."""
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name).strip().capitalize()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
