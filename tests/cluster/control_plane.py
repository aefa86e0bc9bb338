"""A Kubernetes control plane in a network namespace of its own.

`with ControlPlane(directory) as plane:` starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler, waits
until each says that it is ready, and ends them however its user ended. Nothing of it listens on the host's network but
a port on loopback that leads to the API server.
"""

import contextlib
import http.client
import json
import secrets
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.cluster.api_reader import ApiReader
from tests.cluster.authority import Authority
from tests.cluster.binaries import control_plane_programs
from tests.cluster.component import Component
from tests.cluster.door import Door
from tests.cluster.flags import (
    ADDRESS,
    API_PORT,
    CONTROLLER_MANAGER_PORT,
    SCHEDULER_PORT,
    SERVICE_ADDRESS,
    URL,
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
    scheduler_flags,
)
from tests.cluster.namespaces import Namespace, join
from tests.kernel.waiting import eventually
from tests.machines.packages import require

PACKAGES = ("iproute2", "openssl", "procps", "util-linux")
BRIDGE = "nodes"
READY_SECONDS = 180.0
NODE_MONITOR_GRACE_SECONDS = 50  # Kubernetes' own
PERMISSIONS = Path(__file__).parent / "permissions.yaml"
MIB = 1 << 20


class Place(NamedTuple):
    """Where a node can be: a network namespace with an address that the control plane reaches, and a kubeconfig with
    the node's certificate. What has an address of `pod_cidr` is reached through the node."""

    name: str
    network: Namespace
    address: str
    pod_cidr: str
    kubeconfig: Path


