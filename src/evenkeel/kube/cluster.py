"""Makes this machine a node of a cluster: constructs the parts of this room around a running agent, and runs them.

The agent does not know this room. Without it, or without the API server, the agent goes on.
"""

import asyncio
import os
import re
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.node_figures import host_address
from evenkeel.kube.api_client import Client, path_of
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.certificates import read_certificate
from evenkeel.kube.cluster_events import EventPublisher
from evenkeel.kube.join import BOOTSTRAP, DIRECTORY, SERVING_FILE
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.kube.mirror_pods import MirrorPods, PodsAndMirrors
from evenkeel.kube.node_certificate import CLIENT, SERVING, NodeCertificate, Renewal
from evenkeel.kube.node_object import NodeIdentity
from evenkeel.kube.node_status import ClusterNode
from evenkeel.kube.pod_data import PodData
from evenkeel.kube.pod_sync import PodSync
from evenkeel.kube.watch import Watch
from evenkeel.kube.watched_objects import RuntimeClasses, Services
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.stops import ShutdownPhase, shutdown_phases
from evenkeel.policy.node_view import NodeView

if TYPE_CHECKING:
    from evenkeel.agent.agent import Agent

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME = 253
_DELIVERY_SECONDS = 10.0  # how long the last reports to the API server may take
_KILL_SECONDS = 10.0  # how long a kill may take after the grace period of the last pod


class ClusterFlags(NamedTuple):
    """The flags as they were typed; empty if they were not."""

    kubeconfig: str
    hostname_override: str = ""
    node_ip: str = ""
    node_labels: str = ""
    state_dir: str = ""


class Cluster(NamedTuple):
    """The flags after their check. `client_certificate` is None if another program renews it."""

    credentials: Credentials
    node_name: str
    node_ip: str
    labels: Mapping[str, str]
    client_certificate: NodeCertificate | None
    serving_certificate: NodeCertificate


def cluster_from(flags: ClusterFlags) -> Cluster:
    """Raises EvenkeelError, with the flag and what would be right."""
    config = read_kubeconfig(flags.kubeconfig)
    path, key_path = config.certificate_files
    is_ours = bool(path) and path == key_path  # in one file, it can be replaced as a whole
    name = checked_name(flags.hostname_override)
    if is_ours and (certified := read_certificate(read_text(path)).node_name):
        if flags.hostname_override and name != certified:
            raise EvenkeelError(f'--hostname-override: "{name}" is not in {path}, which is of "{certified}"')
        name = checked_name(certified)
    address = _address(flags.node_ip)
    serving_path = os.path.join(os.path.abspath(flags.state_dir), DIRECTORY, SERVING_FILE)
    serving = NodeCertificate(serving_path, name, SERVING, (f"DNS:{name}", f"IP:{address}"))
    return Cluster(
        Credentials(config),
        name,
        address,
        _labels(flags.node_labels),
        NodeCertificate(path, name, CLIENT) if is_ours else None,
        serving,
    )


def checked_name(given: str) -> str:
    """The node's name: as given, or this machine's. Raises EvenkeelError."""
    name = (given or os.uname().nodename).lower()
    if len(name) > _LONGEST_NAME or not _NODE_NAME.fullmatch(name):
        raise EvenkeelError(
            f'--hostname-override: "{name[:80]}" is no name of a node: small letters, digits, - and . between them'
        )
    return name


