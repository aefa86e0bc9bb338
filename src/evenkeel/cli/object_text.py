"""ConfigMaps, Secrets, Services and claims as text, for `get` and `describe`. Only `-o json` and `-o yaml` show the
values of a Secret."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evenkeel.cli.arguments import CLAIMS, CONFIG_MAPS, SECRETS, SERVICES
from evenkeel.cli.client import Client, reported
from evenkeel.cli.listing import Listing, Request, Row
from evenkeel.cli.output import NONE, age_of, pairs, printable

Json = dict[str, Any]
Cell = Callable[[Json], str]


def object_listing(kind: str) -> Listing:
    word = kind.removesuffix("s")
    return Listing(
        kind,
        lambda client, namespace: client.objects(kind, namespace),
        lambda client, namespace, name: client.object(kind, namespace, name),
        lambda one: f"{word}/{one['metadata']['name']}",
        lambda request: _table(kind, request),
    )


def describe_objects(client: Client, kind: str, names: Sequence[str], namespace: str) -> int:
    found, failures = Request(client, namespace, names).found(object_listing(kind))
    more = _LINES[kind](client, namespace)
    for number, one in enumerate(found):
        print("\n\n" if number else "", end="")
        print("\n".join((*_head(one), *more(one))))
    return reported(failures)


# Tables


def _table(kind: str, request: Request) -> tuple[list[str], Row]:
    cells: dict[str, list[tuple[str, Cell]]] = {
        CONFIG_MAPS: [("DATA", _count)],
        SECRETS: [("TYPE", lambda one: str(one.get("type", ""))), ("DATA", _count)],
        SERVICES: [("TYPE", _service_type), ("PORTS", _ports)],
        CLAIMS: [("STATUS", _phase), ("CAPACITY", _capacity), ("ACCESS MODES", _modes)],
    }
    if kind == SERVICES:
        pods = request.client.pods(request.namespace)
        cells[kind].insert(1, ("ENDPOINTS", lambda one: ",".join(_addresses(one, pods)) or NONE))
    columns: list[tuple[str, Cell]] = [
        ("NAME", lambda one: str(one["metadata"]["name"])),
        *cells[kind],
        ("AGE", lambda one: age_of(one["metadata"].get("creationTimestamp"))),
    ]
    return [head for head, _ in columns], lambda one: [cell(one) for _, cell in columns]


def _namespace(one: Json) -> str:
    return str(one["metadata"].get("namespace", "default"))


def _count(one: Json) -> str:
    return str(len(one.get("data", {})) + len(one.get("binaryData", {})))


def _service_type(one: Json) -> str:
    return str(one.get("spec", {}).get("type", "ClusterIP"))


def _ports(one: Json) -> str:
    ports = one.get("spec", {}).get("ports", ())
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _addresses(service: Json, pods: Sequence[Json]) -> Iterator[str]:
    """The addresses that the name of the Service leads to: those of its ready pods."""
    selector = service.get("spec", {}).get("selector", {})
    for pod in pods if selector else ():
        meta, status = pod["metadata"], pod.get("status", {})
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        is_ready = conditions.get("Ready") == "True" or service["spec"].get("publishNotReadyAddresses")
        is_its = _namespace(pod) == _namespace(service) and selector.items() <= meta.get("labels", {}).items()
        if is_its and is_ready and not meta.get("deletionTimestamp") and status.get("podIP"):
            yield status["podIP"]


def _phase(one: Json) -> str:
    return str(one.get("status", {}).get("phase", ""))


def _capacity(one: Json) -> str:
    return str(one.get("status", {}).get("capacity", {}).get("storage", ""))


def _modes(one: Json) -> str:
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX"}
    return ",".join(short.get(mode, mode) for mode in one.get("spec", {}).get("accessModes", ()))


# Descriptions


def _head(one: Json) -> Iterator[str]:
    meta = one["metadata"]
    yield f"Name:         {meta['name']}"
    yield f"Namespace:    {_namespace(one)}"
    yield f"Labels:       {pairs(meta.get('labels', {}))}"
    yield f"Annotations:  {pairs(meta.get('annotations', {}))}"


Lines = Callable[[Json], Iterator[str]]


def _config_map(client: Client, namespace: str) -> Lines:  # noqa: ARG001
    return lambda one: _data(one, is_secret=False)


def _secret(client: Client, namespace: str) -> Lines:  # noqa: ARG001
    return lambda one: _data(one, is_secret=True)


def _data(one: Json, *, is_secret: bool) -> Iterator[str]:
    if is_secret:
        yield f"Type:         {one.get('type', '')}"
    if one.get("immutable"):
        yield "Immutable:    true"
    yield "Data:"
    for key, value in one.get("data", {}).items():
        if is_secret:
            yield f"  {key}:  {_decoded_bytes(value)} bytes"
        else:
            yield f"  {key}:"
            yield from (f"    {printable(line)}" for line in value.splitlines())
    for key, value in one.get("binaryData", {}).items():
        yield f"  {key}:  {_decoded_bytes(value)} bytes"


def _service(client: Client, namespace: str) -> Lines:
    pods = client.pods(namespace)

    def lines(one: Json) -> Iterator[str]:
        yield f"Selector:     {pairs(one.get('spec', {}).get('selector', {}))}"
        yield f"Type:         {_service_type(one)}"
        for port in one.get("spec", {}).get("ports", ()):
            target = port.get("targetPort", port["port"])
            name = f"{port['name']} " if port.get("name") else ""
            yield f"Port:         {name}{port['port']}/{port.get('protocol', 'TCP')}, of the pods {target}"
        yield f"Endpoints:    {', '.join(_addresses(one, pods)) or NONE}"

    return lines


def _claim(client: Client, namespace: str) -> Lines:
    pods = client.pods(namespace)

    def lines(one: Json) -> Iterator[str]:
        name = one["metadata"]["name"]
        users = [
            pod["metadata"]["name"]
            for pod in pods
            for volume in pod["spec"].get("volumes", ())
            if volume.get("persistentVolumeClaim", {}).get("claimName") == name
        ]
        yield f"Status:       {_phase(one)}"
        yield f"Capacity:     {_capacity(one)}"
        yield f"Access Modes: {_modes(one)}"
        yield f"Used By:      {', '.join(users) or NONE}"

    return lines


_LINES: Mapping[str, Callable[[Client, str], Lines]] = {
    CONFIG_MAPS: _config_map,
    SECRETS: _secret,
    SERVICES: _service,
    CLAIMS: _claim,
}


def _decoded_bytes(text: str) -> int:
    """The length of the content of a base64 text."""
    return len(text) // 4 * 3 - text[-2:].count("=")
