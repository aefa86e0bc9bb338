"""Networks of pods without a kernel: refusals, addresses in the status, ports."""

from pathlib import Path

import pytest

from evenkeel.api.container import Container, ContainerPort
from evenkeel.api.pod import HostIP, ObjectMeta, Pod, PodIP, PodSpec, PodStatus
from evenkeel.errors import EvenkeelError
from evenkeel.policy.admission import HostPorts, SharedPorts, refusal_of_ports, shared_port, take_ports
from evenkeel.policy.lifecycle.pod_status import with_addresses
from evenkeel.runtime.paths import state_paths
from evenkeel.runtime.process.pod_networks import PodNetworks
from evenkeel.runtime.process.process_refusals import Powers, refusal

ROOT = Powers(0, 0)


def pod(name: str = "one", *ports: ContainerPort, host_network: bool | None = None) -> Pod:
    container = Container(name="main", image="host", command=("true",), ports=ports)
    spec = PodSpec(containers=(container,), host_network=host_network)
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=spec)


def test_a_network_of_its_own_needs_plugins_and_says_which_package_has_them(tmp_path: Path):
    (tmp_path / "bridge").touch(0o755)
    problem = PodNetworks(state_paths(str(tmp_path)), plugin_directories=[str(tmp_path)]).refusal()
    assert "host-local, portmap" in problem
    assert "apt install containernetworking-plugins" in problem
    refused = refusal(pod(host_network=False), ROOT._replace(no_network=problem))
    assert refused is not None
    assert refused.message == f"spec.hostNetwork: {problem}"
    assert refusal(pod(), ROOT._replace(no_network=problem)) is None


def test_a_network_of_its_own_needs_root():
    refused = refusal(pod(host_network=False), Powers(1000, 1000))
    assert refused is not None
    assert "hostNetwork: false needs root" in refused.message


def test_a_host_port_of_the_hosts_own_network_is_the_containers_port():
    other = ContainerPort(container_port=80, host_port=8080)
    refused = refusal(pod("one", other), ROOT)
    assert refused is not None
    assert refused.message.startswith(
        "spec.containers[0].ports[0].hostPort: 8080 is not containerPort 80, and the pod uses the host's network"
    )
    assert refusal(pod("one", other, host_network=False), ROOT) is None
    assert refusal(pod("one", ContainerPort(container_port=80, host_port=80)), ROOT) is None


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        (ContainerPort(container_port=1, host_port=8080), True),
        (ContainerPort(container_port=1, host_port=8080, host_ip="10.0.0.2"), True),
        (ContainerPort(container_port=1, host_port=8080, protocol="UDP"), False),
        (ContainerPort(container_port=1, host_port=8081), False),
        (ContainerPort(container_port=8080), False),
    ],
)
def test_a_port_of_the_host_is_one_pods(other: ContainerPort, is_refused: bool):
    ports: HostPorts = {}
    take_ports(pod("first", ContainerPort(container_port=80, host_port=8080, protocol="TCP")), ports)
    found = refusal_of_ports(pod("second", other), ports)
    if is_refused:
        assert found == ("NodePorts", "host port 8080 (TCP) is taken by pod default/first")
    else:
        assert found is None


def test_a_port_at_two_addresses_is_two_ports():
    ports: HostPorts = {}
    take_ports(pod("first", ContainerPort(container_port=80, host_port=80, host_ip="10.0.0.1")), ports)
    assert (
        refusal_of_ports(pod("b", ContainerPort(container_port=80, host_port=80, host_ip="10.0.0.2")), ports)
        is None
    )
    same = ContainerPort(container_port=80, host_port=80, host_ip="10.0.0.1")
    assert refusal_of_ports(pod("c", same), ports) is not None


RUNNING = PodStatus(phase="Running", start_time="2026-01-01T00:00:00Z")


def test_a_pod_with_the_hosts_network_has_the_hosts_address():
    status = with_addresses(RUNNING, "192.0.2.7", None)
    assert status.pod_ip == status.host_ip == "192.0.2.7"
    assert (status.host_ips, status.pod_ips) == ((HostIP("192.0.2.7"),), (PodIP("192.0.2.7"),))


def test_a_pod_with_its_own_network_has_its_own_addresses_as_soon_as_they_are_known():
    assert with_addresses(RUNNING, "192.0.2.7", ()).pod_ips == ()
    known = with_addresses(RUNNING, "192.0.2.7", ("10.89.0.2", "fd00::2"))
    assert known.pod_ip == "10.89.0.2"
    assert known.pod_ips == (PodIP("10.89.0.2"), PodIP("fd00::2"))


def test_a_refused_and_an_ended_pod_have_no_address():
    assert with_addresses(PodStatus(phase="Failed"), "192.0.2.7", None) == PodStatus(phase="Failed")
    ended = with_addresses(RUNNING._replace(phase="Succeeded"), "192.0.2.7", None)
    assert (ended.host_ip, ended.pod_ip) == ("192.0.2.7", "")


def test_a_subnet_that_is_none_is_refused_with_an_example(tmp_path: Path):
    with pytest.raises(EvenkeelError, match=r"podCIDR '10.0.0.1/8'.*10\.90\.0\.0/20"):
        PodNetworks(state_paths(str(tmp_path)), "10.0.0.1/8")


def test_a_port_that_two_pods_of_the_hosts_network_name_is_reported_once_for_the_later():
    ports: SharedPorts = {}
    web, dns = ContainerPort(container_port=80), ContainerPort(container_port=80, protocol="UDP")
    assert shared_port(pod("first", web), ports) == ""
    assert shared_port(pod("other", dns), ports) == ""
    assert shared_port(pod("first", web), ports) == ""
    words = shared_port(pod("second", web), ports)
    assert words.startswith(
        "port 80 (TCP) of container main is also a port of pod default/first, and both use"
    )
    assert "write hostNetwork: false" in words


def test_a_sidecar_shares_ports_as_other_containers_do_and_an_init_container_does_not():
    ports: SharedPorts = {}
    one = pod("first", ContainerPort(container_port=80))
    assert shared_port(one, ports) == ""
    (web,) = one.spec.containers

    def with_init(name: str, restart_policy: str | None) -> Pod:
        spec = PodSpec(
            containers=(web._replace(ports=()),),
            init_containers=(web._replace(restart_policy=restart_policy),),
        )
        return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)

    assert shared_port(with_init("initializes", None), ports) == ""
    assert "is also a port of pod default/first" in shared_port(with_init("serves", "Always"), ports)
