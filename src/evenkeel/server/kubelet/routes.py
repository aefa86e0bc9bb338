"""The routes of kubelet's server that clients of a node use. All other paths are answered with 404.

SPDY and WebSockets are imported when the first session is asked for. Many nodes never have one.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from evenkeel.agent.front import Front
from evenkeel.api.pod import ContainerStatus, Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.sessions import Session, SessionRefused, Streams
from evenkeel.server.handlers import Handlers
from evenkeel.server.http import Answer, Refused, Request, Route, Transport, Upgrade
from evenkeel.server.kubelet.container_logs import ContainerLogs
from evenkeel.server.kubelet.node_pods import NodePods
from evenkeel.server.metrics_cgroups import CONTENT_TYPE as PROMETHEUS
from evenkeel.server.session_handlers import SessionPlaces
from evenkeel.server.session_relay import Channels, relay

if TYPE_CHECKING:
    import h11

    from evenkeel.server.kubelet.spdy import Spdy
    from evenkeel.server.websocket import WebSocket

SESSION_PROTOCOLS = ("v4.channel.k8s.io",)  # over SPDY, as the next one
PORT_PROTOCOLS = ("portforward.k8s.io",)
_TRUE = ("1", "true")


class _Address(NamedTuple):
    """The first word of a path, how many words may follow, and what answers."""

    word: str
    more: tuple[int, ...]
    route: Route
    methods: tuple[str, ...] = ("GET", "HEAD")


class NodeRoutes:
    def __init__(self, front: Front, pods: NodePods, handlers: Handlers, paths: StatePaths) -> None:
        self._front = front
        self._pods = pods
        self._handlers = handlers
        self._sessions = SessionPlaces()
        either = ("GET", "POST")
        self._addresses = (
            _Address("containerLogs", (3,), Route(ContainerLogs(pods, paths).handle), ("GET",)),
            _Address("exec", (3, 4), Route(self._exec, False, SESSION_PROTOCOLS, _session_transport), either),
            _Address(
                "attach", (3, 4), Route(self._attach, False, SESSION_PROTOCOLS, _session_transport), either
            ),
            _Address(
                "portForward",
                (2, 3),
                Route(self._port_forward, False, PORT_PROTOCOLS, _port_transport),
                either,
            ),
            _Address("stats", (1,), Route(self._stats)),
            _Address("metrics", (0, 1), Route(self._metrics)),
            _Address("pods", (0,), Route(handlers.pods)),
            _Address("runningpods", (0,), Route(self._running_pods)),
            _Address("configz", (0,), Route(handlers.configz)),
            _Address("healthz", (0,), Route(handlers.healthz)),
        )

    async def find(self, request: Request) -> Route:
        first, *more = without_last_slash(request.path)
        for address in self._addresses:
            if address.word == first and len(more) in address.more:
                if request.method in address.methods:
                    return address.route
                allow = ", ".join(address.methods)
                raise Refused(405, f"{request.method} is not allowed here; there is {allow}", allow=allow)
        raise _nothing()

    async def _exec(self, request: Request) -> Upgrade:
        pod, container = self._pod(request), request.path[-1]
        wanted = _streams(request)
        return await self._session(
            lambda: self._front.open_exec(pod.key, container, request.command, wanted), wanted
        )

    async def _attach(self, request: Request) -> Upgrade:
        pod, container = self._pod(request), request.path[-1]
        wanted = _streams(request)
        return await self._session(lambda: self._front.open_attach(pod.key, container, wanted), wanted)

    async def _session(self, open_session: Callable[[], Awaitable[Session]], wanted: Streams) -> Upgrade:
        async def serve(transport: "Spdy | WebSocket", session: Session) -> None:
            channels = await _opened(transport, wanted)
            if channels is None:
                await session.close()
            else:
                await relay(channels, session)

        return await self._sessions.open(open_session, serve)

    async def _port_forward(self, request: Request) -> Upgrade:
        from evenkeel.server.kubelet.coded_websocket import asks_for_websocket
        from evenkeel.server.kubelet.port_forwards import asked_ports, forward_asked_ports, forward_ports
        from evenkeel.server.kubelet.spdy import Spdy

        pod = self._pod(request)
        ports = asked_ports(request.ports) if asks_for_websocket(request.headers.get("upgrade", "")) else ()

        async def open_port(port: int) -> socket.socket:
            if self._pods.present(pod) is None:
                raise SessionRefused(f'pod "{pod.metadata.name}" is gone')
            return await self._front.open_port(pod.key, port)

        async def nothing() -> None:
            pass

        async def serve(transport: "Spdy | WebSocket") -> None:
            if isinstance(transport, Spdy):
                await forward_ports(transport, open_port)
            else:
                await forward_asked_ports(transport, ports, open_port)

        async with self._sessions.place() as place:
            return place.upgrade(serve, nothing)

    async def _stats(self, request: Request) -> Answer:
        if request.path[1] != "summary":
            raise _nothing()
        return await self._handlers.summary(request)

    async def _metrics(self, request: Request) -> Answer:
        which = request.path[1:]
        if which == ("probes",):
            return Answer(b"", content_type=PROMETHEUS)  # probes are not counted
        if which not in ((), ("resource",), ("cadvisor",)):
            raise _nothing()
        return await self._handlers.metrics(request)

    async def _running_pods(self, request: Request) -> Answer:  # noqa: ARG002
        """Those of which a container runs."""
        running = (pod for pod in self._front.pods() if any(map(_is_running, pod.status.container_statuses)))
        return await self._handlers.pod_list(tuple(running))

    def _pod(self, request: Request) -> Pod:
        """`/exec/{namespace}/{pod}[/{uid}]/{container}`, `/portForward/{namespace}/{pod}[/{uid}]`. Raises Refused."""
        first, namespace, name, *more = request.path
        uids = more if first == "portForward" else more[:-1]
        pod = self._pods.found(namespace, name)
        if any(uid != pod.metadata.uid for uid in uids):
            raise Refused(404, f'pod "{name[:253]}" has another UID')
        return pod


def _session_transport(head: "h11.Request", protocols: tuple[str, ...]) -> Transport:
    from evenkeel.server.kubelet.coded_websocket import session_transport

    return session_transport(head, protocols)


def _port_transport(head: "h11.Request", protocols: tuple[str, ...]) -> Transport:
    from evenkeel.server.kubelet.coded_websocket import port_transport

    return port_transport(head, protocols)


async def _opened(transport: "Spdy | WebSocket", wanted: Streams) -> Channels | None:
    """The channels of a session; None if the client is gone before, or does not open its streams."""
    from evenkeel.server.kubelet.coded_websocket import WebSocketSession
    from evenkeel.server.kubelet.spdy import SessionChannels, Spdy

    if isinstance(transport, Spdy):
        return await SessionChannels.opened(transport, wanted)
    channels = WebSocketSession(transport, wanted)
    try:
        await channels.begin()
    except OSError:
        return None
    return channels


def _nothing() -> Refused:
    return Refused(404, "404 page not found")


def without_last_slash(path: tuple[str, ...]) -> tuple[str, ...]:
    return path[:-1] if len(path) > 1 and not path[-1] else path


def _is_running(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def _streams(request: Request) -> Streams:
    """kubelet's parameters. With a terminal, standard error is part of the output."""
    stdin, stdout, stderr, terminal = (
        request.parameters.get(name, "") in _TRUE for name in ("input", "output", "error", "tty")
    )
    if not (stdin or stdout or stderr):
        raise Refused(400, "you must specify at least 1 of stdin, stdout, stderr")
    return Streams(stdin, stdout, stderr and not terminal, terminal)
