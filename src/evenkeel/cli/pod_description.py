"""A pod as `evenkeel describe` shows it: its containers and their states, resources asked for and applied, conditions
and volumes.

It reads the agent's JSON without decoding it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evenkeel.cli.output import NONE, columns, pairs, printable
from evenkeel.cli.pod_text import given_text
from evenkeel.policy.amounts import bytes_text
from evenkeel.quantity import Quantity

Json = dict[str, Any]
Lines = Iterator[str]


def pod_lines(pod: Json) -> Lines:
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
            "Labels": pairs(meta.get("labels", {})),
            "Annotations": pairs(meta.get("annotations", {})),
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
            yield f"    {title + ':':<16}{probe_text(container[field])}"
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
            (f"{name} {kind}", given_text(name, wanted), given_text(name, given))
            for name in dict.fromkeys((*wanted, *given))
        ]
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    first, second = max(widths[0], 14), max(widths[1], len("ASKED"))
    yield f"{indent}{'Resources:':<{first + 2}}  {'ASKED':<{second}}  APPLIED"
    for name, wanted_text, applied_text in rows:
        yield f"{indent}  {name:<{first}}  {wanted_text:<{second}}  {applied_text}"


def probe_text(probe: Json) -> str:
    if "exec" in probe:
        how = "exec " + " ".join(_quoted(word) for word in probe["exec"].get("command", ()))
    elif "httpGet" in probe:
        get = probe["httpGet"]
        where = f"{get.get('host', '')}:{get.get('port')}{get.get('path', '/')}"
        how = f"http-get {get.get('scheme', 'HTTP').lower()}://{where}"
    elif "grpc" in probe:
        how = f"grpc :{probe['grpc'].get('port')} {probe['grpc'].get('service', '')}".rstrip()
    else:
        socket = probe.get("tcpSocket", {})
        how = f"tcp-socket {socket.get('host', '')}:{socket.get('port')}"
    return printable(
        f"{how} delay={probe.get('initialDelaySeconds', 0)}s timeout={probe.get('timeoutSeconds', 1)}s "
        f"period={probe.get('periodSeconds', 10)}s #success={probe.get('successThreshold', 1)} "
        f"#failure={probe.get('failureThreshold', 3)}"
    )


def _conditions(conditions: Iterable[Json]) -> Lines:
    if rows := [(c["type"], c["status"], c.get("reason", ""), c.get("message", "")) for c in conditions]:
        yield "Conditions:"
        for line in columns([("Type", "Status", "Reason", "Message"), *rows]):
            yield printable(f"  {line}")


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


def environment_lines(container: Json) -> Iterator[str]:
    """Where the variables of a container come from, as kubectl shows it. No value of an object is shown."""
    if sources := container.get("envFrom", ()):
        yield "Environment Variables from:"
        for source in sources:
            kind = "Secret" if "secretRef" in source else "ConfigMap"
            of = source.get("secretRef") or source.get("configMapRef") or {}
            prefix = f" with prefix '{source['prefix']}'" if source.get("prefix") else ""
            yield f"  {of.get('name', '')}  {kind}{prefix}{_optional(of)}"
    if variables := container.get("env", ()):
        yield "Environment:"
        for variable in variables:
            yield f"  {variable['name']}: {_variable(variable)}"


def _variable(variable: Json) -> str:
    source = variable.get("valueFrom") or {}
    for field, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if of := source.get(field):
            return f"<set to the key '{of.get('key', '')}' of {kind} '{of.get('name', '')}'>{_optional(of)}"
    if of := source.get("fieldRef"):
        return f"({of.get('apiVersion') or 'v1'}:{of.get('fieldPath', '')})"
    if of := source.get("resourceFieldRef"):
        return f"({' of '.join(filter(None, (of.get('resource', ''), of.get('containerName', ''))))})"
    return str(variable.get("value", ""))


def _optional(source: Json) -> str:
    return "  Optional: true" if source.get("optional") else "  Optional: false"


def _fields(fields: Mapping[str, str], indent: str = "") -> Lines:
    for name, value in fields.items():
        if value:
            yield f"{indent}{name + ':':<16}{printable(value)}"


def _quoted(word: str) -> str:
    """A word of a command, quoted for a shell."""
    is_plain = word and all(letter.isalnum() or letter in "-_./=:,+@%" for letter in word)
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"
