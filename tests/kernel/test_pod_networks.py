"""Pods with a network of their own, with both runtimes. Agent and containerd run in a network namespace of the test, so
that the machine's own network is not touched."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import RUNTIMES, Up, pod
from tests.kernel.cgroups import Cgroup
from tests.kernel.live_tree import files_below
from tests.kernel.sessions import begun
from tests.kernel.waiting import PATIENCE_SECONDS, eventually
from tests.machines.containerd import Containerd
from tests.machines.packages import IMAGES, NETWORKS, require, require_containerd
from tests.needing import needing

pytestmark = [pytest.mark.cgroup("host"), pytest.mark.agent]

PACKAGES = (*NETWORKS, *IMAGES, "iproute2")
BUSYBOX = "/bin/busybox"
PORT, HOST_PORT = 8080, 18080
SUBNET = "10.202.16."
HANGS_SECONDS = 50  # a connection with which nothing happens for so long; one that is refused ends at once
SERVE = f"echo hello > /tmp/index.html && exec {BUSYBOX} httpd -f -p {PORT} -h /tmp"


def fetching(host: str, port: int) -> str:
    return rf"printf 'GET / HTTP/1.0\r\n\r\n' | {BUSYBOX} timeout {HANGS_SECONDS} {BUSYBOX} nc {host} {port}"


def last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""


class OwnNetwork:
    """A network namespace with only a loopback interface."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._path = f"/proc/{process.pid}/ns/net"

    @property
    def within(self) -> tuple[str, ...]:
        return ("nsenter", f"--net={self._path}", "--")

    @property
    def number(self) -> int:
        return Path(self._path).stat().st_ino

    def says(self, *command: str) -> str:
        done = subprocess.run(
            [*self.within, *command], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def fetched(self, host: str, port: int) -> str:
        return last_line(self.says("/bin/sh", "-c", fetching(host, port)))

    def interfaces(self) -> set[str]:
        lines = self.says("ip", "-o", "link", "show").splitlines()
        return {line.split(":")[1].strip().partition("@")[0] for line in lines}


@pytest.fixture
def network() -> Iterator[OwnNetwork]:
    with needing():
        require(PACKAGES)
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield OwnNetwork(process)
        finally:
            process.kill()


@pytest.fixture(params=RUNTIMES)
def agent(
    request: pytest.FixtureRequest, network: OwnNetwork, cgroup_root: Cgroup, tmp_path: Path
) -> Iterator[Up]:
    if request.param == "process":
        yield from running(Up(cgroup_root, tmp_path, f"--pod-cidr={SUBNET}0/24", within=network.within))
        return
    with needing():
        require_containerd()
    addresses = {"type": "host-local", "dataDir": str(tmp_path / "addresses"), "subnet": f"{SUBNET}0/24"}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": addresses}
    portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
    config = {"cniVersion": "0.4.0", "name": "test", "plugins": [bridge, portmap]}
    with Containerd(network=config, within=network.within) as containerd:
        yield from running(Up(cgroup_root, tmp_path, containerd=containerd, within=network.within))


def running(agent: Up) -> Iterator[Up]:
    try:
        agent.start()
        yield agent
    finally:
        agent.close()


def server(name: str, **spec: Any) -> dict[str, Any]:
    port = {"containerPort": PORT, **spec.pop("port", {})}
    probe = {"httpGet": {"port": PORT}, "periodSeconds": 1}
    container = {"ports": [port], "readinessProbe": probe}
    return pod(name, ["/bin/sh", "-c", SERVE], container=container, hostNetwork=False, **spec)


def is_ready(agent: Up, name: str) -> bool:
    conditions = agent.status(name).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_a_pod_has_an_address_that_probes_pods_and_host_ports_reach(agent: Up, network: OwnNetwork):
    agent.apply(server("server", port={"hostPort": HOST_PORT}))
    eventually(lambda: is_ready(agent, "server"))
    status = agent.status("server")
    address = status["podIP"]
    assert address.startswith(SUBNET)
    assert status["podIPs"] == [{"ip": address}]
    assert status["hostIP"] != address
    assert network.fetched(address, PORT) == "hello"
    assert network.fetched("127.0.0.1", HOST_PORT) == "hello"

    fetch = ["/bin/sh", "-c", fetching(address, PORT)]
    agent.apply(pod("client", fetch, hostNetwork=False, restartPolicy="Never"))
    agent.await_phase("client", "Succeeded")
    # A container runtime may know of the end before it has written the last line.
    eventually(lambda: last_line(agent.cli("logs", "client")) == "hello")

    agent.kill()
    agent.start()
    eventually(lambda: is_ready(agent, "server"))
    assert agent.status("server")["podIP"] == address
    assert network.fetched(address, PORT) == "hello"


def test_nothing_of_a_network_is_left_after_the_pod(agent: Up, network: OwnNetwork, tmp_path: Path):
    before = mounts(tmp_path)
    agent.apply(server("server", port={"hostPort": HOST_PORT}))
    eventually(lambda: is_ready(agent, "server"))
    assert any(name.startswith("veth") for name in network.interfaces())
    agent.kill()
    agent.start()
    agent.cli("delete", "pod", "server")
    agent.await_gone("server")
    eventually(lambda: not any(name.startswith("veth") for name in network.interfaces()))
    assert not network.fetched("127.0.0.1", HOST_PORT)
    eventually(lambda: mounts(tmp_path) == before)
    files = [path for path in files_below(tmp_path) if path.parents[1].name == "addresses"]
    leases = [path.name for path in files if path.name.startswith(SUBNET)]
    assert leases == []


def test_the_network_of_a_pod_with_own_users_belongs_to_them(agent: Up, network: OwnNetwork):
    """So its root may listen at port 80, which takes a capability in the network's own user namespace."""
    before = mounts(agent.state)
    serve = SERVE.replace(f"-p {PORT}", "-p 80")
    agent.apply(pod("low", ["/bin/sh", "-c", serve], hostNetwork=False, hostUsers=False))
    if agent.containerd is not None:  # containerd 1.6 has none, and would run the pod without
        failed = agent.await_phase("low", "Failed")
        assert "hostUsers: false is not supported: containerd 1" in failed["message"]
        return
    agent.await_phase("low", "Running")
    eventually(lambda: network.fetched(agent.status("low")["podIP"], 80) == "hello")
    with begun(agent, "port-forward", "low", ":80") as forward:
        assert forward.stdout is not None
        local = int(forward.stdout.readline().decode().split(":")[1].split()[0])
        eventually(lambda: got(local).endswith(b"hello\n"))
    agent.cli("delete", "pod", "low")
    agent.await_gone("low")
    eventually(lambda: mounts(agent.state) == before)


def test_a_port_of_a_pod_is_forwarded_though_it_listens_at_its_own_loopback_only(
    agent: Up, network: OwnNetwork
):
    serve = SERVE.replace(f"-p {PORT}", f"-p 127.0.0.1:{PORT}")
    for name in ("one", "two"):  # the same port in two networks
        reported = serve.replace("hello", f"this is {name}")
        agent.apply(pod(name, ["/bin/sh", "-c", reported], hostNetwork=False))
    for name in ("one", "two"):
        agent.await_phase(name, "Running")
        address = agent.status(name)["podIP"]
        assert not network.fetched(address, PORT), "only the pod itself reaches its loopback"
        with begun(agent, "port-forward", name, f":{PORT}") as forward:
            assert forward.stdout is not None
            local = int(forward.stdout.readline().decode().split(":")[1].split()[0])
            eventually(lambda local=local, name=name: got(local).endswith(f"this is {name}\n".encode()))


def got(port: int) -> bytes:
    """What a server at the host's loopback answers; empty if it is not there yet."""
    found = b""
    with (
        suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as one,
    ):
        one.settimeout(PATIENCE_SECONDS)
        one.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while chunk := one.recv(65536):
            found += chunk
    return found


def mounts(below: Path) -> list[str]:
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return sorted(point for point in points if point.startswith(str(below)))


def test_a_pod_that_asks_for_it_has_the_hosts_network(agent: Up, network: OwnNetwork):
    agent.apply(pod("shared", ["/bin/sh", "-c", "readlink /proc/self/ns/net; sleep 600"], hostNetwork=True))
    agent.await_phase("shared", "Running")
    eventually(lambda: agent.cli("logs", "shared") == f"net:[{network.number}]\n")
    status = agent.status("shared")
    assert status["podIP"] == status["hostIP"]


def test_the_containers_of_a_pod_share_its_network_and_see_nothing_of_the_hosts(
    agent: Up, network: OwnNetwork
):
    asked = server("two")
    look = f"until {fetching('127.0.0.1', PORT)}; do :; done; ls /sys/class/net; cat /etc/hosts; echo $IP; sleep 600"
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    beside = {"name": "beside", "image": "host", "command": ["/bin/sh", "-c", look], "env": [address]}
    asked["spec"]["containers"].append(beside)
    agent.apply(asked)
    agent.await_phase("two", "Running")
    own = agent.status("two")["podIP"]
    eventually(lambda: last_line(agent.cli("logs", "two", "-c", "beside")) == own)
    seen = agent.cli("logs", "two", "-c", "beside")
    assert "hello" in seen.splitlines()
    assert f"{own}\ttwo" in seen.splitlines()
    assert not network.interfaces() - {"lo"} & {*seen.split()}
