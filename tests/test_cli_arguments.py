"""Which pod KIND/NAME on the command line means, and which port of it a port of a Service stands for."""

import pytest
import yaml

from evenkeel.api.config import Profile
from evenkeel.api.workload_pods import replica
from evenkeel.api.workloads import key_of
from evenkeel.cli.arguments import pod_name
from evenkeel.cli.client import Client
from evenkeel.cli.port_forward import Ports, ports_behind
from evenkeel.errors import EvenkeelError
from tests.fake_front import running
from tests.models.workload_world import workload

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: a}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: other}, ports: [{port: 80}]}
"""
POD = {
    "metadata": {"name": "p"},
    "spec": {
        "containers": [{"name": "main"}, {"name": "web", "ports": [{"name": "http", "containerPort": 81}]}]
    },
}


@pytest.fixture
def client(agent, front):
    """A client of an agent with two Services and a Deployment of two pods, of which the second runs."""
    made = workload("Deployment", {"replicas": 2}, "web")
    front.made[key_of(made)] = made
    waits, runs = (replica(made, name, Profile.DOCUMENTS) for name in ("web-0", "web-1"))
    agent.call(front.put, waits)
    agent.call(front.put, running(runs))
    client = Client(agent.state_dir)
    client.apply({"apiVersion": "v1", "kind": "List", "items": list(yaml.safe_load_all(SERVICE))})
    return client


@pytest.mark.parametrize(
    "word, name",
    [
        ("web-0", "web-0"),
        ("pod/web-0", "web-0"),
        ("po/web-0", "web-0"),
        ("deployment/web", "web-1"),
        ("deploy/web", "web-1"),
        ("deployment.apps/web", "web-1"),
        ("service/front", "web-1"),
        ("svc/front", "web-1"),
    ],
)
def test_a_workload_or_a_service_stands_for_a_pod_of_it_that_runs(client, word, name):
    assert pod_name(client, "default", word) == name


@pytest.mark.parametrize(
    "word, words",
    [
        ("deployment/nope", 'there is no Deployment "nope" in namespace default'),
        ("svc/nope", 'there is no Service "nope" in namespace default'),
        ("svc/nobody", "svc/nobody has no pod"),
        ("secret/s", "secrets have no pods"),
        ("thing/web", 'there is no kind "thing"'),
        ("deployment/", '"deployment/" is not KIND/NAME'),
        ("pod/web-0/x", '"pod/web-0/x" is not KIND/NAME'),
    ],
)
def test_what_stands_for_no_pod_is_refused_with_a_sentence(client, word, words):
    with pytest.raises(EvenkeelError, match=words):
        pod_name(client, "default", word)


def service(target, **spec):
    return {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "targetPort": target}], **spec}}


def test_a_port_of_a_service_stands_for_the_port_behind_it():
    asked = Ports(9000, 80)
    assert ports_behind(asked, {}, POD) == asked
    assert ports_behind(asked, service(8080), POD) == Ports(9000, 8080)
    assert ports_behind(asked, service("http"), POD) == Ports(9000, 81)
    assert ports_behind(asked, service(0), POD) == asked
    assert ports_behind(asked, service(8080, clusterIP="None"), POD) == asked


def test_a_port_that_a_service_has_for_two_protocols_is_that_of_tcp():
    tcp, udp = (
        {"port": 53, "targetPort": target, "protocol": protocol}
        for protocol, target in (("TCP", 5300), ("UDP", 5301))
    )
    assert ports_behind(Ports(53, 53), service(80, ports=[tcp, udp]), POD) == Ports(53, 5300)
    with pytest.raises(EvenkeelError, match="Service s has no TCP port 53: it has none"):
        ports_behind(Ports(53, 53), service(80, ports=[udp]), POD)


def test_a_port_that_a_service_does_not_have_is_refused():
    for asked in (service(8080), service(8080, clusterIP="None")):
        with pytest.raises(EvenkeelError, match="Service s has no TCP port 81: it has 80"):
            ports_behind(Ports(9000, 81), asked, POD)
    with pytest.raises(
        EvenkeelError, match='the port "metrics" of its pods, and pod p has none of that name'
    ):
        ports_behind(Ports(9000, 80), service("metrics"), POD)
