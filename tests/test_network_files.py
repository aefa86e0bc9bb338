"""The /etc/hosts and /etc/resolv.conf of pods that ask for their own."""

import os
from typing import Any

import pytest

from evenkeel.api.container import Container
from evenkeel.api.pod import (
    HostAlias,
    ObjectMeta,
    Pod,
    PodDNSConfig,
    PodDNSConfigOption,
    PodIP,
    PodSpec,
    PodStatus,
)
from evenkeel.runtime.environment import hostname
from evenkeel.runtime.network_files import hosts_text, own_files, resolv_conf_text

HOST = """\
# made by hand
nameserver 10.0.0.1
nameserver 10.0.0.2
search one.example two.example
options ndots:2 edns0
"""


def pod(**spec: Any) -> Pod:
    return Pod(spec=PodSpec(**spec))


def test_a_pod_that_asks_for_nothing_has_the_machines_files():
    assert own_files(pod()) == ()
    assert own_files(pod(dns_policy="ClusterFirst")) == ()


def test_aliases_are_added_to_the_machines_hosts():
    aliases = (HostAlias("10.1.2.3", ("a.example", "b.example")), HostAlias("fd00::1", ("c",)))
    assert own_files(pod(host_aliases=aliases)) == ("hosts",)
    text = hosts_text(pod(host_aliases=aliases), "127.0.0.1 localhost")
    assert text == (
        "127.0.0.1 localhost\n\n# Entries of hostAliases and of Services.\n10.1.2.3\ta.example\tb.example\nfd00::1\tc\n"
    )


def test_dns_config_is_added_to_the_machines_settings():
    config = PodDNSConfig(
        ("10.0.0.2", "10.0.0.3", "10.0.0.4"),
        ("three.example", "one.example"),
        (PodDNSConfigOption("ndots", "5"), PodDNSConfigOption("rotate")),
    )
    assert own_files(pod(dns_config=config)) == ("resolv.conf",)
    assert resolv_conf_text(pod(dns_config=config), HOST) == (
        "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n"
        "search one.example two.example three.example\noptions ndots:5 edns0 rotate\n"
    )


@pytest.mark.parametrize("text", [HOST, "", "nameserver\nsearch\noptions\n;x\n"])
def test_with_policy_none_nothing_of_the_machine_is_left(text):
    config = PodDNSConfig(("10.0.0.9",))
    assert resolv_conf_text(pod(dns_policy="None", dns_config=config), text) == "nameserver 10.0.0.9\n"


def test_a_pod_with_its_own_network_knows_its_own_name_and_nothing_of_the_machines():
    status = PodStatus(
        host_ip="192.0.2.7", pod_ip="10.89.0.2", pod_ips=(PodIP("10.89.0.2"), PodIP("fd00::2"))
    )
    one = Pod(
        metadata=ObjectMeta(name="web"),
        spec=PodSpec(host_aliases=(HostAlias("10.1.2.3", ("db",)),)),
        status=status,
    )
    assert own_files(one) == ("hosts",)
    lines = hosts_text(one, "10.9.9.9 machine").splitlines()
    assert lines[:2] == ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost"]
    assert {"10.89.0.2\tweb", "fd00::2\tweb", "10.1.2.3\tdb"} <= {*lines}
    assert not [line for line in lines if "machine" in line]


OF_HOST = PodStatus(host_ip="192.0.2.7", pod_ip="192.0.2.7", pod_ips=(PodIP("192.0.2.7"),))


def test_a_pod_with_the_machines_network_has_the_machines_hosts():
    assert own_files(Pod(status=OF_HOST)) == ()


@pytest.mark.parametrize("domain, line", [("", "db-0"), ("db", "db-0.db.shop.svc.cluster.local\tdb-0")])
def test_a_pod_with_a_name_and_the_machines_network_finds_its_name_beside_the_machines(domain, line):
    spec = PodSpec(hostname="db-0", subdomain=domain)
    one = Pod(metadata=ObjectMeta(name="db-0", namespace="shop"), spec=spec, status=OF_HOST)
    assert own_files(one) == ("hosts",)
    assert hosts_text(one, "127.0.0.1 localhost") == f"127.0.0.1 localhost\n192.0.2.7\t{line}\n"


def test_a_pod_that_asks_for_the_machines_network_has_the_machines_name():
    spec = PodSpec(hostname="db-0", subdomain="db", host_network=True)
    one = Pod(metadata=ObjectMeta(name="db-0", namespace="shop"), spec=spec, status=OF_HOST)
    assert hostname(one) == os.uname().nodename
    assert own_files(one) == ()
    assert hosts_text(one, "127.0.0.1 localhost\n") == "127.0.0.1 localhost\n"


def test_a_pod_of_an_image_has_its_own_hosts_for_names_that_come_later():
    container = Container(name="main", image="nginx:1.27")
    assert own_files(pod(containers=(container,))) == ("hosts",)
    assert own_files(pod(containers=(container,), dns_policy="Default")) == ()


def test_a_pod_with_a_domain_knows_its_whole_name():
    status = PodStatus(host_ip="192.0.2.7", pod_ip="10.89.0.2", pod_ips=(PodIP("10.89.0.2"),))
    spec = PodSpec(hostname="db-0", subdomain="db")
    one = Pod(metadata=ObjectMeta(name="db-0", namespace="shop"), spec=spec, status=status)
    assert "10.89.0.2\tdb-0.db.shop.svc.cluster.local\tdb-0\n" in hosts_text(one, "")


def test_an_override_is_the_whole_name_without_a_domain():
    status = PodStatus(host_ip="192.0.2.7", pod_ip="10.89.0.2", pod_ips=(PodIP("10.89.0.2"),))
    spec = PodSpec(hostname="db-0", subdomain="db", hostname_override="legacy.example")
    one = Pod(metadata=ObjectMeta(name="db-0", namespace="shop"), spec=spec, status=status)
    assert hostname(one) == "legacy.example"
    assert "10.89.0.2\tlegacy.example\n" in hosts_text(one, "")
    assert "svc.cluster.local" not in hosts_text(one, "")
