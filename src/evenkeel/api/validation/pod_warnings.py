"""Warnings about valid pods, as the API server gives them. The pod runs all the same."""

from collections.abc import Iterator, Sequence

from evenkeel.api.container import ContainerPort, EnvVar
from evenkeel.api.node_affinity import ARCH, HOSTNAME, OWN_LABELS, SYSTEM
from evenkeel.api.pod import Pod, PodSpec
from evenkeel.api.problems import Problems, shown
from evenkeel.api.resources import EPHEMERAL_STORAGE, MEMORY, ResourceList
from evenkeel.api.validation.annotation_rules import annotation_warnings
from evenkeel.api.validation.name_rules import dns_label
from evenkeel.api.validation.pod_rules import address_of, full_name
from evenkeel.api.volume_types import Volume
from evenkeel.errors import Problem
from evenkeel.named_tuples import NamedTuple

WARNING = "Warning"
_REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def warnings(pod: Pod) -> Problems:
    """The warnings about a valid pod."""
    spec = pod.spec
    if dns_label(full_name(pod.metadata)):
        yield Problem("metadata.name", "it becomes the pod's hostname: better have no . in it", WARNING)
    yield from annotation_warnings(pod, WARNING)
    yield from _fractions(spec.overhead, "spec.overhead")
    for path, container in spec.container_fields:
        yield from _fractions(container.resources.limits, f"{path}.resources.limits")
        yield from _fractions(container.resources.requests, f"{path}.resources.requests")
        yield from _hidden(container.env, f"{path}.env")
    yield from _port_warnings(spec)
    yield from _label_warnings(spec)
    yield from _address_warnings(spec)
    yield from _repeated("name", [secret.name for secret in spec.image_pull_secrets], "spec.imagePullSecrets")
    for index, secret in enumerate(spec.image_pull_secrets):
        if not secret.name:
            yield Problem(f"spec.imagePullSecrets[{index}].name", "is empty, and names no Secret", WARNING)
    for index, volume in enumerate(spec.volumes):
        yield from _same_files(volume, f"spec.volumes[{index}]")
        if volume.ephemeral is not None:
            field = f"spec.volumes[{index}].ephemeral.volumeClaimTemplate.spec.resources.requests.storage"
            yield Problem(
                field, "is not enforced: the volume is a directory, and counts as disk of the pod", WARNING
            )


def _label_warnings(spec: PodSpec) -> Problems:
    """A node alone has few labels, and decides by these only."""
    wanted = [(f"spec.nodeSelector[{key}]", key) for key in spec.node_selector]
    required = None if spec.affinity is None else spec.affinity.required
    for number, term in enumerate(() if required is None else required.node_selector_terms):
        path = f"{_REQUIRED}.nodeSelectorTerms[{number}].matchExpressions"
        for index, one in enumerate(term.match_expressions):
            if one.operator not in ("NotIn", "DoesNotExist"):
                wanted.append((f"{path}[{index}].key", one.key))
    for field, key in wanted:
        if key not in OWN_LABELS:
            yield Problem(
                field,
                f"the label {shown(key)} is passed over: without a cluster the labels of this node are "
                f"{ARCH}, {SYSTEM} and {HOSTNAME}",
                WARNING,
            )


def _address_warnings(spec: PodSpec) -> Problems:
    yield from _repeated("ip", [alias.ip for alias in spec.host_aliases], "spec.hostAliases")
    written = [
        (f"spec.dnsConfig.nameservers[{index}]", server)
        for index, server in enumerate(spec.dns_config.nameservers if spec.dns_config is not None else ())
    ]
    written += [(f"spec.hostAliases[{index}].ip", alias.ip) for index, alias in enumerate(spec.host_aliases)]
    for field, text in written:
        address = address_of(text)
        if address is not None and str(address) != text:
            yield Problem(field, f"{shown(text)} is better written as {address}", WARNING)


def _repeated(name: str, values: Sequence[str], path: str) -> Problems:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield Problem(f"{path}[{index}].{name}", f"{shown(value)} stands there twice", WARNING)
        seen.add(value)


def _same_files(volume: Volume, path: str) -> Problems:
    """A volume whose files have one path, or one of whose files would be a directory for another."""
    taken: list[str] = []
    for file in filter(None, (path.rstrip("/") for path in _files(volume))):
        for other in taken:
            if file == other or file.startswith(f"{other}/") or other.startswith(f"{file}/"):
                yield Problem(path, f"{shown(file)} and {shown(other)} are in each other's way", WARNING)
        taken.append(file)


def _files(volume: Volume) -> Iterator[str]:
    for source in (volume.config_map, volume.secret, volume.downward_api):
        if source is not None:
            yield from (item.path for item in source.items)
    for projection in volume.projected.sources if volume.projected is not None else ():
        parts = (projection.config_map, projection.secret, projection.downward_api)
        yield from next(([item.path for item in part.items] for part in parts if part and part.items), ())


def _fractions(resources: ResourceList, path: str) -> Problems:
    for name in (MEMORY, EPHEMERAL_STORAGE):
        amount = resources.get(name)
        if amount is not None and amount.int64_milli % 1000:
            yield Problem(
                f"{path}[{name}]",
                f"{amount} is not a whole number of bytes: m stands for thousandths",
                WARNING,
            )


class _Port(NamedTuple):
    field: str
    port: ContainerPort


def _port_warnings(spec: PodSpec) -> Problems:
    """All containers of a pod share one address, so two of them cannot use the same port."""
    ports = [
        _Port(f"{path}.ports[{place}]", port)
        for path, container in spec.container_fields
        for place, port in enumerate(container.ports)
    ]
    named: dict[str, str] = {}
    for place, (field, port) in enumerate(ports):
        if port.host_ip and not port.host_port:
            yield Problem(field, "has a hostIP and no hostPort: it is not opened on the host", WARNING)
        for other in ports[:place]:
            if (other.port.container_port, other.port.protocol) == (port.container_port, port.protocol):
                yield from _shared_port(field, port, other)
        if port.name in named:
            yield Problem(field, f"is called {port.name} as {named[port.name]} is, which wins", WARNING)
        elif port.name:
            named[port.name] = field


def _shared_port(field: str, port: ContainerPort, other: _Port) -> Problems:
    host, of_other = (port.host_ip, port.host_port), (other.port.host_ip, other.port.host_port)
    if host == of_other:
        yield Problem(field, f"repeats {other.field}", WARNING)
    elif not (port.host_port and other.port.host_port):
        yield Problem(field, f"overlaps {other.field}", WARNING)
    elif port.host_port == other.port.host_port and bool(port.host_ip) != bool(other.port.host_ip):
        yield Problem(
            field, f"may receive the traffic of {other.field}: give both a hostIP, or none", WARNING
        )


def _hidden(variables: tuple[EnvVar, ...], path: str) -> Problems:
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        reference = f"$({variable.name})"
        if variable.name in seen and (
            variable.value_from is not None or variable.value == reference or reference not in variable.value
        ):
            yield Problem(f"{path}[{index}]", f"hides an earlier value of {shown(variable.name)}", WARNING)
        seen.add(variable.name)
