"""A node's server before a front that runs nothing, with an API server that decides as a test says."""

import asyncio
import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.manifests import read_manifests
from evenkeel.kube.api_client import Client
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.runtime.paths import state_paths
from evenkeel.server.handlers import Handlers
from evenkeel.server.kubelet.access import Access
from evenkeel.server.kubelet.node_pods import NodePods
from evenkeel.server.kubelet.node_server import ClientAuthority, NodePorts, NodeServer, NodeTls
from evenkeel.server.kubelet.routes import NodeRoutes
from tests.certificates import make_certificate
from tests.cluster.authority import Authority
from tests.fake_front import running
from tests.fake_sessions import SessionFront
from tests.kernel.waiting import eventually
from tests.models.api_server import ApiServer, Asked, kubeconfig
from tests.reserved_port import ReservedPort

NODE = "node1"
ALLOWED = "allowed"  # a user with all rights, and the token of one
GOOD_TOKENS = {ALLOWED: "allowed", "poor": "poor"}


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, uid: 0f1e2d3c-0000-4000-8000-000000000001}
spec: {containers: [{name: app, image: host, command: [sleep, "60"]}]}
"""


def a_pod(name="web"):
    return running(read_manifests(POD.replace("name: web", f"name: {name}"), "test").or_raise().pods[0])


class NodeFront(SessionFront):
    """Its ports are those of this machine."""

    async def open_port(self, key, port):
        self.asked.append((key, port))
        if self.refusal is not None:
            raise self.refusal
        one = socket.create_connection(("127.0.0.1", port), timeout=30)
        one.setblocking(False)
        return one


class Cluster:
    """What the API server knows: tokens, and rights as (user, verb, subresource). All of it may be changed."""

    def __init__(self) -> None:
        self.tokens = dict(GOOD_TOKENS)
        self.rights: set[tuple[str, str, str]] = set()
        self.is_away = False
        self.reviews: list[dict[str, Any]] = []

    async def answer(self, asked: Asked) -> None:
        if self.is_away:
            asked.hang_up()
            return
        assert asked.body is not None
        spec = asked.body["spec"]
        self.reviews.append(asked.body)
        if asked.target.endswith("/tokenreviews"):
            name = self.tokens.get(spec["token"])
            user = {"username": name, "groups": ["pods"]} if name else {}
            await asked.answer(201, {"status": {"authenticated": bool(name), "user": user}})
            return
        what = spec["resourceAttributes"]
        assert (what["resource"], what["name"]) == ("nodes", NODE)
        key = (spec["user"], what["verb"], what["subresource"])
        await asked.answer(201, {"status": {"allowed": spec["user"] == ALLOWED or key in self.rights}})


class NodeUnderTest:
    def __init__(self, directory: Path, front: Any) -> None:
        self.front = front
        self.cluster = Cluster()
        self.authority = Authority(directory / "authority")
        self.certificate, self.key = make_certificate(directory)
        self.state = directory / "state"
        self.local: set[str] = set()  # the UIDs of pods that were handed in on this machine
        self.mirrors: set[tuple[str, str]] = set()  # that the API server has, by namespace and name
        self.now = 1000.0
        self._reserved = ReservedPort(), ReservedPort()
        self.port, self.healthz_port = (one.number for one in self._reserved)
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def call(self, function: Any, *arguments: Any) -> Any:
        async def do() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(30)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        eventually(lambda: _is_open(self.port) and _is_open(self.healthz_port))

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
        for one in self._reserved:
            one.close()

    async def _start(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        api = ApiServer(self.cluster.answer)
        self._api = await asyncio.start_server(api.serve, "127.0.0.1", 0, ssl=context)
        port = self._api.sockets[0].getsockname()[1]
        path = kubeconfig(self._directory, port, self.certificate, {"token": "the-node"})
        client = Client(Credentials(read_kubeconfig(str(path))))
        handlers = Handlers(self.front)
        pods = NodePods(
            self.front,
            NODE,
            lambda uid: uid not in self.local,
            lambda namespace, name: (namespace, name) in self.mirrors,
        )
        self.tls = NodeTls(self.certificate, self.key, ClientAuthority(str(self.authority.certificate)))
        self.server = NodeServer(
            NodeRoutes(self.front, pods, handlers, state_paths(str(self.state))),
            handlers,
            NodePorts("127.0.0.1", self.port, self.healthz_port),
            self.tls,
            Access(client, NODE, lambda: self.now),
        )
        self.server.start()

    async def _stop(self) -> None:
        await self.server.close()
        self._api.close()

    def trusting(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificate)
        if client is not None:
            context.load_cert_chain(*map(str, client))
        return context

    def ask(
        self,
        target: str,
        *,
        token: str = ALLOWED,
        method: str = "GET",
        client: tuple[Path, Path] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.trusting(client), timeout=30
        )
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        try:
            connection.request(method, target, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


def _is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def node_server(directory: Path, front: Any) -> Iterator[NodeUnderTest]:
    node = NodeUnderTest(directory, front)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeUnderTest]:
    front = NodeFront()
    with node_server(tmp_path, front) as node:
        node.call(front.put, a_pod())
        yield node


def expired(authority: Authority, user: str) -> tuple[Path, Path]:
    """A certificate of the authority that was valid yesterday."""
    certificate, key = authority.client(f"expired-{user}", user)
    request = authority.directory / f"expired-{user}.csr"
    command = [
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        authority.certificate,
        "-CAkey",
        authority.key,
    ]
    subprocess.run(
        [*map(str, command), "-days", "-1", "-out", str(certificate)], check=True, capture_output=True
    )
    return certificate, key
