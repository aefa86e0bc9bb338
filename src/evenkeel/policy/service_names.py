"""The names under which pods find each other: those of Services, and of pods of headless Services.

The name of a Service leads to the addresses of its ready pods on this node. In its own namespace it is known by its
short name too, as with a cluster's DNS.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from evenkeel.api.pod import HostAlias, Pod
from evenkeel.api.services import Service
from evenkeel.named_tuples import NamedTuple

_DOMAIN = "svc.cluster.local"
_WITHOUT_NAMES = ("Default", "None")  # of dnsPolicy: the pod uses no DNS of the cluster


class Entry(NamedTuple):
    """An address with a name, `web` or `db-0.web`, in a namespace."""

    namespace: str
    name: str
    address: str


def wants_names(pod: Pod) -> bool:
    """Whether the pod asks for names of Services. As in kubelet, one that asks for the host's network does so only with
    dnsPolicy ClusterFirstWithHostNet."""
    policy = pod.spec.dns_policy
    return policy not in _WITHOUT_NAMES and not (
        pod.spec.host_network and policy != "ClusterFirstWithHostNet"
    )


# Services by namespace and one label that they select: a pod is compared with few of many Services.
ByLabel = Mapping[tuple[str, str, str], Sequence[Service]]


def by_label(services: Iterable[Service]) -> ByLabel:
    found: dict[tuple[str, str, str], list[Service]] = {}
    for service in services:
        for key, value in tuple(service.spec.selector.items())[:1]:
            found.setdefault((service.metadata.namespace, key, value), []).append(service)
    return found


def entries_of(pod: Pod, services: ByLabel) -> tuple[Entry, ...]:
    """The names that lead to the pod now. It has its status."""
    if not pod.status.pod_ip or pod.metadata.deletion_timestamp or pod.status.phase != "Running":
        return ()
    is_ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    namespace, labels = pod.metadata.namespace, pod.metadata.labels
    return tuple(
        entry
        for label in labels.items()
        for service in services.get((namespace, *label), ())
        if service.selects(namespace, labels) and (is_ready or service.spec.publish_not_ready_addresses)
        for entry in _of_pod(service, pod)
    )


def _of_pod(service: Service, pod: Pod) -> Iterator[Entry]:
    namespace, name = service.metadata.namespace, service.metadata.name
    for address in pod.status.pod_ips:
        yield Entry(namespace, name, address.ip)
        if service.is_headless and pod.spec.subdomain == name and pod.spec.hostname:
            yield Entry(namespace, f"{pod.spec.hostname}.{name}", address.ip)


def aliases(known: Iterable[Entry], namespace: str) -> tuple[HostAlias, ...]:
    """The lines of /etc/hosts for pods of a namespace."""
    return tuple(HostAlias(one.address, tuple(_names(one, namespace))) for one in known)


def _names(one: Entry, namespace: str) -> Iterator[str]:
    if one.namespace == namespace:
        yield one.name
    full = f"{one.name}.{one.namespace}"
    yield from (full, f"{full}.svc", f"{full}.{_DOMAIN}")