class ControlPlane:
    def __init__(
        self,
        directory: Path,
        *,
        node_monitor_grace_seconds: int = NODE_MONITOR_GRACE_SECONDS,
        more_api_server_flags: Sequence[str] = (),
    ) -> None:
        """`directory` keeps keys, data and logs; it is made, or empty. After `node_monitor_grace_seconds` without a
        sign a node counts as unreachable."""
        self.directory = directory
        require(PACKAGES)
        programs = control_plane_programs()
        self.kubectl_program = programs / "kubectl"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        assert not list(directory.iterdir()), f"{directory} is not empty: it is to be the control plane's own"
        self.authority = authority = Authority(directory / "keys")
        proxies = Authority(directory / "proxy-keys")
        self._bootstrap_token = (secrets.token_hex(3), secrets.token_hex(8))
        self._places: list[Place] = []
        with contextlib.ExitStack() as opened:
            self.network = Namespace()
            opened.callback(self.network.close)
            self._lay_bridge()
            self._door = Door(self.network, ADDRESS, API_PORT)
            opened.callback(self._door.close)
            self._opened = opened.pop_all()
        account_keys = authority.key_pair("service-accounts")
        self.reader = ApiReader(self._door.port, authority)
        self.admin_kubeconfig = self._kubeconfig(
            "admin", "admin", "system:masters", server=f"https://127.0.0.1:{self._door.port}"
        )
        controller_manager = self._kubeconfig("kube-controller-manager", "system:kube-controller-manager")
        scheduler = self._kubeconfig("kube-scheduler", "system:kube-scheduler")

        def component(name: str, flags: Sequence[str], memory_bytes: int) -> Component:
            made = Component(
                name,
                [str(programs / name), *flags],
                directory / f"{name}.log",
                within=self.network.within,
                memory_bytes=memory_bytes,
            )
            self._opened.callback(made.close)
            return made

        self.etcd = component("etcd", etcd_flags(directory), 256 * MIB)
        self.api_server = component(
            "kube-apiserver",
            [*api_server_flags(authority, proxies, account_keys), *more_api_server_flags],
            768 * MIB,
        )
        self.controller_manager = component(
            "kube-controller-manager",
            controller_manager_flags(
                authority,
                controller_manager,
                account_keys,
                node_monitor_grace_seconds=node_monitor_grace_seconds,
            ),
            256 * MIB,
        )
        self.scheduler = component("kube-scheduler", scheduler_flags(authority, scheduler), 192 * MIB)

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
            self.start_api_server()
            self._permit()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def start_api_server(self) -> None:
        """Starts the API server, and the controllers anew: a controller manager that had just started when the API
        server stopped has ended, and others wait up to a minute before they try again."""
        self.api_server.start()
        self._await(self.api_server, API_PORT, "/readyz")
        others = (
            (self.controller_manager, CONTROLLER_MANAGER_PORT, "/healthz"),
            (self.scheduler, SCHEDULER_PORT, "/readyz"),
        )
        for component, _, _ in others:
            component.close()
            component.start()
        for component, port, path in others:
            self._await(component, port, path)
        self._await_accounts("default")

    def stop_api_server(self) -> None:
        self.api_server.stop()

    def place(self, name: str) -> Place:
        """A new place, for the node `name`."""
        number = len(self._places) + 1
        network = Namespace()
        self._opened.callback(network.close)
        join(BRIDGE, self.network, network, f"node{number}")
        address, pod_cidr = f"10.250.0.{10 + number}", f"10.252.{number}.0/24"
        network.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        network.run("ip", "route", "add", "default", "via", ADDRESS)
        self.network.run("ip", "route", "add", pod_cidr, "via", address)
        place = Place(name, network, address, pod_cidr, self.node_kubeconfig(name))
        self._places.append(place)
        return place

    def node_kubeconfig(self, name: str) -> Path:
        """A kubeconfig with a certificate of the node `name`, as after its bootstrap."""
        return self._kubeconfig(f"node-{name}", f"system:node:{name}", "system:nodes")

    def bootstrap_kubeconfig(self) -> Path:
        """A kubeconfig with the bootstrap token of a node."""
        path = self.directory / "bootstrap.kubeconfig"
        return self.authority.kubeconfig(path, URL, token=self.bootstrap_token)

    @property
    def bootstrap_token(self) -> str:
        return ".".join(self._bootstrap_token)

    def kubectl(self, *arguments: str, sent: str = "", timeout_seconds: float = 60.0) -> str:
        """What kubectl prints for the administrator; it is to succeed."""
        done = self.try_kubectl(*arguments, sent=sent, timeout_seconds=timeout_seconds)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(
        self, *arguments: str, sent: str = "", timeout_seconds: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.kubectl_program), f"--kubeconfig={self.admin_kubeconfig}", *arguments]
        return subprocess.run(
            command, input=sent, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )

    def get(self, *arguments: str) -> Any:
        """What `kubectl get …` finds, decoded."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def apply(self, *objects: dict[str, Any]) -> None:
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", sent=json.dumps(everything))

    def make_namespace(self, name: str) -> None:
        """A Kubernetes namespace, ready for pods."""
        self.kubectl("create", "namespace", name)
        self._await_accounts(name)

    def close(self) -> None:
        """Ends everything, the last that was started first."""
        self._opened.close()

    def _lay_bridge(self) -> None:
        """The cable of every node ends there, and what one sends to the pods of another passes through it."""
        self.network.run("ip", "link", "add", BRIDGE, "type", "bridge")
        for address in (f"{ADDRESS}/24", f"{SERVICE_ADDRESS}/32"):
            self.network.run("ip", "address", "add", address, "dev", BRIDGE)
        self.network.run("ip", "link", "set", BRIDGE, "up")
        self.network.run("sysctl", "--quiet", "net.ipv4.ip_forward=1")

    def _kubeconfig(self, name: str, user: str, *groups: str, server: str = URL) -> Path:
        path = self.directory / f"{name}.kubeconfig"
        return self.authority.kubeconfig(path, server, client=self.authority.client(name, user, *groups))

    def _permit(self) -> None:
        """The settings that an administrator makes once."""
        self.kubectl("apply", f"--filename={PERMISSIONS}")
        id_, secret = self._bootstrap_token
        usages = dict.fromkeys(("usage-bootstrap-authentication", "usage-bootstrap-signing"), "true")
        token = {"token-id": id_, "token-secret": secret, **usages}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": f"bootstrap-token-{id_}", "namespace": "kube-system"},
                "type": "bootstrap.kubernetes.io/token",
                "stringData": token,
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "cluster-info", "namespace": "kube-public"},
                "data": {"kubeconfig": self.authority.cluster_kubeconfig(URL)},
            },
        )
        # The written objects have no effect yet: the API server itself learns of them by a watch, and a controller
        # signs.
        eventually(self._is_permitted, within_seconds=READY_SECONDS)

    def _is_permitted(self) -> bool:
        self.controller_manager.check()
        info = ("configmap", "cluster-info", "--namespace=kube-public", "--output=json")
        seen = self.try_kubectl("get", *info, "--as=system:anonymous")
        if (
            seen.returncode
            or f"jws-kubeconfig-{self._bootstrap_token[0]}" not in json.loads(seen.stdout)["data"]
        ):
            return False
        command = [str(self.kubectl_program), f"--kubeconfig={self.bootstrap_kubeconfig()}"]
        first = [*self.network.within, *command, "auth", "can-i", "create", "certificatesigningrequests"]
        renewed = ("certificatesigningrequests", "--subresource=selfnodeclient")
        node = ("--as=system:node:any", "--as-group=system:nodes")
        return (
            subprocess.run(first, capture_output=True, timeout=60, check=False).returncode == 0
            and self.try_kubectl("auth", "can-i", "create", *renewed, *node).returncode == 0
        )

    def _await(self, component: Component, port: int, path: str) -> None:
        def is_ready() -> bool:
            component.check()
            return self.network.asked(lambda: _answers_ok(port, path, self.authority.certificate))

        eventually(is_ready, within_seconds=READY_SECONDS)

    def _await_accounts(self, namespace: str) -> None:
        """Waits until the controllers have made the service account and the ConfigMap. Without the first no pod is
        admitted, without the second none starts."""
        needed = (("serviceaccount", "default"), ("configmap", "kube-root-ca.crt"))

        def are_there() -> bool:
            self.controller_manager.check()
            found = (self.try_kubectl("get", kind, name, f"--namespace={namespace}") for kind, name in needed)
            return all(one.returncode == 0 for one in found)

        eventually(are_there, within_seconds=READY_SECONDS)


def _answers_ok(port: int, path: str, authority: Path) -> bool:
    """Asked from the control plane's own loopback."""
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
