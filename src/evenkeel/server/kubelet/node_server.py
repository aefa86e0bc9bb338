"""The server of a cluster's node: a port with TLS for clients that the cluster allows, and /healthz on loopback.

It must not keep the node from its pods: a port that is taken is tried again. Its certificate, and the authority of
clients that show one, are read from files, again when they have changed.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import file_stamps, read_text
from evenkeel.kube.api_client import Client
from evenkeel.kube.api_connection import KEEPALIVE
from evenkeel.kube.cluster import ClusterMember
from evenkeel.kube.kubeconfig import Kubeconfig, load_key_pair, read_pair
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.paths import state_paths
from evenkeel.server.connection import DEFAULT_LIMITS, Connection
from evenkeel.server.handlers import PLAIN_TEXT, Handlers
from evenkeel.server.http import Answer, Refused, Request, Route
from evenkeel.server.kubelet.access import Access, NodeCheck
from evenkeel.server.kubelet.node_pods import NodePods
from evenkeel.server.kubelet.routes import NodeRoutes
from evenkeel.server.large_answers import LargeAnswers
from evenkeel.server.open_connections import OpenConnections
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
_MOST_STEPS = 8  # of a handshake


class ClientAuthority(NamedTuple):
    """The authority of client certificates: from a file or a text. If both are empty, no certificate is accepted."""

    path: str = ""
    pem: str = ""

    def __bool__(self) -> bool:
        return bool(self.path or self.pem)

    def read(self) -> str:
        return read_text(self.path) if self.path else self.pem


class NodeTls:
    """`context` for each connection. While new files cannot be used, the former ones are."""

    def __init__(self, certificate: str, key: str, clients: ClientAuthority) -> None:
        """The paths of the certificate and its key, which may be one file. Raises EvenkeelError."""
        self._files = (certificate, key)
        self._clients = clients
        self._watched = tuple(dict.fromkeys(filter(None, (certificate, key, clients.path))))
        self._stamps = file_stamps(self._watched)
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        stamps = file_stamps(self._watched)
        if stamps is not None and stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._made()
            except EvenkeelError as error:
                log.warning("cluster: the former certificates are used on: %s", error)
        return self._context

    def _made(self) -> ssl.SSLContext:
        return server_context(*read_pair(*self._files), self._clients)


def server_context(certificate_pem: str, key_pem: str, clients: ClientAuthority) -> ssl.SSLContext:
    """Raises EvenkeelError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Each connection shows its certificate anew: it may have expired, or its authority may be another one.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    load_key_pair(context, certificate_pem, key_pem, "the certificate of the node's server")
    if clients:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=clients.read())
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise EvenkeelError(f"--client-ca-file {clients.path}: it is no PEM certificate: {why}") from None
    return context


def cluster_authority(config: Kubeconfig, pair: tuple[str, str], own: tuple[str, str]) -> ClientAuthority:
    """The authority in the kubeconfig, if it has signed the node's own certificate of a client (`pair`, with its key):
    then the API server trusts client certificates of this authority, and the node may trust them too. Otherwise there
    is no authority of clients: it may be one that signs only servers, such as a public one. `own` is the certificate of
    the node's server, with its key."""
    if not pair[0]:
        return ClientAuthority()
    authority = ClientAuthority(pem=config.ca_pem)
    server = server_context(*own, authority)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # it is ourselves
    load_key_pair(client, *pair, f"--kubeconfig {config.path}: client-certificate")
    return authority if _shake_hands(server, client) else ClientAuthority()


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether the server accepts the client's certificate. Both are here, in memory."""
    server.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    )
    try:
        for _ in range(_MOST_STEPS):
            if all(_steps(end.do_handshake for end in ends)):
                return ends[0].getpeercert() is not None
    except ssl.SSLError:
        pass
    return False


def _steps(handshakes: Iterable[Callable[[], None]]) -> list[bool]:
    """Whether each is done."""
    done = []
    for handshake in handshakes:
        try:
            handshake()
        except ssl.SSLWantReadError:
            done.append(False)
        else:
            done.append(True)
    return done


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
        self._large_answers = LargeAnswers(_LIMITS.large_answer_bytes)
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
        check.shown(writer.get_extra_info("peercert") or {})
        await Connection(
            reader, writer, _LIMITS, self._large_bodies, self._large_answers, in_plain_words
        ).serve(check)


class Healthz:
    """/healthz on loopback, for everybody on this machine."""

    def __init__(self, handlers: Handlers, port: int) -> None:
        self._route = Route(handlers.healthz)
        self._port = port
        self._connections = OpenConnections(_MOST_UNCHECKED)
        self._large_bodies = asyncio.Semaphore(_LIMITS.large_bodies)
        self._large_answers = LargeAnswers(_LIMITS.large_answer_bytes)
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
        await self._connections.close_with(self._server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(
            reader, writer, DEFAULT_LIMITS, self._large_bodies, self._large_answers, in_plain_words
        )
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