class ClusterMember:
    """This machine as a node, between `start` and `close`."""

    def __init__(self, cluster: Cluster, agent: "Agent", node: NodeView) -> None:
        identity = NodeIdentity(
            cluster.node_name,
            cluster.node_name,
            cluster.node_ip,
            node.config.port,
            cluster.labels,
            node.capacity.swap_bytes,
            has_container_runtime=bool(node.config.container_runtime_endpoint),
        )
        self.cluster = cluster
        self._config = node.config
        # The lease has a client of its own, so that it never waits for other requests.
        self._agent = agent
        self._clients = Client(cluster.credentials), Client(cluster.credentials)
        client, lease_client = self._clients
        self._events = EventPublisher(client, cluster.node_name, agent.cluster_pods, agent)
        self._node = ClusterNode(client, lease_client, identity, agent, self._events.rebooted)
        self._services = Services()
        self._runtime_classes = RuntimeClasses(self._handlers_changed)
        self._data = PodData(client, agent.cluster_pods, agent, agent.data)
        addresses = (cluster.node_ip, host_address())
        self._pods = PodSync(
            client,
            agent.cluster_pods,
            agent,
            self._services,
            self._runtime_classes,
            self._data,
            node.profile,
            addresses,
            self._events.refused,
        )
        self._mirrors = MirrorPods(
            client, agent, agent.cluster_pods, cluster.node_name, lambda: self._node.uid, addresses
        )
        mine = {"fieldSelector": f"spec.nodeName={cluster.node_name}"}
        handler = PodsAndMirrors(self._pods, self._mirrors)
        self._pod_watch = Watch(client, path_of("api", "v1", "pods"), handler, "pods", mine)
        own = {"fieldSelector": f"metadata.name={cluster.node_name}"}
        self._node_watch = Watch(client, path_of("api", "v1", "nodes"), self._node, "the node", own)
        self._service_watch = Watch(client, path_of("api", "v1", "services"), self._services, "services")
        classes = path_of("apis", "node.k8s.io", "v1", "runtimeclasses")
        self._class_watch = Watch(client, classes, self._runtime_classes, "RuntimeClasses")
        self._renewals = tuple(_renewals(cluster, node.config, client))
        self._tasks: list[asyncio.Task[None]] = []

    def has_mirror(self, namespace: str, name: str) -> bool:
        """Whether the API server has a mirror of that name for this node."""
        return self._mirrors.has(namespace, name)

    def start(self) -> None:
        self._agent.cluster_pods.join()
        loops: tuple[Coroutine[object, object, None], ...] = (
            self._node.register(),
            self._node.run_lease(),
            self._node.run_status(),
            self._service_watch.run(),
            self._class_watch.run(),
            self._watch_node(),
            self._watch_pods(),
            self._pods.follow_agent(),
            self._pods.deliver(),
            self._mirrors.follow_agent(),
            self._mirrors.deliver(),
            self._data.run(),
            self._events.run(),
            self._events.run_own(),
            *(one.run() for one in self._renewals),
        )
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def shut_down(self) -> None:
        """Ends the pods of the cluster because the node is shut down. The shutdown and the end of each pod are reported
        to the cluster at once. If the API server is away, nothing waits for it: the next agent reports them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_SECONDS):
                await self._node.shut_down("the node is being shut down")
        for phase in shutdown_phases(self._config):
            await self._end_pods(phase)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_SECONDS):
                await self._pods.delivered()

    async def _end_pods(self, phase: ShutdownPhase) -> None:
        self._agent.cluster_pods.shut_down(phase.grace)
        graces = {record.uid: phase.grace(record.pod) for record in self._agent.cluster_pods}
        ending = {uid: seconds for uid, seconds in graces.items() if seconds is not None}
        with suppress(TimeoutError):
            async with asyncio.timeout(max(ending.values(), default=0.0) + _KILL_SECONDS):
                while any(one.state.is_alive for one in self._agent.cluster_pods if one.uid in ending):
                    await self._agent.pod_loop.stepped()

    async def failed(self) -> BaseException | None:
        """Waits until one of the loops ends by an error, which should not happen. Returns the error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        return next((task.exception() for task in done if not task.cancelled() and task.exception()), None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()

    def _handlers_changed(self) -> None:
        self._pods.handlers_changed()

    async def _watch_node(self) -> None:
        await self._node.is_registered.wait()
        await self._node_watch.run()

    async def _watch_pods(self) -> None:
        """Pods are watched when the API server knows the node, and Services and RuntimeClasses are known."""
        await self._node.is_registered.wait()
        await self._service_watch.has_listed.wait()
        await self._class_watch.has_listed.wait()
        await self._pod_watch.run()


def _renewals(cluster: Cluster, config: KubeletConfiguration, client: Client) -> Iterator[Renewal]:
    if cluster.client_certificate is not None and config.rotate_certificates:
        beside = os.path.dirname(cluster.credentials.config.path)
        yield Renewal(cluster.client_certificate, client, os.path.join(beside, BOOTSTRAP))
    if config.server_tls_bootstrap:
        cluster.serving_certificate.ensure()
        yield Renewal(cluster.serving_certificate, client)


def _address(text: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_address(text)) if text else host_address()
    except ValueError:
        raise EvenkeelError(
            f'--node-ip: "{text[:60]}" is no address; write one of this machine, which the API server can reach'
        ) from None


def _labels(text: str) -> Mapping[str, str]:
    from evenkeel.api.validation.name_rules import label_value, qualified_name

    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or qualified_name(name) or label_value(value):
            raise EvenkeelError(f'--node-labels: "{part[:80]}" is no label; write disk=ssd,rack=7')
        found[name] = value
    return found
