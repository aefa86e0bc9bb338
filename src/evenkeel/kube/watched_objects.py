"""Objects of the cluster that the node watches as a whole: Services and RuntimeClasses.

Every container in a cluster has variables with the addresses of Services (docker-links style). A RuntimeClass names a
handler of the container runtime.
"""

import re
from collections.abc import Callable

from evenkeel.api.container import EnvVar
from evenkeel.api.pod import Pod
from evenkeel.kube.api_client import Json
from evenkeel.kube.pod_object import NotHonoured
from evenkeel.kube.watch import DELETED

_MASTER = ("default", "kubernetes")  # its variables are in every pod
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class Services:
    """A handler of the watch of services."""

    def __init__(self) -> None:
        self._services: dict[tuple[str, str], Json] = {}

    def listed(self, objects: list[Json]) -> None:
        self._services = {}
        for one in objects:
            self.changed("", one)

    def changed(self, type_: str, one: Json) -> None:
        metadata = one["metadata"]
        key = (str(metadata.get("namespace")), str(metadata.get("name")))
        spec = one.get("spec") or {}
        address = spec.get("clusterIP")
        if type_ == DELETED or not address or address == "None" or not spec.get("ports"):
            self._services.pop(key, None)
        else:
            self._services[key] = spec

    def env(self, namespace: str, *, with_links: bool) -> tuple[EnvVar, ...]:
        """The variables for a pod of the namespace. Without links only those of the API server."""
        found = [
            (name, spec)
            for (place, name), spec in sorted(self._services.items())
            if (place, name) == _MASTER or (with_links and place == namespace)
        ]
        return tuple(one for name, spec in found if _NAME.fullmatch(name) for one in _variables(name, spec))


def _variables(name: str, spec: Json) -> list[EnvVar]:
    prefix = name.upper().replace("-", "_")
    address, ports = str(spec["clusterIP"]), spec["ports"]
    host = f"[{address}]" if ":" in address else address
    first = ports[0]
    found = [(f"{prefix}_SERVICE_HOST", address), (f"{prefix}_SERVICE_PORT", str(first["port"]))]
    for port in ports:
        if port.get("name"):
            suffix = str(port["name"]).upper().replace("-", "_")
            found.append((f"{prefix}_SERVICE_PORT_{suffix}", str(port["port"])))
    for index, port in enumerate(ports):
        protocol = str(port.get("protocol") or "TCP")
        url = f"{protocol.lower()}://{host}:{port['port']}"
        here = f"{prefix}_PORT_{port['port']}_{protocol}"
        if index == 0:
            found.append((f"{prefix}_PORT", url))
        found += [
            (here, url),
            (f"{here}_PROTO", protocol.lower()),
            (f"{here}_PORT", str(port["port"])),
            (f"{here}_ADDR", address),
        ]
    return [EnvVar(name, value) for name, value in found]


class RuntimeClasses:
    """A handler of the watch of RuntimeClasses. `on_change` is called when they have changed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._handlers: dict[str, str] = {}
        self._on_change = on_change

    def listed(self, objects: list[Json]) -> None:
        self._handlers = {_name(one): _handler(one) for one in objects}
        self._on_change()

    def changed(self, type_: str, one: Json) -> None:
        if type_ == DELETED:
            self._handlers.pop(_name(one), None)
        else:
            self._handlers[_name(one)] = _handler(one)
        self._on_change()

    def with_handler(self, pod: Pod) -> Pod | NotHonoured:
        """The pod with the name of the handler instead of its class, because the agent knows handlers only."""
        name = pod.spec.runtime_class_name
        if not name:
            return pod
        if name not in self._handlers:
            return NotHonoured(f'spec.runtimeClassName: the cluster has no RuntimeClass "{name}"')
        return pod._replace(spec=pod.spec._replace(runtime_class_name=self._handlers[name]))


def _name(one: Json) -> str:
    return str(one["metadata"]["name"])


def _handler(one: Json) -> str:
    return str(one.get("handler") or "")
