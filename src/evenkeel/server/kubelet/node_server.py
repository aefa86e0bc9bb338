"""The server of a cluster's node: a port with TLS for clients that the cluster allows, and /healthz on loopback.

It must not keep the node from its pods: a port that is taken is tried again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError, reason
from evenkeel.kube.client import Client
from evenkeel.kube.cluster import ClusterMember
from evenkeel.kube.connection import KEEPALIVE
from evenkeel.kube.kubeconfig import read_pair
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.paths import state_paths
from evenkeel.server.connection import DEFAULT_LIMITS, Connection
from evenkeel.server.handlers import PLAIN_TEXT, Handlers
from evenkeel.server.http import Answer, Refused, Request, Route
from evenkeel.server.kubelet.access import Access, NodeCheck
from evenkeel.server.kubelet.node_pods import NodePods
from evenkeel.server.kubelet.routes import NodeRoutes
from evenkeel.server.kubelet.tls import ClientAuthority, NodeTls, cluster_authority
from evenkeel.server.open_connections import OpenConnections, stop_accepting
from evenkeel.server.tls_listener import FIRST_REQUEST_SECONDS, Listener, Place

if TYPE_CHECKING:
    from evenkeel.agent.agent import Agent

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
_LARGEST_PORT = 65535
_AGAIN_SECONDS = 5.0
_MOST_OPEN, _MOST_UNCHECKED = 512, 64
_STREAM_SECONDS = 4 * 3600.0  # kubelet's streamingConnectionIdleTimeout: a client may be stopped for so long
_LIMITS = DEFAULT_LIMITS._replace(
    head_bytes=128 << 10,  # a command and a token may be long
    head_seconds=FIRST_REQUEST_SECONDS,
    stream_seconds=_STREAM_SECONDS,
)


class NodePorts(NamedTuple):
    """Where the server is; a port of 0 is none."""

    address: str
    port: int
    healthz_port: int


def node_server(
    member: ClusterMember, config: KubeletConfiguration, agent: "Agent", handlers: Handlers, state_dir: str
) -> "NodeServer":
    """The server as the configuration says. Raises EvenkeelError."""
    cluster = member.cluster
    for flag, port in (("--port", config.port), ("--healthz-port", config.healthz_port)):
        if not 0 <= port <= _LARGEST_PORT:
            raise EvenkeelError(f"{flag}: {port} is not a port from 1 to {_LARGEST_PORT}, or 0 for none")
    certificate, key = config.tls_cert_file, config.tls_private_key_file
    if bool(certificate) != bool(key):
        raise EvenkeelError("--tls-cert-file needs --tls-private-key-file, and the other way round")
    if not certificate:
        cluster.serving_certificate.ensure()
        certificate = key = cluster.serving_certificate.path
    clients = ClientAuthority(config.authentication.x509.client_ca_file)
    if not clients:
        credentials = cluster.credentials
        clients = cluster_authority(credentials.config, credentials.pair, read_pair(certificate, key))
        if not clients:
            log.warning(
                "cluster: the node's server accepts no client certificates, and so not the API server: that the"
                " authority in the kubeconfig signs them is not known; --client-ca-file says who does"
            )
    cluster_pods = agent.cluster_pods
    pods = NodePods(
        agent, cluster.node_name, lambda uid: cluster_pods.get(uid) is not None, member.has_mirror
    )
    return NodeServer(
        NodeRoutes(agent, pods, handlers, state_paths(state_dir)),
        handlers,
        NodePorts(cluster.node_ip, config.port, config.healthz_port),
        NodeTls(certificate, key, clients),
        Access(Client(cluster.credentials), cluster.node_name),
    )


class NodeServer:
    def __init__(
        self,
        routes: NodeRoutes,
        handlers: Handlers,
        ports: NodePorts,
        tls: NodeTls,
        access: Access,
    ) -> None:
        self._ports = ports
        self._access = access
        self._large_bodies = asyncio.Semaphore(_LIMITS.large_bodies)
        self._listener = Listener(
            Place(ports.address, ports.port, "--port", _MOST_OPEN, _MOST_UNCHECKED),
            tls.context,
            lambda: NodeCheck(routes, access),
            self._serve,
        )
        self._healthz = Healthz(handlers, ports.healthz_port)
        self._opening: list[asyncio.Task[None]] = []

    @property
    def listener(self) -> Listener[NodeCheck]:
        return self._listener

    def start(self) -> None:
        if self._ports.port:
            self._opening.append(asyncio.create_task(_opened(self._open)))
        if self._ports.healthz_port:
            self._opening.append(asyncio.create_task(_opened(self._healthz.open)))

    async def close(self) -> None:
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await self._listener.close()
        await self._healthz.close()
        await self._access.close()

    async def _open(self) -> None:
        self._listener.start()
        host = f"[{self._ports.address}]" if ":" in self._ports.address else self._ports.address
        log.info("cluster: the node's server is at https://%s:%d", host, self._ports.port)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, check: NodeCheck
    ) -> None:
        connected = writer.get_extra_info("socket")
        for level, option, value in KEEPALIVE:
            connected.setsockopt(level, option, value)
        check.certificate = writer.get_extra_info("peercert") or {}
        await Connection(reader, writer, _LIMITS, self._large_bodies, in_plain_words).serve(check)


class Healthz:
    """/healthz on loopback, for everybody on this machine."""

    def __init__(self, handlers: Handlers, port: int) -> None:
        self._route = Route(handlers.healthz)
        self._port = port
        self._connections = OpenConnections(_MOST_UNCHECKED)
        self._large_bodies = asyncio.Semaphore(_LIMITS.large_bodies)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Raises EvenkeelError."""
        try:
            self._server = await asyncio.start_server(self._connected, LOOPBACK, self._port)
        except OSError as error:
            where = f"{LOOPBACK} port {self._port}"
            raise EvenkeelError(f"--healthz-port: cannot listen at {where}: {reason(error)}") from None

    async def find(self, request: Request) -> Route:
        if request.path != ("healthz",) or request.method not in ("GET", "HEAD"):
            raise Refused(404, "404 page not found")
        return self._route

    async def close(self) -> None:
        self._connections.end()
        if self._server is not None:
            await stop_accepting(self._server)
        await self._connections.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, DEFAULT_LIMITS, self._large_bodies, in_plain_words)
        await self._connections.serve(connection, self)


def in_plain_words(refusal: Refused) -> Answer:
    """As kubelet answers: kubectl shows the text of the answer."""
    text = f"{refusal.message}; {refusal.hint}" if refusal.hint else refusal.message
    return Answer(text.encode(), refusal.status, PLAIN_TEXT, refusal.headers)


async def _opened(open_port: Callable[[], Awaitable[None]]) -> None:
    failure = ""
    while True:
        try:
            await open_port()
        except EvenkeelError as error:
            if error.message != failure:
                failure = error.message
                log.warning("cluster: %s; it is tried again", failure)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return
