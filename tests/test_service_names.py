"""Names of Services: which names lead where, and that pods have them while they run."""

import json
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.data_objects import DataKey
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import ObjectMeta, Pod, PodCondition, PodIP, PodSpec, PodStatus
from evenkeel.api.services import Service, ServiceSpec
from evenkeel.policy.service_names import Entry, aliases, by_label, entries_of, wants_names
from tests.models.agents import drive, until


def pod(name: str, address: str, *, is_ready: bool = True, namespace: str = "shop", **spec: Any) -> Pod:
    ready = PodCondition(type="Ready", status="True" if is_ready else "False")
    status = PodStatus(phase="Running", pod_ip=address, pod_ips=(PodIP(address),), conditions=(ready,))
    return Pod(ObjectMeta(name, namespace=namespace, labels={"app": "web"}), PodSpec(**spec), status)


def service(name: str = "web", **spec: Any) -> Service:
    return Service(ObjectMeta(name, namespace="shop"), ServiceSpec(selector={"app": "web"}, **spec))


def found_of(services: list[Service], pods: list[Pod]) -> set[Entry]:
    return {entry for one in pods for entry in entries_of(one, by_label(services))}


def names(services: list[Service], pods: list[Pod], namespace: str = "shop") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for alias in aliases(sorted(found_of(services, pods)), namespace):
        for name in alias.hostnames:
            found.setdefault(name, []).append(alias.ip)
    return found


def test_a_name_leads_to_every_ready_pod_by_its_short_and_its_long_forms():
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3", is_ready=False)]
    both = ["10.0.0.1", "10.0.0.2"]
    assert names([service()], pods) == dict.fromkeys(
        ("web", "web.shop", "web.shop.svc", "web.shop.svc.cluster.local"), both
    )


def test_another_namespace_needs_the_longer_forms():
    assert names([service()], [pod("a", "10.0.0.1")], "other").keys() == {
        "web.shop",
        "web.shop.svc",
        "web.shop.svc.cluster.local",
    }


def test_a_service_selects_pods_of_its_own_namespace_only():
    assert names([service()], [pod("a", "10.0.0.1", namespace="other")]) == {}
    assert names([Service(ObjectMeta("none", namespace="shop"))], [pod("a", "10.0.0.1")]) == {}


def test_pods_of_a_headless_service_have_names_of_their_own():
    one = pod("db-0", "10.0.0.1", hostname="db-0", subdomain="web")
    assert names([service(cluster_ip="None")], [one])["db-0.web.shop.svc.cluster.local"] == ["10.0.0.1"]
    assert "db-0.web" not in names([service()], [one])


def test_addresses_that_are_not_ready_are_there_if_the_service_says_so():
    one = pod("a", "10.0.0.1", is_ready=False)
    assert names([service(publish_not_ready_addresses=True)], [one])["web"] == ["10.0.0.1"]


def test_several_pods_with_the_hosts_address_are_one_line():
    assert names([service()], [pod("a", "192.0.2.1"), pod("b", "192.0.2.1")])["web"] == ["192.0.2.1"]


@pytest.mark.parametrize(
    "spec, is_so",
    [
        ({}, True),
        ({"dns_policy": "ClusterFirst"}, True),
        ({"dns_policy": "Default"}, False),
        ({"dns_policy": "None"}, False),
        ({"host_network": True}, False),
        ({"host_network": True, "dns_policy": "ClusterFirstWithHostNet"}, True),
    ],
)
def test_pods_want_names_as_kubelet_says(spec, is_so):
    assert wants_names(Pod(spec=PodSpec(**spec))) is is_so


# With an agent on a model machine


def manifest(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "host", "command": ["x"]}]},
    }


def written(name: str) -> dict[str, object]:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


async def apply(agent: Agent, *manifests: dict[str, object]) -> None:
    reading = read_manifests("\n---\n".join(map(json.dumps, manifests)), "test").or_raise()
    await agent.apply(reading.pods, objects=reading.objects)


def test_running_pods_get_a_name_when_its_service_appears_and_lose_it_with_the_service(place):
    async def story(agent: Agent) -> None:
        await apply(agent, manifest("web"), manifest("client"))
        await until(lambda: len(place.runtime.running()) == 1 and len(place.runtime.starts) == 2)
        await apply(agent, written("web"))
        hosts = place.runtime.hosts
        await until(lambda: len(hosts) == 2 and all("web.default.svc" in one for one in hosts.values()))
        await agent.delete_data(DataKey("Service", "default", "web"))
        await until(lambda: not any(hosts.values()))

    drive(place, story)


def test_a_name_follows_its_pods(place):
    async def story(agent: Agent) -> None:
        await apply(agent, written("web"), manifest("client"))
        hosts = place.runtime.hosts
        await until(lambda: bool(hosts))
        (client,) = hosts
        assert not hosts[client], "there is no pod behind it yet"
        await apply(agent, manifest("web"))
        await until(lambda: "web" in hosts[client])
        await agent.delete("default/web", 0)
        await until(lambda: not hosts[client])

    drive(place, story)


def test_a_container_starts_with_the_names_that_there_are(place):
    seen: list[set[str]] = []

    def look(launch: Any) -> None:
        seen.append({name for alias in launch.pod.spec.host_aliases for name in alias.hostnames})

    async def story(agent: Agent) -> None:
        await apply(agent, written("web"), manifest("web"))
        await until(lambda: bool(place.runtime.hosts))
        place.runtime.on_start = look
        await apply(agent, manifest("late"))
        await until(lambda: bool(seen))
        assert not agent.pod("default/late").spec.host_aliases, "the pod itself is as it was written"

    drive(place, story)
    assert "web" in seen[0]
