"""Rules for Services and PersistentVolumeClaims, as in Kubernetes. Also refuses what one node cannot do."""

from evenkeel.api.claims import PersistentVolumeClaim
from evenkeel.api.problems import Problems, invalid, not_supported, required, shown, unusable
from evenkeel.api.services import EXTERNAL_NAME, HEADLESS, TYPES, Service, ServicePort
from evenkeel.api.validation.name_rules import (
    dns_label,
    dns_subdomain,
    label_value,
    port_name,
    qualified_name,
)

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def service_problems(service: Service) -> Problems:
    """Every problem of the Service; none if it is valid. Its name is checked with those of other objects."""
    spec = service.spec
    if not dns_subdomain(service.metadata.name) and (wrong := dns_label(service.metadata.name)):
        yield invalid("metadata.name", f"{shown(service.metadata.name)} {wrong}")
    if spec.type and spec.type not in TYPES:
        yield not_supported("spec.type", spec.type, TYPES)
    if spec.type == EXTERNAL_NAME:
        yield unusable(
            "spec.type",
            f"ExternalName is not supported here: no one answers for {shown(spec.external_name)}; write that name "
            "where the pods have the name of the Service, or hostAliases with its address",
        )
    for field, address in (
        ("spec.clusterIP", spec.cluster_ip),
        *((f"spec.clusterIPs[{index}]", one) for index, one in enumerate(spec.cluster_ips)),
    ):
        if address not in ("", HEADLESS) and not _is_address(address):
            yield invalid(field, f"{shown(address)} must be {HEADLESS}, an IP address or left out")
    for key, value in spec.selector.items():
        if wrong := qualified_name(key):
            yield invalid("spec.selector", f"{shown(key)} {wrong}")
        if wrong := label_value(value):
            yield invalid("spec.selector", f"{shown(value)} of {shown(key)} {wrong}")
    if not spec.ports and not service.is_headless and spec.type != EXTERNAL_NAME:
        yield required("spec.ports", "a Service needs a port, unless clusterIP is None")
    for index, port in enumerate(spec.ports):
        yield from _port(port, f"spec.ports[{index}]", is_alone=len(spec.ports) == 1)


def _port(port: ServicePort, path: str, *, is_alone: bool) -> Problems:
    if not port.name and not is_alone:
        yield required(f"{path}.name", "each of several ports needs a name")
    elif port.name and (wrong := dns_label(port.name)):
        yield invalid(f"{path}.name", f"{shown(port.name)} {wrong}")
    if not 1 <= port.port <= 65535:
        yield invalid(f"{path}.port", f"must be a number from 1 to 65535, not {port.port}")
    if port.protocol and port.protocol not in _PROTOCOLS:
        yield not_supported(f"{path}.protocol", port.protocol, _PROTOCOLS)
    if not 0 <= port.node_port <= 65535:  # 0 stands for "not set"
        yield invalid(f"{path}.nodePort", f"must be a number from 1 to 65535, not {port.node_port}")
    target = port.target_port
    if isinstance(target, int) and not 0 <= target <= 65535:  # 0 stands for "not set"
        yield invalid(f"{path}.targetPort", f"must be a number from 1 to 65535, not {target}")
    elif isinstance(target, str) and target and (wrong := port_name(target)):
        yield invalid(f"{path}.targetPort", f"{shown(target)} {wrong}")


def _is_address(text: str) -> bool:
    import ipaddress  # most manifests have no address

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def claim_problems(claim: PersistentVolumeClaim) -> Problems:
    """Every problem of the claim; none if it is valid. Its name is checked with those of other objects."""
    spec = claim.spec
    if not spec.access_modes:
        yield required("spec.accessModes", "a claim needs at least one, such as ReadWriteOnce")
    for index, mode in enumerate(spec.access_modes):
        if mode not in _ACCESS_MODES:
            yield not_supported(f"spec.accessModes[{index}]", mode, _ACCESS_MODES)
    if "ReadWriteOncePod" in spec.access_modes:
        yield unusable(
            "spec.accessModes",
            "ReadWriteOncePod is not supported here: nothing keeps a second pod from it; write ReadWriteOnce",
        )
    if claim.size is None:
        yield required("spec.resources.requests.storage", "a claim needs a size, such as 1Gi")
    elif claim.size.sign <= 0:
        yield invalid("spec.resources.requests.storage", f"must be more than 0, not {claim.size}")
    if spec.volume_mode not in ("", "Filesystem"):
        yield unusable(
            "spec.volumeMode",
            f"{spec.volume_mode} is not supported here: a claim is a directory; leave it out",
        )
    if spec.volume_name or spec.selector:
        yield unusable(
            "spec.volumeName" if spec.volume_name else "spec.selector",
            "there are no PersistentVolumes here, a claim gets a directory of its own: leave it out, or write hostPath "
            "in the pod for a directory of this machine",
        )
    if spec.data_source or spec.data_source_ref:
        yield unusable(
            "spec.dataSource" if spec.data_source else "spec.dataSourceRef",
            "a claim begins empty here: leave it out, and copy the files with evenkeel cp or an init container",
        )
