"""Services: names under which pods of this node find each other.

A Service has no address of its own here, and no port is translated: its name leads to the addresses of its pods.
A Service that asks for more is taken with a note, or refused if its name would lead nowhere.
"""

from collections.abc import Iterator, Mapping

from evenkeel.api.pod import NO_LABELS, ObjectMeta
from evenkeel.api.scalars import Int32
from evenkeel.named_tuples import NamedTuple

SERVICE = "Service"
CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = (
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
)
HEADLESS = "None"  # a clusterIP: the name leads to the pods, in a cluster too
TYPES = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME)


class ServicePort(NamedTuple):
    name: str = ""
    protocol: str = ""
    app_protocol: str = ""
    port: Int32 = 0
    target_port: int | str | None = None
    node_port: Int32 = 0


class ClientIPConfig(NamedTuple):
    timeout_seconds: Int32 | None = None


class SessionAffinityConfig(NamedTuple):
    client_ip: ClientIPConfig | None = None


class ServiceSpec(NamedTuple):
    type: str = ""
    selector: Mapping[str, str] = NO_LABELS
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = ""
    cluster_ips: tuple[str, ...] = ()
    publish_not_ready_addresses: bool = False
    external_name: str = ""
    # These have no meaning for names. They are kept for `get -o yaml`.
    allocate_load_balancer_node_ports: bool | None = None
    external_ips: tuple[str, ...] = ()
    external_traffic_policy: str = ""
    health_check_node_port: Int32 = 0
    internal_traffic_policy: str = ""
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""
    load_balancer_class: str = ""
    load_balancer_ip: str = ""
    load_balancer_source_ranges: tuple[str, ...] = ()
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    traffic_distribution: str = ""


class Service(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        return self.spec.cluster_ip == HEADLESS

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        selector = self.spec.selector
        return (
            bool(selector)
            and namespace == self.metadata.namespace
            and all(labels.get(key) == value for key, value in selector.items())
        )


def service_notes(service: Service) -> Iterator[tuple[str, str]]:
    """Differences from a cluster: pairs of a field and a sentence."""
    spec, name = service.spec, service.metadata.name
    if not spec.selector:
        yield "spec.selector", f"Service {name} has none, so its name leads to no pod of this node"
        return
    moved = [
        f"{port.target_port} and not {port.port}"
        if isinstance(port.target_port, int)
        else f'"{port.target_port}" of the pods, which need not be {port.port}'
        for port in spec.ports
        if port.target_port not in ("", 0, None, port.port)
    ]
    if moved and not service.is_headless:
        words = (
            f"its name leads to its pods, and no port is translated: clients must use port {', '.join(moved)}"
        )
        yield "spec.ports", f"Service {name}: {words}"
    if spec.type in (NODE_PORT, LOAD_BALANCER):
        words = f"no port of the host is opened for type {spec.type}: write hostPort in the pod"
        yield "spec.type", f"Service {name}: {words}, or use evenkeel port-forward"
